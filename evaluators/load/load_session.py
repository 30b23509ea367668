"""A target under load, which runs a workload, or the probes of a search one after the other.

The closed loop keeps a fixed number of queries in flight, and sends the next one when one is done.
Calibration finds the highest rate that this machine can send on time. A sample of queries is chosen during a
run, and their traces are recorded after it.
"""

from __future__ import annotations

import heapq
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.recorder import SpanKind, TraceContext, TraceLevel, TraceScope, ended
from inferometer.evaluators.load.arrivals import Extent, PoissonArrivals, Schedule
from inferometer.evaluators.load.issuer import (
    RunLimits,
    RunWatch,
    counted,
    drain,
    frozen_heap,
    prompt_wakeups,
    run_open_loop,
    run_together,
)
from inferometer.evaluators.load.queries import LoadRun, Outcome, QueryLog, Stop
from inferometer.evaluators.load.server_statistics import ReportingTarget, ServerReader, page_sources
from inferometer.evaluators.load.target import Answers, LoadTarget, QueryTarget
from inferometer.manifests.errors import ConfigurationError, SessionError


class NullTarget:
    """A target that answers at once, in the thread that sends; satisfies ``target.QueryTarget``."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._answers: Answers | None = None

    def begin(self, answers: Answers) -> None:
        """Begins a run, whose outcomes go to ``answers``."""
        self._answers = answers

    def submit(self, query: int) -> None:
        """Answers a query; raises SessionError if no run has begun."""
        if self._answers is None:
            raise SessionError("no run has begun; call begin before submit")
        self._answers.answered(query, self._clock())

    def end(self, timeout_s: float) -> None:
        """Ends the run; there is nothing to wait for."""
        self._answers = None


LAG_P99_NS = 1_000_000
ALLOWED_SHARE = 0.5
"""The share of the ceiling that a load may reach, because less can be sent while a target is working."""
LEAST_QPS = 1000.0
"""The lowest ceiling. Sending takes some 10 µs: queries that are 1 ms apart are delayed by other work on the
machine, not by the rate, and runs that suffer from it are marked invalid."""
_FIRST_QPS = 16_000.0
_MOST_QPS = 128_000.0
_RUN_S = 0.05
_TRIES = 2
_BUDGET_S = 0.9
_NS_PER_S = 1_000_000_000


def calibrate(
    clock: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Measures the highest rate that this machine can send, in queries/s, within a second.

    This is the highest rate found at which the p99 of the lag to the null target is below 1 ms; it is at
    least ``LEAST_QPS``.

    Rates are doubled or halved until one can be sent and its double cannot; then one in between is tried. A
    rate that fails is tried twice, because other work on the machine is bursty.
    """

    def can_send(rate_qps: float) -> bool:
        """Returns whether a rate can be sent; also False if there is no time left to try."""
        for seed in range(_TRIES):
            if clock() > end_ns:
                return False
            schedule = Schedule.drawn(PoissonArrivals(), rate_qps, Extent(_RUN_S), seed)
            run = run_open_loop(NullTarget(clock), schedule, RunLimits(1000), clock=clock, sleep=sleep)
            if np.percentile(run.queries.lag_ns, 99, method="inverted_cdf") < LAG_P99_NS:
                return True
        return False

    with frozen_heap():
        end_ns = clock() + round(_BUDGET_S * _NS_PER_S)  # a large heap takes long to freeze
        can_send(LEAST_QPS)
        rate_qps = _FIRST_QPS
        while not (found := can_send(rate_qps)) and rate_qps > 2 * LEAST_QPS:
            rate_qps /= 2
        if not found:
            return LEAST_QPS
        while _FIRST_QPS <= rate_qps < _MOST_QPS and can_send(2 * rate_qps):
            rate_qps *= 2
        between_qps = rate_qps * math.sqrt(2)
        return between_qps if rate_qps < _MOST_QPS and can_send(between_qps) else rate_qps


def peak_qps(schedule: Schedule) -> float:
    """Returns the rate in a schedule's busiest second or, if it is shorter, its mean or requested rate."""
    offsets_ns = schedule.offsets_ns
    span_ns = int(offsets_ns[-1] - offsets_ns[0])
    if span_ns < _NS_PER_S:
        return max(schedule.rate_qps, (len(offsets_ns) - 1) * _NS_PER_S / span_ns if span_ns else 0.0)
    within = np.searchsorted(offsets_ns, offsets_ns + _NS_PER_S) - np.arange(len(offsets_ns))
    return float(within.max())


def check_load(rate_qps: float, ceiling_qps: float = 0.0) -> float:
    """Checks that a load is at most half of what this machine can send, and returns what it can send.

    ``ceiling_qps`` is the result of ``calibrate``; 0 if it is not known, as in the result, because any rate
    up to half of ``LEAST_QPS`` is accepted without calibration.

    Raises:
        ConfigurationError: The load is above that limit.
    """
    if rate_qps <= LEAST_QPS * ALLOWED_SHARE:
        return ceiling_qps
    ceiling_qps = ceiling_qps or calibrate()
    allowed_qps = ceiling_qps * ALLOWED_SHARE
    if rate_qps > allowed_qps:
        raise ConfigurationError(
            f"{rate_qps:.0f} queries/s is more than {allowed_qps:.0f}, half of what this machine can send on "
            "time to a system that takes no time; lower the rate, stop other work, or force it with --force"
        )
    return ceiling_qps


MAX_CONCURRENCY = 10_000
_SPIN_NS = 100_000
"""How long before a user's next query is due the loop stops sleeping, because it would wake too late."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A load without a schedule: a fixed number of users, who wait for an answer before the next query.

    Attributes:
        concurrency: The number of users, and of queries in flight if users do not think.
        extent: The length of the load: its duration and number of queries.
        think_s: The time from the end of a query until the next one of its user is due, in seconds.
        follow: Prepares the next query of a user after the one with this number, which is negative before
            the first, and returns what submits it by its own number, or None if the user leaves;
            without it, it is ``QueryTarget.submit``.
        users: When each user begins, in place of ``concurrency`` users who all begin at once.

    Raises:
        ConfigurationError: The concurrency is out of range.
    """

    concurrency: int
    extent: Extent
    think_s: float = 0.0
    follow: Callable[[int], Callable[[int], None] | None] | None = None
    users: Schedule | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigurationError(f"concurrency is {self.concurrency}; allowed: 1…{MAX_CONCURRENCY}")

    def __str__(self) -> str:
        """Returns the text that stands for it in place of an arrival process."""
        thinks = f" who think for {self.think_s:g} s" if self.think_s else ""
        if self.users is not None:
            return f"{self.users.rate_qps:g} new users/s{thinks} ({self.users.source})"
        return f"closed loop, {self.concurrency} {f'users{thinks}' if thinks else 'in flight'}"


def run_closed_loop(
    target: QueryTarget,
    loop: ClosedLoop,
    limits: RunLimits,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] | None = None,
) -> LoadRun:
    """Keeps queries in flight, and waits for the last answers.

    A query is due when it is sent, so there is no lag; if users think, it is due so long after the one before
    ended, and if users come by a schedule, their first one is due by that. A slow answer delays later
    queries: the latency is that of users who wait for each answer, not that at a given rate. A query that
    fails or times out makes room for the next. No backlog ends it; all other rules are as in
    ``issuer.run_open_loop``. The limits have no bound. ``sleep`` waits for a number of seconds or until a
    query is done.
    """
    extent, schedule = loop.extent, Schedule(np.empty(0, np.int64), str(loop), 0.0)
    log = _WakingLog(schedule, clock())
    with frozen_heap(), prompt_wakeups() if sleep is None else nullcontext():
        target.begin(log)
        try:
            log.begin(clock())
            watch = RunWatch(log, limits, None, extent.min_queries if not extent.min_duration_s else 0)
            stop = _issue(target, loop, log, watch, clock, sleep or log.done.wait)
            stop = stop or drain(log, watch, limits, clock, sleep or time.sleep)
            ended_ns = clock()
        finally:
            target.end(0.0)
    return LoadRun.of(log, schedule, stop, ended_ns, limits.timeout_ns)


def _issue(
    target: QueryTarget,
    loop: ClosedLoop,
    log: _WakingLog,
    watch: RunWatch,
    clock: Callable[[], int],
    sleep: Callable[[float], object],
) -> Stop:
    """Sends queries until enough have been sent or the run must stop."""
    extent, think_ns, follow = loop.extent, round(loop.think_s * _NS_PER_S), loop.follow
    least_ns = extent.min_duration_s * _NS_PER_S
    most_ns = float("inf") if extent.max_duration_s is None else extent.max_duration_s * _NS_PER_S
    in_flight, users = set[int](), list[tuple[int, int, Callable[[int], None]]]()

    def next_of(query: int, due_ns: int) -> None:
        if (submit := target.submit if follow is None else follow(query)) is not None:
            heapq.heappush(users, (due_ns, query, submit))

    begin_ns = [0] * loop.concurrency if loop.users is None else loop.users.offsets_ns.tolist()
    for user, offset_ns in enumerate(begin_ns):
        next_of(-1 - user, log.began_ns + offset_ns)
    is_due = bool(think_ns) or loop.users is not None
    while users or in_flight:
        now_ns = clock()
        elapsed_ns = now_ns - log.began_ns
        if (log.sent_count >= extent.min_queries and elapsed_ns >= least_ns) or elapsed_ns >= most_ns:
            return Stop.COMPLETE
        if now_ns >= watch.next_ns:
            if stop := watch.look(now_ns):
                return stop
            log.ended.extend((query, now_ns) for query in in_flight if log.has_timed_out(query))
        log.done.clear()
        while log.ended:
            query, done_ns = log.ended.popleft()
            if query in in_flight:  # it may have been told twice
                in_flight.remove(query)
                next_of(query, done_ns + think_ns)
        if users and users[0][0] <= now_ns:
            due_ns, _, submit = heapq.heappop(users)
            query = log.sent_unscheduled(clock(), due_ns if is_due else None)
            in_flight.add(query)
            submit(query)
        else:
            wake_ns = min([watch.next_ns, *(due_ns - _SPIN_NS for due_ns, _, _ in users[:1])])
            sleep(max(0, wake_ns - now_ns) / _NS_PER_S)
    return Stop.COMPLETE


class _WakingLog(QueryLog):
    """A log that wakes the sending thread when a query is done; ``ended`` has its number, and when."""

    def __init__(self, schedule: Schedule, began_ns: int) -> None:
        super().__init__(schedule, began_ns)
        self.done, self.ended = threading.Event(), deque[tuple[int, int]]()

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Records an answer."""
        super().answered(query, done_ns, **times)
        self.ended.append((query, done_ns))
        self.done.set()

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Records a failure."""
        super().failed(query, done_ns, reason)
        self.ended.append((query, done_ns))
        self.done.set()

    def has_timed_out(self, query: int) -> bool:
        """Returns whether a query has been given up."""
        return bool(self._all.outcome[query] == Outcome.TIMED_OUT)


_BITS = 32
_MASK = (1 << _BITS) - 1
_FACTOR = 0x9E3779B1
"""2³² over the golden ratio: its multiples modulo 2³² are spread evenly (Knuth, TAOCP 3, 6.4)."""
_QUEUE = SpanKind("queue", TraceLevel.APPLICATION_TRACE)


class QuerySample:
    """The sample of a run's queries that are traced, about a ``share`` of them, and the ids of their spans.

    Choosing and stamping a query take one multiplication each, and no memory.
    """

    __slots__ = ("_base", "_context", "_limit", "_offset")

    def __init__(self, context: TraceContext, share: float, seed: Sequence[int]) -> None:
        self._context = context
        self._limit = round(share * (1 << _BITS))
        self._offset = int(np.random.default_rng(seed).integers(1 << _BITS))
        self._base = (secrets.randbits(31) or 1) << _BITS  # as a recorder makes its ids

    def __contains__(self, query: int) -> bool:
        return (query * _FACTOR + self._offset) & _MASK < self._limit

    def span_id(self, query: int) -> int:
        """Returns the id of the span for a query's call."""
        return self._base + query + 1

    def traceparent(self, query: int) -> str:
        """Returns the header that is sent with a query's call."""
        return replace(self._context, span_id=self.span_id(query)).traceparent

    def chosen(self, count: int) -> NDArray[np.int64]:
        """Returns which of the first ``count`` queries are traced: int64, ascending."""
        numbers = np.arange(count, dtype=np.uint64)
        places = (numbers * np.uint64(_FACTOR) + np.uint64(self._offset)) & np.uint64(_MASK)
        return np.flatnonzero(places < self._limit)


@runtime_checkable
class StampingTarget(Protocol):
    """A target that sends each query as a call to a process that can trace it, too."""

    def call_of(self, query: int) -> SpanKind:
        """Returns the kind of span for the call of a query of the last run."""
        ...

    def stamp(self, sample: QuerySample | None) -> None:
        """From now on, sends the trace context with the calls of these queries; None stops that."""
        ...


@runtime_checkable
class RecordingTarget(Protocol):
    """A target that knows the times of what it did for a query in this process."""

    def record(self, query: int, scope: TraceScope, ended_ns: int) -> None:
        """Records the spans of a query of the last run that ended at a time on the clock of the run."""
        ...


@dataclass(eq=False)
class LoadTrace:
    """Records a sample of each run's queries, after the run has ended.

    Attributes:
        scope: The parent of the runs' spans.
        share: The share of the queries that are traced.
        seed: The seed for choosing them.
    """

    scope: TraceScope
    share: float
    seed: int
    _runs: int = 0

    def begin(self, target: object) -> QuerySample:
        """Returns the sample of the next run, with which the target stamps its calls."""
        sample = QuerySample(self.scope.context, self.share, (self.seed, self._runs))
        self._runs += 1
        if isinstance(target, StampingTarget):
            target.stamp(sample)
        return sample

    def record(self, target: object, sample: QuerySample, run: LoadRun) -> None:
        """Records a run, with all that is known about each query in its sample."""
        queries, began_ns = run.queries, run.began_ns
        last_ns = max(int(queries.done_ns.max()), int(queries.sent_ns.max()), 0) if len(queries) else 0
        kind = SpanKind.of("run", TraceLevel.APPLICATION_TRACE, rate_qps=run.rate_qps)
        run_scope = self.scope.add(kind, began_ns, began_ns + last_ns)
        for query in sample.chosen(len(queries)).tolist():
            due_ns, sent_ns, done_ns = (
                int(column[query]) for column in (queries.scheduled_ns, queries.sent_ns, queries.done_ns)
            )
            if sent_ns < 0:
                continue
            outcome = Outcome(int(queries.outcome[query]))
            error = None if outcome is Outcome.ANSWERED else outcome.name.lower()
            done_ns = done_ns if done_ns >= 0 else last_ns
            found = {} if error is None else {"error.type": error}
            kind = SpanKind.of("query", TraceLevel.APPLICATION_TRACE, query=query, **found)
            scope = run_scope.add(kind, began_ns + due_ns, began_ns + done_ns)
            if isinstance(target, StampingTarget):
                call = target.call_of(query)
                failed = replace(call, attributes=tuple(sorted((*call.attributes, *found.items()))))
                of_call = failed if found else ended(call)
                ends_ns, own_id = (began_ns + sent_ns, began_ns + done_ns), sample.span_id(query)
                self.scope.recorder.add(of_call, *ends_ns, scope.parent_id, span_id=own_id)
            elif isinstance(target, RecordingTarget):
                target.record(query, scope, began_ns + done_ns)
            elif error is None:
                times = tuple(int(getattr(queries, name)[query]) for name in _TIMES)
                _record_batch(scope, began_ns + sent_ns, began_ns + done_ns, times)


_TIMES = ("queue_ns", "batch_ns", "predict_ns", "batch_size")


def _record_batch(scope: TraceScope, sent_ns: int, done_ns: int, times: tuple[int, ...]) -> None:
    """Records the wait and the batch of a query in this process; -1 stands for an unknown time."""
    queue_ns, batch_ns, predict_ns, size = times
    if queue_ns < 0:
        return
    begun_ns = min(sent_ns + queue_ns, done_ns)
    scope.add(_QUEUE, sent_ns, begun_ns)
    batch = scope.add(SpanKind.of("batch", TraceLevel.APPLICATION_TRACE, batch_size=size), begun_ns, done_ns)
    if batch_ns >= 0 and predict_ns >= 0:
        predict = SpanKind.of("predict", TraceLevel.MODEL_TRACE, batch_size=size)
        began_ns = min(begun_ns + batch_ns, done_ns)
        batch.add(predict, began_ns, min(began_ns + predict_ns, done_ns))


def reader_of(target: LoadTarget, metrics_urls: str, rate_hz: float) -> ServerReader:
    """Returns what reads the statistics that a target reports, and pages of metrics; see ``ServerReader``."""
    sources, model = {}, target.description.manifest.name
    if isinstance(target, ReportingTarget):
        sources, model = dict(target.statistics_sources()), target.served_name
    return ServerReader(sources | dict(page_sources(metrics_urls, model)), rate_hz)


_WARM_UP_TIMEOUT_MS = 60_000.0


class LoadSession:
    """A session that runs schedules on a target and keeps the resulting runs.

    Args:
        target: The system under test.
        limits: The limits that end a run early, without a bound.
        trace: Records some queries of each run, except for the warm-up; None records none.
        reader: Reads the server's statistics during each run; None reads none.
    """

    def __init__(
        self,
        target: LoadTarget,
        limits: RunLimits,
        trace: LoadTrace | None = None,
        reader: ServerReader | None = None,
    ) -> None:
        self._trace = trace
        self._reader = ServerReader({}) if reader is None else reader
        self._target = target
        self._limits = limits
        self._began_s = time.monotonic()
        self.runs: list[LoadRun] = []

    def warm_up(self, queries: int) -> None:
        """Sends a number of queries at once, and discards their outcomes."""
        if queries:
            schedule = Schedule(np.zeros(queries, np.int64), "warm-up", float(queries))
            limits = RunLimits(_WARM_UP_TIMEOUT_MS, stop_requested=self._limits.stop_requested)
            run_open_loop(self._target, schedule, limits)
        self._began_s = time.monotonic()

    def run(
        self, schedule: Schedule, bound_ns: int | None = None, max_late: int | None = None, name: str = ""
    ) -> LoadRun:
        """Runs a schedule, and keeps the run; see ``RunLimits`` for the other arguments."""
        limits = replace(self._limits, bound_ns=bound_ns, max_late=max_late, name=name)
        return self._kept(partial(run_open_loop, self._target, schedule, limits))

    def keep(self, run: LoadRun, elapsed_s: float) -> None:
        """Keeps a run of an earlier session as if it had ended now, at a time since the warm-up."""
        self.runs.append(run)
        self._began_s = time.monotonic() - elapsed_s

    def run_closed(self, loop: ClosedLoop) -> LoadRun:
        """Runs a closed loop, and keeps the run."""
        return self._kept(partial(run_closed_loop, self._target, loop, self._limits))

    def _kept(self, perform: Callable[[], LoadRun]) -> LoadRun:
        """Performs a run, records the traces of some queries, and keeps the run with the cut of its start."""
        sample = None if self._trace is None else self._trace.begin(self._target)
        with self._reader:
            run = perform()
        if self._trace is not None and sample is not None:
            self._trace.record(self._target, sample, run)
        run = replace(counted(run), server=self._reader.series(run.began_ns))
        self.runs.append(run)
        return run

    def reconnect(self) -> None:
        """Reconnects to the target for the next runs, if it has a connection."""
        self._target.reconnect()

    @property
    def elapsed_s(self) -> float:
        """The time elapsed since the warm-up, in seconds."""
        return time.monotonic() - self._began_s


class MixSession:
    """A session that runs schedules on several targets at once, and keeps the complete probes.

    The limits that end a probe early have the smallest bound.
    """

    def __init__(self, targets: Sequence[LoadTarget], limits: RunLimits) -> None:
        self._targets, self._limits = targets, limits
        self._began_s = time.monotonic()
        self.probes: list[tuple[LoadRun, ...]] = []

    @property
    def elapsed_s(self) -> float:
        """The time elapsed since the session began, in seconds."""
        return time.monotonic() - self._began_s

    def run(
        self, schedules: Sequence[Schedule], late: Sequence[tuple[int, int]], name: str
    ) -> tuple[LoadRun, ...]:
        """Runs a schedule on each target, and keeps the runs; see ``issuer.run_together``."""
        runs = run_together(self._targets, schedules, replace(self._limits, name=name), late=late)
        if runs[0].stop is not Stop.INTERRUPTED:
            self.probes.append(runs)
        return runs

    def reconnect(self) -> None:
        """Reconnects to the targets that have a connection."""
        for target in self._targets:
            target.reconnect()
