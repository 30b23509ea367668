"""The issuer: hands queries over when they are due, whatever became of those before them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evaluators.loadgen.issued_run import IssuedRun
from evaluators.loadgen.query_log import QueryLog
from evaluators.loadgen.run_watch import IssuerProgress, RunLimits, RunWatch, Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.target import QueryTarget

SPIN_NS = 150_000
"""How long before a query is due the issuer stops sleeping, at the most.

A thread wakes up later than it asked for: on a virtual machine with two cores by 90 µs in the median and by
130 µs at the 90th percentile.
"""
_SPIN_SHARE = 4
_LEAD_NS = 1_000_000
_LOOK_ROOM_NS = 1_000_000
_LOOK_LATEST_NS = 100_000_000
_DRAIN_NS = 2_000_000
_CHUNK = 4096
_NS_PER_S = 1_000_000_000


def run_open_loop(
    target: QueryTarget,
    schedule: Schedule,
    *,
    timeout_ms: float,
    bound_ns: int | None = None,
    max_late: int | None = None,
    max_duration_s: float | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    on_progress: Callable[[IssuerProgress], None] = lambda _: None,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
    spin_ns: int = SPIN_NS,
) -> IssuedRun:
    """Puts a schedule on a target, and waits for the answers.

    A query is handed over at its own time, and never waits for an answer. Where the issuer is late, the
    queries that are due follow at once; their latency counts from when they were due. Answers are waited for
    until the last query is given up; a run that was stopped waits for none.

    The issuer sleeps until shortly before a query is due, and then spins for at most a quarter of the time
    since the query before: the rest of the core, and the interpreter, are left to the system under test.

    The run is looked after four times a second, between two queries that are more than 1 ms apart if there
    are any. It is stopped when that is requested, when it has taken too long, when too many queries were
    late, when a timeout passed in which none of at least 50 queries was answered, and when the backlog grows
    without end (see ``RunWatch``).

    Args:
        target: The system under test.
        schedule: When queries are due.
        timeout_ms: When a query is given up, counted from when it was due.
        bound_ns: The latency bound; it judges the harness's lag, and what ``max_late`` counts.
        max_late: The run is stopped once more queries than this are later than the bound.
        max_duration_s: The run is stopped after so long.
        stop_requested: Asked four times a second; once it says yes, the run ends.
        on_progress: Told four times a second, in the thread that sends: it has to return at once.
        clock: A monotonic clock in nanoseconds, the same as the target's.
        sleep: Sleeps for seconds.
        spin_ns: How long before a query is due it stops sleeping, at the most.
    """
    limits = RunLimits(timeout_ms, bound_ns, max_late, max_duration_s, stop_requested, on_progress)
    log = QueryLog(schedule, clock())
    with frozen_heap():
        target.begin(log)
        try:
            log.begin(clock() + _LEAD_NS)
            watch = RunWatch(log, limits, schedule, len(schedule))
            pacer = _Pacer(watch, clock, sleep, spin_ns)
            stop = _issue(target, schedule, log, pacer) or drain(log, watch, limits, clock, sleep)
            ended_ns = clock()
        finally:
            target.end(0.0)
    return IssuedRun.of(log, stop, ended_ns, limits.timeout_ns, bound_ns)


def _issue(target: QueryTarget, schedule: Schedule, log: QueryLog, pacer: _Pacer) -> Stop:
    """Hands the queries over, until the last or until the run has to stop."""
    began_ns, offsets_ns = log.began_ns, schedule.offsets_ns
    submit, sent, wait_until = target.submit, log.sent, pacer.wait_until
    for first in range(0, len(offsets_ns), _CHUNK):
        # Python's integers a piece at a time: those of a whole run would be four times its arrays
        for query, offset_ns in enumerate(offsets_ns[first : first + _CHUNK].tolist(), first):
            now_ns = wait_until(began_ns + offset_ns)
            if pacer.stop:
                return pacer.stop
            sent(query, now_ns)
            submit(query)
    return Stop.COMPLETE


class _Pacer:
    """Waits for the time of each query, and has the run looked after while it waits."""

    def __init__(
        self, watch: RunWatch, clock: Callable[[], int], sleep: Callable[[float], None], spin_ns: int
    ) -> None:
        self.stop = Stop.COMPLETE
        """Why the run has to stop, once it has to."""
        self._watch = watch
        self._clock = clock
        self._sleep = sleep
        self._spin_ns = spin_ns
        self._previous_ns = 0

    def wait_until(self, due_ns: int) -> int:
        """Returns the time, which is not before ``due_ns`` unless the run has to stop."""
        clock, watch = self._clock, self._watch
        spin_ns = min(self._spin_ns, (due_ns - self._previous_ns) // _SPIN_SHARE)
        self._previous_ns = due_ns
        while (now_ns := clock()) < due_ns:
            # a look in time if this gap has room for one, and else in a later gap
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
        if now_ns >= watch.next_ns + _LOOK_LATEST_NS:
            # there was no such gap for a tenth of a second: a query has to wait for the look
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
    """Waits until each query that was sent has its outcome, or has to be given up.

    Returns:
        Why the run had to stop while it waited.
    """
    sent = log.sent_count
    last_ns = log.began_ns + int(log.scheduled_ns[sent - 1]) if sent else 0
    while log.waiting and (now_ns := clock()) <= last_ns + limits.timeout_ns:
        if now_ns >= watch.next_ns and (stop := watch.look(now_ns)):
            return stop
        sleep(_DRAIN_NS / _NS_PER_S)
    return Stop.COMPLETE


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keeps collections of cyclic garbage short while load goes on.

    With a framework imported a full collection takes tens of milliseconds, and all threads wait: it would be
    charged to the system under test. What there is before a run is collected, and then left out of later
    collections. They are not switched off: what a run itself leaves behind would otherwise pile up.
    """
    gc.collect()
    already_frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not already_frozen:
            gc.unfreeze()
