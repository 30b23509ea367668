"""The settings of LoadGen (a scenario, its duration and rate, and the bound), and the results in its log."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import MlperfResult, Scenario
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.manifests.errors import ConfigurationError, OutputError, explained

_CONFIDENCE = 0.99
_CHUNK = 4096
_NS_PER_S = 1_000_000_000
_SEEDS = 2**32
_MOST_QUERIES = 10_000_000


@dataclass(frozen=True, slots=True)
class MlperfSettings:
    """The settings of a run.

    Attributes:
        rate_qps: In the server scenario, the rate. In the others, the rate that LoadGen expects, for which it
            prepares its queries: at most twice as many as this rate requires (offline: 1.1 times, which is
            then the number of samples).
        bound_ns: The latency bound, which LoadGen checks in the server scenario.
        percentile: The latency percentile to which the bound applies, in percent.
        min_queries: The minimum number of queries (offline: samples).
        seed: The seed of the schedule; the choice of inputs and their order use the two seeds after it.
        window: The maximum number of samples in flight in the offline scenario.

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
    window: int = 256

    def __post_init__(self) -> None:
        expected = max(self.min_queries, 2 * self.min_duration_s * self.rate_qps)
        if expected > _MOST_QUERIES:
            raise ConfigurationError(
                f"LoadGen would prepare {expected:.0f} queries, but at most {_MOST_QUERIES} are allowed; "
                "lower --initial_qps, --min_duration, --min_queries or --percentile"
            )

    @property
    def seeds(self) -> tuple[int, int, int]:
        """The seeds for the schedule, the choice of inputs, and their order; each is below 2³²."""
        return self.seed % _SEEDS, (self.seed + 1) % _SEEDS, (self.seed + 2) % _SEEDS


def least_queries(percentile: float) -> int:
    """Returns how many queries LoadGen's early stopping requires for a percentile, if one query is late.

    This is the smallest n for which, if a fraction of 1 - percentile were late, at most 1 % of the runs would
    have one late query or none among n: 64 at 90 %, 662 at 99 %. LoadGen calls a run with fewer INVALID. (In
    the server scenario, 459 at 99 % are enough if none is late.)
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
    """Returns the schedule of LoadGen's server scenario, computed in the same way as in LoadGen, and its end.

    LoadGen draws the gaps with ``std::exponential_distribution`` from ``std::mt19937``, as implemented in
    GNU's C++ library: two 32-bit numbers give one in 0…1, of which the logarithm is taken. The last query is
    the first one due after the duration. LoadGen's log can confirm the schedule: it records the number of
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
    """Returns a few thousand gaps between queries, int64, in nanoseconds."""
    words = generator.randint(0, _SEEDS, 2 * _CHUNK, dtype=np.uint32).astype(np.float64)
    shares = (words[0::2] + words[1::2] * _SEEDS) / float(_SEEDS) ** 2
    gaps: NDArray[np.int64] = (-np.log(1 - shares) / rate_qps * _NS_PER_S).astype(np.int64)
    return gaps


_DETAIL = "mlperf_log_detail.txt"
_MARK = ":::MLLOG "
_PERCENTS = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
_RATES = {
    Scenario.SINGLE_STREAM: "result_qps_with_loadgen_overhead",
    Scenario.SERVER: "result_completed_samples_per_sec",
    Scenario.OFFLINE: "result_samples_per_second",
}
_EARLY_STOPPING = {
    Scenario.SINGLE_STREAM: "early_stopping_latency_ss",
    Scenario.MULTI_STREAM: "early_stopping_latency_ms",
}
_CANCELLED = "the run was cancelled before LoadGen ended it"
_CONDITIONS = {
    "result_perf_constraints_met": "the latency bound is not kept",
    "result_min_duration_met": "it was shorter than the minimum duration",
    "result_min_queries_met": "it had fewer queries than the minimum",
    "early_stopping_met": "early stopping is not satisfied",
}


class MlperfLog:
    """The log of a LoadGen run in the directory of its logs.

    Raises:
        OutputError: There is no log, or it cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / _DETAIL
        with explained(OutputError, f"{path}: LoadGen's log cannot be read"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        entries = list(_entries(lines))
        self._values: dict[str, Any] = {str(entry["key"]): entry.get("value") for entry in entries}
        self._errors = tuple(
            _line(entry.get("value")) for entry in entries if entry.get("metadata", {}).get("is_error")
        )

    @property
    def generated(self) -> tuple[int, int]:
        """The number of queries prepared, and when the one after them would have been due, in nanoseconds.

        A value that is missing from the log is 0.
        """
        values = self._values
        return int(values.get("generated_query_count") or 0), int(values.get("generated_query_duration") or 0)

    def result(self, scenario: Scenario, *, ended: bool, clock_known: bool) -> MlperfResult:
        """Returns the result; that of a run that LoadGen has not ``ended`` is invalid and has no figures.

        The log of such a run may contain figures, too, but they count samples without an answer.
        """
        ended = ended and "result_validity" in self._values
        # the version is logged before the run
        values: Mapping[str, Any] = (
            self._values if ended else {"loadgen_version": self._values.get("loadgen_version")}
        )
        key = "result_{}_percentile_latency_ns"
        mean = "result_mean_latency_ns"
        if scenario is Scenario.MULTI_STREAM:
            key, mean = "result_{}_percentile_per_query_latency_ns", "result_mean_query_latency_ns"
        percentiles = tuple(
            (float(percent), int(values[name]))
            for percent in _PERCENTS
            if (name := key.format(percent)) in values
        )
        queries = int(values.get("result_query_count") or 0)
        if scenario is Scenario.OFFLINE:
            queries *= int(values.get("generated_samples_per_query") or 0)
        rate = values.get(_RATES.get(scenario, ""))
        early = values.get(_EARLY_STOPPING.get(scenario, ""))
        return MlperfResult(
            version=str(values.get("loadgen_version") or "").split(" @ ")[0],
            valid=values.get("result_validity") == "VALID",
            reasons=(*self._reasons(), *self._errors) if ended else (_CANCELLED,),
            queries=queries,
            rate_qps=None if rate is None else float(rate),
            mean_ns=int(values[mean]) if mean in values else None,
            percentiles_ns=percentiles,
            early_stopping_ns=int(early) if early else None,
            clock_known=clock_known,
            log_directory=str(self._directory),
        )

    def _reasons(self) -> Iterator[str]:
        """Yields the reasons why the run is invalid."""
        values = self._values
        for key, text in _CONDITIONS.items():
            if values.get(key) is False:
                more = _line(values.get("early_stopping_result")) if key == "early_stopping_met" else ""
                yield f"{text}: {more}" if more else text
        if advice := _line(values.get("result_invalid_reason")):
            yield advice


def _entries(lines: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the entries of a log; malformed lines, such as a truncated one, are skipped."""
    for line in lines:
        try:
            entry = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "key" in entry:
            yield entry


def _line(text: object) -> str:
    """Returns text from LoadGen as one line, without bullets."""
    words = " ".join(str(text or "").replace(" * ", " ").split())
    return words.removeprefix("* ")
