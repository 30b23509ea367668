"""The closed loop: so many queries are in flight, and the next is sent when one of them is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evaluators.loadgen.arrivals import Extent
from evaluators.loadgen.issued_run import IssuedRun
from evaluators.loadgen.issuer import drain, frozen_heap
from evaluators.loadgen.query_log import QueryLog
from evaluators.loadgen.run_watch import IssuerProgress, RunLimits, RunWatch, Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.target import QueryTarget
from manifests.errors import ConfigurationError

MAX_CONCURRENCY = 10_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A load without a schedule: so many queries are in flight for so long.

    Attributes:
        concurrency: How many.
        extent: How long queries are sent, and how many.

    Raises:
        ConfigurationError: The concurrency makes no sense.
    """

    concurrency: int
    extent: Extent

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigurationError(f"concurrency is {self.concurrency}; allowed: 1…{MAX_CONCURRENCY}")

    def __str__(self) -> str:
        """How it is named beside the arrival processes."""
        return f"closed loop, {self.concurrency} in flight"


def run_closed_loop(
    target: QueryTarget,
    loop: ClosedLoop,
    *,
    timeout_ms: float,
    bound_ns: int | None = None,
    max_late: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    on_progress: Callable[[IssuerProgress], None] = lambda _: None,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] | None = None,
) -> IssuedRun:
    """Keeps queries in flight, and waits for the last answers.

    A query is due when it is sent, so that there is no lag, and a slow answer lets later queries come later:
    the latency is that of a given number of users who wait for each answer, and not that of a rate. A query
    that fails or is given up makes room for the next. No backlog can grow; every other rule is that of
    ``issuer.run_open_loop``.

    Args:
        target: The system under test.
        loop: How many queries are in flight, and how long.
        timeout_ms: When a query is given up, counted from when it was sent.
        bound_ns: The latency bound, for ``max_late``.
        max_late: The run is stopped once more queries than this are later than the bound.
        stop_requested: Asked four times a second; once it says yes, the run ends.
        on_progress: Told four times a second.
        clock: A monotonic clock in nanoseconds, the same as the target's.
        sleep: Waits for seconds, or until a query is done; None for the real one.
    """
    extent = loop.extent
    limits = RunLimits(timeout_ms, bound_ns, max_late, None, stop_requested, on_progress)
    log = QueryLog(Schedule(np.empty(0, np.int64), str(loop), 0.0), clock())
    answers = _WakingAnswers(log)
    with frozen_heap():
        target.begin(answers)
        try:
            log.begin(clock())
            watch = RunWatch(log, limits, None, extent.min_queries if not extent.min_duration_s else 0)
            stop = _issue(target, loop, log, watch, clock, sleep or answers.wait, answers)
            stop = stop or drain(log, watch, limits, clock, sleep or time.sleep)
            ended_ns = clock()
        finally:
            target.end(0.0)
    return IssuedRun.of(log, stop, ended_ns, limits.timeout_ns, bound_ns)


def _issue(
    target: QueryTarget,
    loop: ClosedLoop,
    log: QueryLog,
    watch: RunWatch,
    clock: Callable[[], int],
    sleep: Callable[[float], None],
    answers: _WakingAnswers,
) -> Stop:
    """Sends queries until there are enough or the run has to stop."""
    extent = loop.extent
    least_ns = extent.min_duration_s * _NS_PER_S
    most_ns = float("inf") if extent.max_duration_s is None else extent.max_duration_s * _NS_PER_S
    while True:
        now_ns = clock()
        elapsed_ns = now_ns - log.began_ns
        if (log.sent_count >= extent.min_queries and elapsed_ns >= least_ns) or elapsed_ns >= most_ns:
            return Stop.COMPLETE
        if now_ns >= watch.next_ns and (stop := watch.look(now_ns)):
            return stop
        answers.forget()
        if log.waiting < loop.concurrency:
            target.submit(log.sent_unscheduled(clock()))
        else:
            sleep(max(0, watch.next_ns - now_ns) / _NS_PER_S)


class _WakingAnswers:
    """Takes answers into the log, and wakes the thread that sends; satisfies ``target.Answers``."""

    def __init__(self, log: QueryLog) -> None:
        self._log = log
        self._done = threading.Event()

    def answered(
        self,
        query: int,
        done_ns: int,
        *,
        queue_ns: int = -1,
        batch_ns: int = -1,
        predict_ns: int = -1,
        batch_size: int = 0,
    ) -> None:
        """Takes an answer."""
        self._log.answered(
            query,
            done_ns,
            queue_ns=queue_ns,
            batch_ns=batch_ns,
            predict_ns=predict_ns,
            batch_size=batch_size,
        )
        self._done.set()

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Takes a failure."""
        self._log.failed(query, done_ns, reason)
        self._done.set()

    def forget(self) -> None:
        """Lets ``wait`` wait for what is done from now on."""
        self._done.clear()

    def wait(self, timeout_s: float) -> None:
        """Waits until a query is done, or for a time."""
        self._done.wait(timeout_s)
