"""The issuer of the open loop, which sends each query when it is due and checks whether to stop the run."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inferometer.evaluators.evaluation import Progress
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, QueryLog, Stop
from inferometer.evaluators.load.target import Answers, QueryTarget
from inferometer.evaluators.load.validity import LEAST_GROWN, backlog, growing, negligible_ns, steady_from_ns
from inferometer.evaluators.statistics import percentile

LOOK_NS = 250_000_000
"""The interval between checks, in nanoseconds."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_LOOKED_AT = 8192
_RECENT = 1000
_GROWING_LOOKS = 3
_SILENT_QUERIES = 50
_PARTS = 8


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits that end a run early, and the receiver of its progress.

    Attributes:
        timeout_ms: The timeout of a query, counted from when it was due.
        bound_ns: The latency bound, to which ``max_late`` applies; also sets how punctually queries are sent.
        max_late: The number of queries that may exceed the bound before the run stops.
        stop_requested: Called four times a second; the run ends once it returns True.
        on_progress: Called four times a second, in the thread that sends: it must return at once.
        name: The name of the run in its progress; empty for none.
    """

    timeout_ms: float
    bound_ns: int | None = None
    max_late: int | None = None
    stop_requested: Callable[[], bool] = lambda: False
    on_progress: Callable[[Progress], None] = lambda _: None
    name: str = ""

    @property
    def timeout_ns(self) -> int:
        """The timeout in nanoseconds."""
        return round(self.timeout_ms * _NS_PER_MS)


class RunWatch:
    """The watch over a run, which checks it four times a second in the thread that sends its queries.

    It has no thread of its own, which on two cores would compete with the one that sends. A check takes at
    most half a millisecond, however long the run is: of more than 8,192 queries, only every k-th is checked.

    The backlog grows without end if three checks in a row find that ``validity.growing`` holds, and that it
    would not drain before the schedule ends even if answers continued at their best rate in the last two
    thirds of the run: neither a burst that is longer than the run so far nor a stall that is over is a reason
    to stop. A query that is due but could not be sent is counted, too. At 50 % above the capacity, this takes
    some 500 queries; at 10 %, some 6,000. An excess of less than 5 % may not be found.

    A closed loop has no backlog, and a ``schedule`` of None. Progress is that of ``total`` queries.
    """

    def __init__(self, log: QueryLog, limits: RunLimits, schedule: Schedule | None, total: int) -> None:
        self.next_ns = log.began_ns + LOOK_NS
        self._log = log
        self._limits = limits
        self._due_ns = np.empty(0, np.int64) if schedule is None else schedule.offsets_ns
        self._target_qps = 0.0 if schedule is None else schedule.rate_qps
        self._total = total
        self._growing = 0
        self._last_ns, self._last_answered = log.began_ns, 0
        self._settled = 0
        self._silent_ns, self._silent_sent = log.began_ns, 0

    def look(self, now_ns: int) -> Stop:
        """Returns why the run has to stop; ``COMPLETE``, which is falsy, if it continues."""
        log, limits = self._log, self._limits
        self.next_ns = now_ns + LOOK_NS
        if log.replied_count != self._settled or not log.sent_count:  # the last outcome
            self._settled = log.replied_count
            self._silent_ns, self._silent_sent = now_ns, log.sent_count
        log.expire(now_ns, limits.timeout_ns)
        self._report(now_ns)
        if limits.stop_requested():
            return Stop.INTERRUPTED
        elapsed_ns = now_ns - log.began_ns
        if (
            limits.max_late is not None
            and limits.bound_ns is not None
            and log.late(now_ns, limits.bound_ns) > limits.max_late
        ):
            return Stop.HOPELESS
        silent_ns, silent = now_ns - self._silent_ns, log.sent_count - self._silent_sent
        if silent_ns > limits.timeout_ns and silent >= _SILENT_QUERIES:
            return Stop.SILENT
        self._growing = self._growing + 1 if self._grows(elapsed_ns) else 0
        return Stop.BACKLOG if self._growing >= _GROWING_LOOKS else Stop.COMPLETE

    def _report(self, now_ns: int) -> None:
        """Reports the right answers per second since the last check, and the latency of the last queries.

        A query without an answer counts with its age, and one that is due but not sent as waiting.
        """
        log = self._log
        sent, answered = log.sent_count, log.answered_count
        elapsed_ns = now_ns - log.began_ns
        passed_ns = max(1, now_ns - self._last_ns)
        rate_qps = (answered - self._last_answered) * _NS_PER_S / passed_ns
        self._last_ns, self._last_answered = now_ns, answered
        recent = log.queries(max(0, sent - _RECENT), sent)
        right = recent.outcome == Outcome.ANSWERED
        latency_ns = np.where(right, recent.done_ns, elapsed_ns) - recent.scheduled_ns
        waiting = log.waiting + max(0, self._due(elapsed_ns) - sent)
        name = f"{self._limits.name}  " if self._limits.name else ""
        at = f"at {self._target_qps:.4g} queries/s  " if self._target_qps else ""
        total = f"/{self._total}" if self._total else ""
        p99 = f"  p99 {percentile(latency_ns, 99) / _NS_PER_MS:.1f} ms" if len(latency_ns) else ""
        line = (
            f"{name}{at}{elapsed_ns / _NS_PER_S:5.1f} s  {sent}{total} sent  {rate_qps:.1f} answers/s{p99}  "
            f"backlog {waiting}"
        )
        self._limits.on_progress(Progress(sent, self._total, "", line))

    def _due(self, elapsed_ns: int) -> int:
        """Returns how many queries of the schedule are due; 0 for a closed loop."""
        return int(np.searchsorted(self._due_ns, elapsed_ns, "right"))

    def _grows(self, elapsed_ns: int) -> bool:
        """Returns whether the backlog is growing and will not drain before the schedule ends."""
        due = self._due(elapsed_ns)
        if due - self._log.replied_count <= LEAST_GROWN:  # most often; what follows takes a millisecond
            return False
        step = -(-due // _LOOKED_AT) or 1
        queries = self._log.queries(0, due, step)
        queries.outcome[queries.outcome == Outcome.UNSENT] = Outcome.WAITING
        return growing(queries, elapsed_ns) and not self._drains(queries, step, due, elapsed_ns)

    def _drains(self, queries: Queries, step: int, due: int, elapsed_ns: int) -> bool:
        """Returns whether the backlog would drain eventually, at the best rate of answers so far.

        That is the rate in the best eighth of the last two thirds of the run, so a stall that is over does
        not count. If it exceeds the rate of arrivals, the backlog drains, even if after the schedule ends.
        """
        edges_ns = np.linspace(elapsed_ns // 3, elapsed_ns, _PARTS + 1).astype(np.int64)
        waiting = backlog(queries, edges_ns)
        come = np.diff(np.searchsorted(queries.scheduled_ns, edges_ns, "right"))
        left_per_ns = float(np.max((come - np.diff(waiting)) / np.diff(edges_ns)))
        if left_per_ns > come.sum() / (elapsed_ns - edges_ns[0]):
            return True
        ahead_ns = self._due_ns[due:]
        stride = -(-len(ahead_ns) // _LOOKED_AT) or 1
        ahead_ns = ahead_ns[::stride] - elapsed_ns
        backlog_then = waiting[-1] + np.arange(len(ahead_ns)) * (stride / step) - left_per_ns * ahead_ns
        return bool(np.any(backlog_then <= 0))


_MOST_SPIN_NS = 150_000
_FIRST_SPIN_NS = 75_000
_SPIN_STEP_NS = 1_000
"""The step by which the time to spin follows the median lateness of wake-ups.

On a virtual machine, this lateness is 30 to 50 µs, or 90 µs if timers have slack.
"""
_SPIN_SHARE = 4
_LEAD_NS = 1_000_000
_LOOK_ROOM_NS = 1_000_000
_LOOK_LATEST_NS = 100_000_000
_DRAIN_NS = 2_000_000
_CHUNK = 4096


def run_open_loop(
    target: QueryTarget,
    schedule: Schedule,
    limits: RunLimits,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> LoadRun:
    """Sends the queries of a schedule to a target, and waits for the answers.

    A query is sent when it is due, and never waits for an answer. If the issuer is late, the queries that are
    due follow at once; their latency is measured from when they were due. The run waits for answers until the
    last query times out; a run that was stopped does not wait for answers.

    The issuer sleeps until shortly before a query is due, and then spins: for the median lateness of its
    wake-ups so far, or for 150 µs if the bound does not allow such a lag, but for at most a quarter of the
    time since the previous query. The rest of the core's time, and the interpreter, are left to the system
    under test and to the answers.

    The run is checked four times a second, if possible between two queries that are more than 1 ms apart. It
    stops if a stop is requested, if too many queries are late, if none of at least 50 queries is answered
    within one timeout, or if the backlog grows without end (see ``RunWatch``). ``clock`` is a monotonic clock
    in nanoseconds, the same as the target's.
    """
    log = QueryLog(schedule, clock())
    stop, ended_ns = _sent_and_awaited(target, schedule, log, limits, clock, sleep)
    return LoadRun.of(log, schedule, stop, ended_ns, limits.timeout_ns)


def run_together(
    targets: Sequence[QueryTarget],
    schedules: Sequence[Schedule],
    limits: RunLimits,
    *,
    late: Sequence[tuple[int, int]] = (),
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[LoadRun, ...]:
    """Sends the queries of several schedules, each to its own target, and returns the run of each.

    One thread sends all queries in the order in which they are due, so none waits for another thread that
    sends. The rules are those of ``run_open_loop`` for all queries together: the run stops for a backlog only
    if that of all targets together grows. The runs are those of ``counted``.

    For each target, ``late`` has a bound in nanoseconds, and the number of queries that may exceed it before
    the run stops, instead of that of ``limits``.
    """
    offsets_ns = np.concatenate([each.offsets_ns for each in schedules])
    order = np.argsort(offsets_ns, kind="stable")
    places = np.repeat(np.arange(len(schedules)), [len(each) for each in schedules])[order]
    source = " + ".join(each.source for each in schedules)
    merged = Schedule(offsets_ns[order], source, sum(each.rate_qps for each in schedules))
    whole = QueryLog(merged, clock())
    logs = [
        _LogOfOne(target, schedule, whole, np.flatnonzero(places == place).tolist())
        for place, (target, schedule) in enumerate(zip(targets, schedules, strict=True))
    ]
    together = _Targets(logs, places.tolist(), clock)

    def hopeless() -> bool:
        now_ns = clock()
        return any(log.late(now_ns, ns) > most for log, (ns, most) in zip(logs, late, strict=False))

    watched = replace(limits, stop_requested=lambda: limits.stop_requested() or hopeless())
    stop, ended_ns = _sent_and_awaited(together, merged, whole, watched, clock, sleep)
    if stop is Stop.INTERRUPTED and hopeless():
        stop = Stop.HOPELESS
    return tuple(
        counted(LoadRun.of(log, schedule, stop, ended_ns, limits.timeout_ns))
        for log, schedule in zip(logs, schedules, strict=True)
    )


def counted(run: LoadRun) -> LoadRun:
    """Returns the run without the queries that were due after it stopped, and with the cut of its start."""
    queries = run.queries.chosen(run.queries.outcome != Outcome.UNSENT)
    return replace(run, queries=queries, cut_ns=steady_from_ns(queries))


class _LogOfOne(QueryLog):
    """The log of one of several targets, which passes outcomes on to the log of the ``whole`` run.

    ``numbers`` are those of its queries in the whole run.
    """

    def __init__(
        self, target: QueryTarget, schedule: Schedule, whole: QueryLog, numbers: Sequence[int]
    ) -> None:
        super().__init__(schedule, whole.began_ns)
        self.target, self._whole, self._numbers = target, whole, numbers

    def submit(self, now_ns: int) -> None:
        """Sends the next query to the target."""
        query, self.began_ns = self.sent_count, self._whole.began_ns
        self.sent(query, now_ns)
        self.target.submit(query)

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Records an answer."""
        super().answered(query, done_ns, **times)
        self._whole.answered(self._numbers[query], done_ns)

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Records a failure."""
        super().failed(query, done_ns, reason)
        self._whole.failed(self._numbers[query], done_ns, reason)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Several targets as one; satisfies ``target.QueryTarget``. ``places`` has the target of each query."""

    logs: Sequence[_LogOfOne]
    places: Sequence[int]
    clock: Callable[[], int]

    def begin(self, answers: Answers) -> None:
        """Begins the run of each target, whose outcomes go to its own log."""
        for log in self.logs:
            log.target.begin(log)

    def submit(self, query: int) -> None:
        """Passes a query to its target."""
        self.logs[self.places[query]].submit(self.clock())

    def end(self, timeout_s: float) -> None:
        """Ends the runs in reverse order, as each restores what it found when it began."""
        for log in reversed(self.logs):
            log.target.end(timeout_s)


def _sent_and_awaited(
    target: QueryTarget,
    schedule: Schedule,
    log: QueryLog,
    limits: RunLimits,
    clock: Callable[[], int],
    sleep: Callable[[float], None],
) -> tuple[Stop, int]:
    """Sends the queries and waits for the answers; returns why the run ended, and when."""
    with frozen_heap(), prompt_wakeups() if sleep is time.sleep else nullcontext():
        target.begin(log)
        try:
            log.begin(clock() + _LEAD_NS)
            watch = RunWatch(log, limits, schedule, len(schedule))
            pacer = _Pacer(watch, negligible_ns(limits.bound_ns), clock, sleep)
            stop = _issue(target, schedule, log, pacer) or drain(log, watch, limits, clock, sleep)
            return stop, clock()
        finally:
            target.end(0.0)


def _issue(target: QueryTarget, schedule: Schedule, log: QueryLog, pacer: _Pacer) -> Stop:
    """Sends the queries until all are sent or the run must stop."""
    began_ns, offsets_ns = log.began_ns, schedule.offsets_ns
    submit, sent, wait_until = target.submit, log.sent, pacer.wait_until
    for first in range(0, len(offsets_ns), _CHUNK):
        # Python integers of one chunk at a time: those of a whole run would take four times its arrays
        for query, offset_ns in enumerate(offsets_ns[first : first + _CHUNK].tolist(), first):
            now_ns = wait_until(began_ns + offset_ns)
            if pacer.stop:
                return pacer.stop
            sent(query, now_ns)
            submit(query)
    return Stop.COMPLETE


class _Pacer:
    """The pacer, which waits until each query is due and has the run checked by ``watch`` meanwhile.

    A lag of ``negligible_ns`` changes no result; see ``validity.negligible_ns``.
    """

    def __init__(
        self, watch: RunWatch, negligible_ns: float, clock: Callable[[], int], sleep: Callable[[float], None]
    ) -> None:
        self.stop = Stop.COMPLETE
        """The reason why the run must stop; ``COMPLETE`` until it must."""
        self._watch = watch
        self._clock = clock
        self._sleep = sleep
        self._previous_ns = 0
        self._least_spin_ns = _MOST_SPIN_NS if negligible_ns < 2 * _MOST_SPIN_NS else 0
        self._spin_ns = max(_FIRST_SPIN_NS, self._least_spin_ns)

    def wait_until(self, due_ns: int) -> int:
        """Waits, then returns the time, which is not before ``due_ns`` unless the run must stop."""
        clock, watch = self._clock, self._watch
        spin_ns = min(self._spin_ns, (due_ns - self._previous_ns) // _SPIN_SHARE)
        self._previous_ns = due_ns
        while (now_ns := clock()) < due_ns:
            # a check on time if this gap has room for one, or else in a later gap
            if watch.next_ns < due_ns - _LOOK_ROOM_NS:
                if now_ns >= watch.next_ns:
                    if self._look(now_ns):
                        return now_ns
                    continue
                sleep_ns = watch.next_ns - now_ns
            else:
                sleep_ns = due_ns - spin_ns - now_ns
            if sleep_ns > 0:
                self._sleep(sleep_ns / _NS_PER_S)
                late = clock() - now_ns - sleep_ns > self._spin_ns
                wanted_ns = self._spin_ns + (_SPIN_STEP_NS if late else -_SPIN_STEP_NS)
                self._spin_ns = min(max(wanted_ns, self._least_spin_ns), _MOST_SPIN_NS)
        if now_ns >= watch.next_ns + _LOOK_LATEST_NS:
            # there was no such gap for a tenth of a second: a query must wait for the check
            self._look(now_ns)
            now_ns = clock()
        return now_ns

    def _look(self, now_ns: int) -> Stop:
        self.stop = self._watch.look(now_ns)
        return self.stop


def drain(
    log: QueryLog,
    watch: RunWatch,
    limits: RunLimits,
    clock: Callable[[], int],
    sleep: Callable[[float], None],
) -> Stop:
    """Waits until every query that was sent has its outcome or has timed out.

    Returns why the run had to stop meanwhile; ``COMPLETE`` if it did not.
    """
    sent = log.sent_count
    last_ns = log.began_ns + int(log.scheduled_ns[sent - 1]) if sent else 0
    while log.waiting and (now_ns := clock()) <= last_ns + limits.timeout_ns:
        if now_ns >= watch.next_ns and (stop := watch.look(now_ns)):
            return stop
        sleep(_DRAIN_NS / _NS_PER_S)
    return Stop.COMPLETE


@contextmanager
def prompt_wakeups() -> Iterator[None]:
    """Makes this thread, but none that it starts, run as soon as it is due; has an effect only on Linux.

    By default, the kernel lets a thread sleep for up to 50 µs longer, and one that runs keep the core for
    milliseconds. Real-time priority ends that: root may set it, and users with a limit of ``rtprio``.
    """
    slack = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
    with ExitStack() as restored:
        with suppress(OSError):
            before = slack.read_text()
            slack.write_text("1")
            restored.callback(slack.write_text, before)
        with suppress(OSError, AttributeError):
            old = os.sched_getscheduler(0) | os.SCHED_RESET_ON_FORK, os.sched_getparam(0)
            priority = os.sched_param(max(1, old[1].sched_priority))
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, priority)
            restored.callback(os.sched_setscheduler, 0, *old)
        yield


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keeps collections of cyclic garbage short during a run.

    With a framework imported, a full collection takes tens of milliseconds during which all threads wait,
    which would appear as the system's latency. The heap is collected before a run, and then excluded from
    later collections. They stay enabled, because the garbage of the run itself would otherwise accumulate.
    """
    gc.collect()
    already_frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not already_frozen:
            gc.unfreeze()
