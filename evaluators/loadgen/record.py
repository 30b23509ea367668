"""What a run under load was asked for and what it gave, as it is kept with an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from evaluators.loadgen.mlperf_result import MlperfResult, Scenario
from evaluators.loadgen.queries import Queries


def bound_ns_of(bound_ms: float) -> int:
    """Returns a latency bound in nanoseconds: the nearest, as 2.01 ms is a little less in binary."""
    return round(bound_ms * 1_000_000)


class LoadKind(str, Enum):
    """Which question was asked: what happens at a rate, or up to which rate a bound is kept."""

    WORKLOAD = "workload"
    MAX_QPS = "max_qps"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a load evaluation was asked for.

    Attributes:
        kind: The question.
        arrival: The arrival process, or the schedule's file.
        rate_qps: The rate, or of a search the first one; of a closed loop 0.
        percentile: Of the latencies that the bound is for, in percent.
        latency_bound_ms: The bound; None for none.
        timeout_ms: When a query is given up, counted from when it was due.
        min_duration_s: How long the schedule is at the least.
        min_queries: How many queries it has at the least.
        max_duration_s: How long it is at the most; None for no end.
        seed: What schedules are drawn from.
        concurrency: Queries in flight in a closed loop; None for a schedule.
        max_batch_size: The most queries that were predicted together.
        max_queue_delay_ms: How long a query waits for others to be predicted with it.
        include_preprocess: Whether the inputs were prepared under load, too.
        warm_up_queries: Queries that were sent before the run and are not in it.
        time_budget_s: How long a search may take; None for a workload.
        tolerance: Half the width of the interval that a search aims at, as a share of the rate.
        scenario: Of MLPerf, for which LoadGen sent the queries; None where it did not.
    """

    kind: LoadKind
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

    @property
    def latency_bound_ns(self) -> int | None:
        """The bound in nanoseconds."""
        return None if self.latency_bound_ms is None else bound_ns_of(self.latency_bound_ms)


@dataclass(frozen=True, slots=True, eq=False)
class LoadRun:
    """One schedule and what became of it.

    Attributes:
        rate_qps: The rate that was asked for; of a closed loop 0.
        source: What the schedule was made from.
        seed: What it was drawn from; None for a file and for a closed loop.
        checksum: ``sha256:…`` of the schedule; empty for a closed loop.
        queries: The queries that were due before the run ended.
        cut_ns: Queries that were due before this are the empty start, and in no figure.
        stopped: Why the run ended before its schedule; empty where it did not.
        invalid: Why its figures are not to be trusted; empty where they are.
        reasons: How many queries failed for which reason.
    """

    rate_qps: float
    source: str
    seed: int | None
    checksum: str
    queries: Queries
    cut_ns: int = 0
    stopped: str = ""
    invalid: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RateAnswer:
    """What a search found.

    Attributes:
        rate_qps: The highest rate that keeps the bound; None where no rate does.
        low_qps: The lower end of its 95 % interval; None where there is none.
        high_qps: The upper end.
        method: How it was computed.
        note: What else there is to say, in one line; empty for nothing.
    """

    rate_qps: float | None
    low_qps: float | None
    high_qps: float | None
    method: str
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LoadRecord:
    """The load part of an evaluation.

    Attributes:
        options: What was asked for.
        runs: The run; of a search, every probe in its order.
        answer: Of a search.
        mlperf: What LoadGen says of a scenario of MLPerf.
    """

    options: LoadOptions
    runs: Sequence[LoadRun]
    answer: RateAnswer | None = None
    mlperf: MlperfResult | None = None
