"""The settings of LoadGen: a scenario, its duration and rate, and the bound."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.load.schedule import Schedule
from inferometer.manifests.errors import ConfigurationError

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
        rate_qps: In the scenario server the rate. In the others the rate that LoadGen expects, by which it
            prepares its queries: at most twice as many as this rate needs (offline: 1.1 times, which is then
            the number of samples).
        bound_ns: The latency bound, which LoadGen judges in the scenario server.
        percentile: Of the latencies that the bound is for, in percent.
        min_duration_s: The minimum duration.
        min_queries: The fewest queries; of offline, samples.
        seed: The seed of the schedule; the choice of inputs and their order use the two seeds after it.
        timeout_ms: The timeout of a query, counted from when it was issued, in the scenario offline from when
            it was sent to the system under test.
        window: The most samples in flight in the scenario offline.

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

    That is the least n for which, if a fraction of 1 - percentile were late, at most 1 % of the runs would
    have one late query or none among n: 64 at 90 %, 662 at 99 %. LoadGen calls a run with fewer INVALID. (In
    the scenario server, 459 at 99 % are enough if none is late.)

    Args:
        percentile: Between 0 and 100, both excluded.
    """
    late = 1 - percentile / 100
    high = 2
    while not _enough(high, late):
        high *= 2
    return bisect_left(range(high), True, lo=max(2, high // 2), key=lambda count: _enough(count, late))


def _enough(count: int, late: float) -> bool:
    in_time = math.log1p(-late)
    none, one = math.exp(count * in_time), count * late * math.exp((count - 1) * in_time)
    return none + one <= 1 - _CONFIDENCE


def server_schedule(settings: MlperfSettings) -> tuple[Schedule, int]:
    """Returns the schedule of LoadGen's scenario server, computed as LoadGen does, and its duration's end.

    LoadGen draws the gaps with ``std::exponential_distribution`` from ``std::mt19937``, as the C++ library of
    GNU has them: two 32-bit numbers give one in 0…1, of which the logarithm is taken. The last query is the
    first that is due after the duration. LoadGen's log confirms it: it has the number of queries, and
    when the one after the last would have been due.

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
    """Returns some thousand gaps between queries, int64."""
    words = generator.randint(0, _SEEDS, 2 * _CHUNK, dtype=np.uint32).astype(np.float64)
    shares = (words[0::2] + words[1::2] * _SEEDS) / float(_SEEDS) ** 2
    gaps: NDArray[np.int64] = (-np.log(1 - shares) / rate_qps * _NS_PER_S).astype(np.int64)
    return gaps
