"""The measurements of queries under load, and their interpretation.

A measurement is a workload, a closed loop or a scenario of MLPerf; or a search for the highest rate that
keeps a latency bound, whose probes are runs at a steady rate; or the load of one model of a mix, or of a
search for the largest factor of a mix.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import QUERY_COLUMNS, LoadRun, Outcome, Queries, bound_ns_of
from inferometer.evaluators.load.validity import lag_text
from inferometer.evaluators.statistics import Interval, mean_reach, percentile_intervals

_NS_PER_S = 1_000_000_000


class Scenario(str, Enum):
    """A scenario of MLPerf inference."""

    SINGLE_STREAM = "single_stream"
    """One query after the other."""
    MULTI_STREAM = "multi_stream"
    """One query of eight samples after the other."""
    SERVER = "server"
    """Queries that arrive as a Poisson process, regardless of how many are waiting."""
    OFFLINE = "offline"
    """All samples at once."""

    @property
    def samples_per_query(self) -> int:
        """The number of samples that LoadGen times together as one value for its percentiles."""
        return 8 if self is Scenario.MULTI_STREAM else 1


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load, or of a search for the highest rate, whose probes are loads.

    Attributes:
        arrival: The arrival process, or the schedule's file.
        rate_qps: The rate; for a search, the first rate; for a closed loop, 0.
        percentile: The percentile of the latency that the bound applies to, in percent.
        latency_bound_ms: The bound; None for none.
        timeout_ms: The timeout of a query, counted from when it was due.
        min_duration_s: The minimum length of the schedule.
        min_queries: The minimum number of queries in the schedule.
        max_duration_s: The maximum length of the schedule; None for no limit.
        seed: The seed of the schedules.
        concurrency: The number of queries in flight in a closed loop; None for a schedule.
        max_batch_size: The maximum number of queries in a batch.
        max_queue_delay_ms: The maximum time that a query waits for others in its batch.
        instances: The number of instances of the model, which took batches from one queue.
        include_preprocess: Whether inputs were preprocessed under load.
        warm_up_queries: The number of queries sent before the run, which are not part of it.
        time_budget_s: The time limit of a search; None for a workload.
        tolerance: The target half-width of a search's interval, as a fraction of the rate.
        scenario: The scenario of MLPerf, whose queries LoadGen sent; None for other load.
        further: Options of the request that have no field here, if they differ from their defaults.
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
    instances: int = 1
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
        version: The version of LoadGen.
        valid: Whether LoadGen calls the run valid.
        reasons: The reasons why the result is invalid, and errors, one line each.
        queries: The number of queries; a query of multi_stream has eight samples, and offline counts samples.
        rate_qps: Queries per second (offline: samples); None if LoadGen reports no rate (multi_stream).
        mean_ns: The mean latency; None for an incomplete run.
        percentiles_ns: Percent and latency, ascending; empty for an incomplete run.
        early_stopping_ns: MLPerf's latency for single_stream and multi_stream: the percentile with a margin
            for chance. None in other scenarios, or if it is unknown.
        clock_known: Whether the queries' due times are those of LoadGen's own schedule; otherwise they are
            the times at which it issued them.
        log_directory: The directory with LoadGen's logs.
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


class _UnderLoad:
    """A measurement of queries under load."""

    __slots__ = ()
    options: LoadOptions

    @property
    def batch_size(self) -> int:
        """The maximum number of queries in a batch."""
        return self.options.max_batch_size


@dataclass(frozen=True, slots=True, eq=False)
class LoadMeasurement(_UnderLoad):
    """One run under load.

    Attributes:
        run: The queries.
        elapsed_ns: The duration of the run without the warm-up.
        mlperf: LoadGen's result in an MLPerf scenario; None for other loads.
    """

    kind: ClassVar[str] = "load"

    options: LoadOptions
    run: LoadRun
    elapsed_ns: int
    mlperf: MlperfResult | None = None

    @property
    def invalid(self) -> str:
        """The reason why the figures cannot be trusted, in one line; empty if they can."""
        loadgen = "LoadGen calls it INVALID" if self.mlperf and not self.mlperf.valid else ""
        return self.run.invalid or loadgen


@dataclass(frozen=True, slots=True)
class RateAnswer:
    """The answer of a search.

    Attributes:
        rate_qps: The highest rate that keeps the bound; None if no rate does, or it was not found.
        low_qps: The lower end of its 95 % interval; for a bracket, a rate that kept the bound; may be None.
        high_qps: The upper end; for a bracket, a rate that did not keep the bound; may be None.
        method: The basis of the answer: a value of ``Method``.
        note: A one-line remark; empty if there is none.
    """

    rate_qps: float | None
    low_qps: float | None
    high_qps: float | None
    method: str
    note: str = ""

    def times(self, number: float) -> RateAnswer:
        """Returns the answer with all rates multiplied by a number."""
        low_qps, high_qps = (each and each * number for each in (self.low_qps, self.high_qps))
        rate_qps = self.rate_qps and self.rate_qps * number
        return replace(self, rate_qps=rate_qps, low_qps=low_qps, high_qps=high_qps)


@dataclass(frozen=True, slots=True, eq=False)
class RateSearchMeasurement(_UnderLoad):
    """One search.

    Attributes:
        probes: The run at each rate that was tried, in order.
        elapsed_ns: The duration of the search without the warm-up.
        answer: The answer; None if the search was stopped.
    """

    kind: ClassVar[str] = "rate_search"

    options: LoadOptions
    probes: Sequence[LoadRun]
    elapsed_ns: int
    answer: RateAnswer | None = None

    @property
    def headline(self) -> tuple[str, str, RateAnswer | None]:
        """What its bound applies to, and the name of the answer that its picture shows, and the answer."""
        return "latency", "max QPS", self.answer


@dataclass(frozen=True, slots=True, eq=False)
class MixSearchMeasurement(RateSearchMeasurement):
    """One model of a search for the largest factor by which all rates of a mix can grow together.

    Its rates, divided by the rate in ``options``, are factors of the mix. ``answer`` is its rate at the
    factor that all models keep.

    Attributes:
        name: The model's name in the mix.
        others: The other models and their loads, one text each.
        mix: The options of the request that differ from their defaults.
        file: The content of the mix's file.
        own: The answer for this model's bound alone, beside the others; None if the search was stopped.
        limited_by: The name of the model that limits the factor; empty if none is known.
        invalid: Why the answer cannot be trusted, in one line; empty if it can.
    """

    kind: ClassVar[str] = "mix_search"

    name: str = ""
    others: tuple[str, ...] = ()
    mix: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    file: str = ""
    own: RateAnswer | None = None
    limited_by: str = ""
    invalid: str = ""

    @property
    def factor(self) -> RateAnswer | None:
        """The answer, whose rates are factors of the mix."""
        return self.answer and self.answer.times(1 / self.options.rate_qps)

    @property
    def own_factor(self) -> RateAnswer | None:
        """The answer for this model's bound alone, whose rates are factors of the mix."""
        return self.own and self.own.times(1 / self.options.rate_qps)

    @property
    def headline(self) -> tuple[str, str, RateAnswer | None]:
        """See ``RateSearchMeasurement``."""
        return "latency", f"{self.name}: factor", self.factor


SIDES = ("alone", "together")


@dataclass(frozen=True, slots=True, eq=False)
class MixMeasurement(_UnderLoad):
    """One model of a mix: its load alone, and together with that of the other models, in pairs of blocks.

    The two runs of a pair have the same arrivals.

    Attributes:
        name: The model's name in the mix.
        others: The other models and their loads, one text each.
        options: The options of the model's load; the duration is that of a block.
        mix: The options of the request that differ from their defaults.
        file: The content of the mix's file.
        alone: The runs alone.
        together: The runs together with the other models, in the same order.
        elapsed_ns: The duration of all blocks of all models.
        invalid: Why the figures cannot be trusted, in one line; empty if they can.
    """

    kind: ClassVar[str] = "mix"

    name: str
    others: tuple[str, ...]
    options: LoadOptions
    mix: Mapping[str, str | int | float | bool]
    file: str
    alone: tuple[LoadRun, ...]
    together: tuple[LoadRun, ...]
    elapsed_ns: int
    invalid: str = ""

    def side(self, name: str) -> LoadMeasurement:
        """Returns the blocks ``alone`` or ``together`` as one workload; see ``pooled``."""
        runs: tuple[LoadRun, ...] = getattr(self, name)
        stops = Counter(run.stopped for run in runs if run.stopped)
        run = LoadRun(
            rate_qps=self.options.rate_qps,
            source=self.options.arrival,
            seed=self.options.seed,
            checksum="",
            queries=pooled(runs, round((self.options.max_duration_s or 0.0) * _NS_PER_S)),
            stopped="; ".join(f"{count} of {len(runs)} blocks: {why}" for why, count in stops.items()),
            reasons=dict(sum((Counter(run.reasons) for run in runs), Counter[str]()).most_common()),
        )
        return LoadMeasurement(self.options, run, self.elapsed_ns)

    def interference(self, percent: float) -> Interference | None:
        """Returns the ratio of a percentile's latency together to that alone; None if there is none.

        A block without a counted query, or a percentile that falls on queries without an answer, has none.
        """
        pairs = [
            [percentile_intervals(run.queries.since(run.cut_ns).latency_ns, (percent,)) for run in pair]
            for pair in zip(self.alone, self.together, strict=True)
        ]
        values = [[found[0].value_ns if found else math.inf for found in pair] for pair in pairs]
        return Interference.of(np.asarray(values, np.float64))


@dataclass(frozen=True, slots=True)
class Interference:
    """A latency together with other models, divided by that alone.

    Attributes:
        ratio: The geometric mean of the ratios of the pairs of blocks.
        interval: Its 95 % interval, from Student's t distribution of the logarithms of the ratios; None for
            fewer than two pairs. What the arrivals cause is the same in both blocks of a pair, and cancels.
    """

    ratio: float
    interval: Interval | None

    @classmethod
    def of(cls, pairs: NDArray[np.float64]) -> Interference | None:
        """Computes the ratio from the latencies alone and together: float64, pairs × 2."""
        if not np.isfinite(pairs).all() or not (pairs > 0).all():
            return None
        logs = np.log(pairs[:, 1] / pairs[:, 0])
        middle = float(logs.mean())
        reach = mean_reach(logs) if len(logs) > 1 else None
        ends = None if reach is None else Interval(math.exp(middle - reach), math.exp(middle + reach))
        return cls(math.exp(middle), ends)


_MOMENTS = {"scheduled_ns", "sent_ns", "done_ns"}


def pooled(runs: Sequence[LoadRun], duration_ns: int = 0) -> Queries:
    """Returns the counted queries of runs, at least one, as if each run had begun when the last had ended.

    A run that was not stopped lasts for at least ``duration_ns``, so that the rate is that of all runs.
    """
    columns: dict[str, list[NDArray[np.int64]]] = {name: [] for name in QUERY_COLUMNS}
    end_ns = 0
    for run in runs:
        counted, by_ns = run.queries.since(run.cut_ns), end_ns - run.cut_ns
        end_ns = max(end_ns, 0 if run.stopped else by_ns + duration_ns)
        for name, found in columns.items():
            values = getattr(counted, name)
            if name in _MOMENTS:
                values = np.where(values >= 0, values + by_ns, values)
                end_ns = max(end_ns, int(values.max(initial=-1)) + 1)
            found.append(values)
    joined = {name: np.concatenate(found) for name, found in columns.items()}
    return Queries(**joined, repeated=sum(run.queries.repeated for run in runs))


_START_BOUNDS = 10
_START_SHARE = 0.25


def judged_queries(run: LoadRun, bound_ns: int) -> Queries:
    """Returns the queries of a probe whose latency is compared with the bound.

    The start of the run, when the queue is empty and latencies are low, is left out: ten bounds, but at most
    a quarter of the run. If the run was stopped, queries due less than a bound before its end are also left
    out, because it is unknown which of them would have been in time.
    """
    sent = run.queries.chosen(run.queries.outcome != Outcome.UNSENT)
    if not len(sent):
        return sent
    last_ns = int(sent.scheduled_ns[-1])
    judged = sent.since(min(_START_BOUNDS * bound_ns, int(_START_SHARE * last_ns)))
    if run.stopped and np.any(judged.outcome == Outcome.WAITING):
        end_ns = int(max(sent.sent_ns.max(), sent.done_ns.max()))
        judged = judged.chosen(judged.scheduled_ns < end_ns - bound_ns)
    return judged


def late_share(run: LoadRun, bound_ns: int) -> float:
    """Returns the share of the judged queries that are later than the bound; 0 if there are none."""
    judged = judged_queries(run, bound_ns)
    return float(np.mean(judged.latency_ns > bound_ns)) if len(judged) else 0.0


def from_sending(run: LoadRun) -> LoadRun:
    """Returns the run with latencies measured from when each query was sent."""
    return replace(run, queries=run.queries.from_sending())


def lag_reason(run: LoadRun, bound_ns: int, late_fraction: float) -> str:
    """Returns why a probe is invalid (without lag, the bound would have been kept); empty if valid."""
    as_due, as_sent = late_share(run, bound_ns), late_share(from_sending(run), bound_ns)
    if not as_sent <= late_fraction < as_due:
        return ""
    return lag_text(f"{100 * as_sent:.3g} % of the queries would be late, not {100 * as_due:.3g} %")


def load_s(*runs: LoadRun) -> float:
    """Returns the summed duration of the runs, each up to its last arrival or answer, in seconds."""
    columns = ((run.queries.scheduled_ns, run.queries.done_ns) for run in runs)
    return sum(max(int(due.max(initial=0)), int(done.max(initial=0))) for due, done in columns) / 1e9


NEAR = 1.25
"""A probe contributes to the answer if its rate is within this factor of it."""
_FIGURES = 2
_MOST_DECIMALS = 6
_MOST_INVALID = 0.5


class Method(str, Enum):
    """The basis of an answer."""

    SINGLE_SERVER = "single server"
    """Derived from the service times of queries; see ``single_server``."""
    LATE_FRACTION = "late fraction"
    """Derived from a monotone curve of the fraction of late queries against the rate; see ``estimate``."""
    BRACKET = "bracket"
    """The search ended with a rate that kept the bound and one that did not."""
    AT_LEAST = "at least"
    """The bound was kept at the highest rate that the harness can send."""
    NONE = "none"
    """No rate keeps the bound."""
    COUNTED = "counted"
    """Counted in one run, in which nothing was searched."""


def rate_text(answer: RateAnswer) -> str:
    """Returns a rate in queries/s, with as many digits as its interval justifies: ``76.9 [75.8, 78.0]``."""
    rate_qps, low_qps, high_qps = answer.rate_qps, answer.low_qps, answer.high_qps
    if answer.method == Method.NONE:
        return "none"
    if rate_qps is None:
        return f"below {high_qps:.4g}" if high_qps is not None else "unknown"
    if low_qps is None or high_qps is None or answer.method == Method.AT_LEAST:
        return f"at least {rate_qps:.4g}"
    half = max((high_qps - low_qps) / 2, rate_qps * 1e-6)
    decimals = min(max(_FIGURES - 1 - math.floor(math.log10(half)), 0), _MOST_DECIMALS)
    return f"{rate_qps:.{decimals}f} [{low_qps:.{decimals}f}, {high_qps:.{decimals}f}]"


def invalid_reason(search: RateSearchMeasurement) -> str:
    """Returns why the answer of a search cannot be trusted; empty if it can, or if there is none.

    An answer rests on the queries of the probes near it. If more than half of them come from invalid probes,
    it says more about the harness, or about other work on the machine, than about the system.
    """
    if isinstance(search, MixSearchMeasurement) and search.invalid:
        return search.invalid
    if search.answer is None:
        return ""
    near = _near(search)
    invalid = [run for run in near if run.invalid]
    queries = sum(len(run.queries) for run in near)
    if sum(len(run.queries) for run in invalid) <= _MOST_INVALID * queries:
        return ""
    return (
        f"{len(invalid)} of {len(near)} probes near the answer are invalid; the last: {invalid[-1].invalid}"
    )


def _near(search: RateSearchMeasurement) -> Sequence[LoadRun]:
    """Returns the probes near an answer's interval, or all probes if it has no rate or none is near."""
    answer = search.answer
    if answer is None or answer.rate_qps is None:
        return search.probes
    low_qps = answer.rate_qps if answer.low_qps is None else answer.low_qps
    high_qps = answer.rate_qps if answer.high_qps is None else answer.high_qps
    # what was sent above the highest rate that this machine can send says nothing about that rate
    highest_qps = answer.rate_qps if answer.method == Method.AT_LEAST.value else high_qps * NEAR
    near = [run for run in search.probes if low_qps / NEAR <= run.rate_qps <= highest_qps]
    return near or search.probes
