"""The measurement of queries under load: a workload, a closed loop or a scenario of MLPerf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from inferometer.evaluators.load.load_run import LoadRun, bound_ns_of


class Scenario(str, Enum):
    """A scenario of MLPerf inference."""

    SINGLE_STREAM = "single_stream"
    """One query after the other."""
    MULTI_STREAM = "multi_stream"
    """One query of eight samples after the other."""
    SERVER = "server"
    """Queries at Poisson times, however many wait."""
    OFFLINE = "offline"
    """All samples at once."""

    @property
    def samples_per_query(self) -> int:
        """The samples that LoadGen times together, and so are one value in its percentiles."""
        return 8 if self is Scenario.MULTI_STREAM else 1


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of load, and of a search for the highest rate, whose probes are load.

    Attributes:
        arrival: The arrival process, or the schedule's file.
        rate_qps: The rate, or of a search the first one; of a closed loop 0.
        percentile: The percentile of the latency that the bound applies to, in percent.
        latency_bound_ms: The bound; None for none.
        timeout_ms: The timeout of a query, counted from when it was due.
        min_duration_s: The minimum length of the schedule.
        min_queries: The minimum number of queries in it.
        max_duration_s: The maximum length of the schedule; None for no limit.
        seed: The seed of the schedules.
        concurrency: Queries in flight in a closed loop; None for a schedule.
        max_batch_size: The maximum number of queries in a batch.
        max_queue_delay_ms: The maximum time that a query waits for others in its batch.
        include_preprocess: Whether inputs were preprocessed under load.
        warm_up_queries: Queries sent before the run and not part of it.
        time_budget_s: The time limit of a search; None for a workload.
        tolerance: Half the width of the interval that a search aims at, as a fraction of the rate.
        scenario: The scenario of MLPerf, whose queries LoadGen sent; None for other load.
        further: Options of the request that have no field here, where they differ from their defaults.
    """

    arrival: str
    rate_qps: float
    percentile: float = 99.0
    latency_bound_ms: float | None = None
    timeout_ms: float = 10_000.0
    min_duration_s: float = 0.0
    min_queries: int = 1
    max_duration_s: float | None = None
    seed: int = 0
    concurrency: int | None = None
    max_batch_size: int = 1
    max_queue_delay_ms: float = 0.0
    include_preprocess: bool = False
    warm_up_queries: int = 0
    time_budget_s: float | None = None
    tolerance: float | None = None
    scenario: Scenario | None = None
    further: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def latency_bound_ns(self) -> int | None:
        """The bound in nanoseconds."""
        return None if self.latency_bound_ms is None else bound_ns_of(self.latency_bound_ms)


@dataclass(frozen=True, slots=True)
class MlperfResult:
    """The result of LoadGen, as its log states it.

    Attributes:
        version: LoadGen's.
        valid: Its verdict.
        reasons: The reasons for an invalid result, and errors, each in one line.
        queries: The number of queries; a query of multi_stream has eight samples, and offline counts samples.
        rate_qps: Queries per second, of offline samples; None if LoadGen gives no rate (multi_stream).
        mean_ns: The mean latency; None for an incomplete run.
        percentiles_ns: Percent and latency, ascending; empty for an incomplete run.
        early_stopping_ns: MLPerf's latency for single_stream and multi_stream: the percentile with a margin
            for chance. None in other scenarios, and if it is unknown.
        clock_known: Whether the queries have the scheduled times of LoadGen's own schedule, or the times at
            which it issued them.
        log_directory: The directory of its logs.
    """

    version: str
    valid: bool
    reasons: tuple[str, ...]
    queries: int
    rate_qps: float | None
    mean_ns: int | None
    percentiles_ns: tuple[tuple[float, int], ...]
    early_stopping_ns: int | None
    clock_known: bool
    log_directory: str


@dataclass(frozen=True, slots=True, eq=False)
class LoadMeasurement:
    """One run under load.

    Attributes:
        options: The options.
        run: The queries.
        elapsed_ns: The duration of the run without the warm-up.
        mlperf: LoadGen's result in a scenario of MLPerf; None for other load.
    """

    kind: ClassVar[str] = "load"

    options: LoadOptions
    run: LoadRun
    elapsed_ns: int
    mlperf: MlperfResult | None = None

    @property
    def invalid(self) -> str:
        """Why its figures cannot be trusted, in one line; empty if they can."""
        loadgen = "LoadGen calls it INVALID" if self.mlperf and not self.mlperf.valid else ""
        return self.run.invalid or loadgen

    @property
    def batch_size(self) -> int:
        """The maximum number of queries in a batch."""
        return self.options.max_batch_size
