"""What LoadGen is asked for: a scenario, how long, at which rate, and what is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.mlperf_result import Scenario
from evaluators.loadgen.schedule import Schedule
from manifests.errors import ConfigurationError

_CONFIDENCE = 0.99
_CHUNK = 4096
_NS_PER_S = 1_000_000_000
_SEEDS = 2**32
_MOST_QUERIES = 10_000_000


@dataclass(frozen=True, slots=True)
class MlperfSettings:
    """The settings of a run.

    Attributes:
        scenario: The scenario.
        rate_qps: In the scenario server the rate. In the others the rate that LoadGen is to expect, by which
            it prepares its queries; more cannot be sent than twice as many as this rate needs (offline: 1.1
            times, which is then how many samples there are).
        bound_ns: The latency bound, which LoadGen judges in the scenario server.
        percentile: Of the latencies that the bound is for, in percent.
        min_duration_s: How long it runs at the least.
        min_queries: How many queries there are at the least; of offline, samples.
        seed: What its schedule is drawn from; the choice of inputs and their order have the two seeds after.
        timeout_ms: When a query is given up, counted from when it was issued, in the scenario offline from
            when the system under test was handed it.
        window: How many samples the system under test is handed at a time in the scenario offline.

    Raises:
        ConfigurationError: LoadGen would prepare too many queries.
    """

    scenario: Scenario
    rate_qps: float
    bound_ns: int
    percentile: float
    min_duration_s: float
    min_queries: int
    seed: int
    timeout_ms: float
    window: int = 256

    def __post_init__(self) -> None:
        expected = max(self.min_queries, 2 * self.min_duration_s * self.rate_qps)
        if expected > _MOST_QUERIES:
            raise ConfigurationError(
                f"LoadGen would prepare {expected:.0f} queries, and {_MOST_QUERIES} are the most; "
                "lower --initial_qps, --min_duration, --min_queries or --percentile"
            )

    @property
    def seeds(self) -> tuple[int, int, int]:
        """The seeds of the schedule, of the choice of inputs, and of their order; each below 2 to the 32."""
        return self.seed % _SEEDS, (self.seed + 1) % _SEEDS, (self.seed + 2) % _SEEDS


def least_queries(percentile: float) -> int:
    """Returns how many queries LoadGen's early stopping needs for a percentile, with one too many late.

    That is the least n for which, if a share of 1 - percentile were late, one late query or none among n
    would come in 1 % of the runs at the most: 64 at 90 %, 662 at 99 %. LoadGen says that a run with fewer
    is INVALID. (In the scenario server, 459 at 99 % are enough if none is late.)

    Args:
        percentile: Between 0 and 100, both excluded.
    """
    late = 1 - percentile / 100
    low, high = 1, 2
    while not _enough(high, late):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, late) else (middle, high)
    return high


def _enough(count: int, late: float) -> bool:
    in_time = math.log1p(-late)
    none, one = math.exp(count * in_time), count * late * math.exp((count - 1) * in_time)
    return none + one <= 1 - _CONFIDENCE


def server_schedule(settings: MlperfSettings) -> tuple[Schedule, int]:
    """Returns the schedule of LoadGen's scenario server, computed as LoadGen does, and its duration's end.

    LoadGen draws the gaps with ``std::exponential_distribution`` from ``std::mt19937``, as the C++ library of
    GNU has them: two 32-bit numbers give one in 0…1, of which the logarithm is taken. The last query is the
    first that is due after the duration. Whether it was so is told by what LoadGen logs: the number of
    queries, and when the one after the last would have been due.

    Returns:
        The schedule, and when the query after its last would have been due, in nanoseconds.
    """
    seed = settings.seeds[0]
    generator = np.random.RandomState(seed)  # the generator of std::mt19937, with its seeding
    least_ns = settings.min_duration_s * _NS_PER_S
    offsets = np.zeros(1, np.int64)
    while len(offsets) < settings.min_queries + 1 or offsets[-2] < least_ns:
        gaps = _gaps_ns(generator, settings.rate_qps)
        offsets = np.concatenate([offsets, offsets[-1] + np.cumsum(gaps)])
    enough = int(np.searchsorted(offsets, least_ns)) + 1
    count = max(enough, settings.min_queries)
    source = f"mlperf server, {settings.rate_qps:g} queries/s"
    return Schedule(offsets[:count], source, settings.rate_qps, seed), int(offsets[count])


def _gaps_ns(generator: np.random.RandomState, rate_qps: float) -> NDArray[np.int64]:
    """Some thousand gaps between queries, int64."""
    words = generator.randint(0, _SEEDS, 2 * _CHUNK, dtype=np.uint32).astype(np.float64)
    shares = (words[0::2] + words[1::2] * _SEEDS) / float(_SEEDS) ** 2
    gaps: NDArray[np.int64] = (-np.log(1 - shares) / rate_qps * _NS_PER_S).astype(np.int64)
    return gaps
