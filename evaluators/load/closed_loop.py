"""The closed loop: it keeps a fixed number of queries in flight, and sends the next when one is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inferometer.evaluators.load.arrivals import Extent
from inferometer.evaluators.load.issuer import IssuedRun, RunLimits, RunWatch, Stop, drain, frozen_heap
from inferometer.evaluators.load.queries import QueryLog
from inferometer.evaluators.load.schedule import Schedule
from inferometer.evaluators.load.target import QueryTarget
from inferometer.manifests.errors import ConfigurationError

MAX_CONCURRENCY = 10_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A load without a schedule: a fixed number of queries in flight.

    Attributes:
        concurrency: How many queries are in flight.
        extent: The duration and the number of queries.

    Raises:
        ConfigurationError: The concurrency is out of range.
    """

    concurrency: int
    extent: Extent

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigurationError(f"concurrency is {self.concurrency}; allowed: 1…{MAX_CONCURRENCY}")

    def __str__(self) -> str:
        """Returns its name among the arrival processes."""
        return f"closed loop, {self.concurrency} in flight"


def run_closed_loop(
    target: QueryTarget,
    loop: ClosedLoop,
    limits: RunLimits,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] | None = None,
) -> IssuedRun:
    """Keeps queries in flight, and waits for the last answers.

    A query is due when it is sent, so that there is no lag, and a slow answer delays later queries: the
    latency is that of a number of users who wait for each answer, and not that of a rate. A query that fails
    or times out makes room for the next. No backlog can grow; every other rule is that of
    ``issuer.run_open_loop``.

    Args:
        target: The system under test.
        loop: How many queries are in flight, and how long.
        limits: What ends the run early; without a bound.
        clock: A monotonic clock in nanoseconds, the same as the target's.
        sleep: Waits for seconds, or until a query is done; None for the real one.
    """
    extent = loop.extent
    log = _WakingLog(Schedule(np.empty(0, np.int64), str(loop), 0.0), clock())
    with frozen_heap():
        target.begin(log)
        try:
            log.begin(clock())
            watch = RunWatch(log, limits, None, extent.min_queries if not extent.min_duration_s else 0)
            stop = _issue(target, loop, log, watch, clock, sleep or log.done.wait)
            stop = stop or drain(log, watch, limits, clock, sleep or time.sleep)
            ended_ns = clock()
        finally:
            target.end(0.0)
    return IssuedRun.of(log, stop, ended_ns, limits)


def _issue(
    target: QueryTarget,
    loop: ClosedLoop,
    log: _WakingLog,
    watch: RunWatch,
    clock: Callable[[], int],
    sleep: Callable[[float], object],
) -> Stop:
    """Sends queries until there are enough, or the run must stop."""
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
        log.done.clear()
        if log.waiting < loop.concurrency:
            target.submit(log.sent_unscheduled(clock()))
        else:
            sleep(max(0, watch.next_ns - now_ns) / _NS_PER_S)


class _WakingLog(QueryLog):
    """A log that wakes the thread that sends."""

    def __init__(self, schedule: Schedule, began_ns: int) -> None:
        super().__init__(schedule, began_ns)
        self.done = threading.Event()

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Records an answer."""
        super().answered(query, done_ns, **times)
        self.done.set()

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Records a failure."""
        super().failed(query, done_ns, reason)
        self.done.set()
