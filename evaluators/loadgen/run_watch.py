"""The watch over a run: gives queries up, says when the run has to stop, and tells how it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.query_log import QueryLog
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.steady_state import backlog, growing
from evaluators.statistics import percentile

LOOK_NS = 250_000_000
"""How long it is from one look to the next."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_LOOKED_AT = 8192
_RECENT = 1000
_GROWING_LOOKS = 3
_SILENT_QUERIES = 50
_PARTS = 8


class Stop(str, Enum):
    """Why a run ended."""

    COMPLETE = ""
    INTERRUPTED = "interrupted"
    HOPELESS = "too many queries were late"
    BACKLOG = "the backlog grew without end"
    SILENT = "no query was answered for as long as the timeout"
    OVER_TIME = "it took too long"


@dataclass(frozen=True, slots=True)
class IssuerProgress:
    """How a run goes.

    Attributes:
        sent: Queries sent.
        total: Of how many; 0 where that is not known.
        waiting: Queries that are due, or sent, and have no outcome yet.
        elapsed_s: The time since the run began.
        rate_qps: Right answers in a second since the look before.
        p99_ns: The 99th percentile of the latency of the last 1,000 queries; one without an answer has at
            least its age. None before the first.
    """

    sent: int
    total: int
    waiting: int
    elapsed_s: float
    rate_qps: float = 0.0
    p99_ns: float | None = None


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What ends a run before its time, and who is told of it; see ``issuer.run_open_loop``."""

    timeout_ms: float
    bound_ns: int | None = None
    max_late: int | None = None
    max_duration_s: float | None = None
    stop_requested: Callable[[], bool] = lambda: False
    on_progress: Callable[[IssuerProgress], None] = lambda _: None

    @property
    def timeout_ns(self) -> int:
        """When a query is given up, counted from when it was due."""
        return round(self.timeout_ms * _NS_PER_MS)


class RunWatch:
    """Looks after a run four times a second, in the thread that sends its queries.

    No thread of its own: on two cores it would take the interpreter from the one that sends. A look costs
    the same however long the run is, about half a millisecond at the most: of more than 8,192 queries every
    k-th is looked at.

    The backlog grows without end where three looks in a row find that ``steady_state.growing`` holds, and
    that it would not be gone before the schedule ends if answers went on as they came at their best in the
    last two thirds of the run: neither a burst that is longer than the run so far nor a stall that is over
    is a reason to stop. A query that is due and could not be sent counts to the backlog. Above the capacity
    by half, this takes some 500 queries, by a tenth some 6,000. An excess of less than 5 % may not be found.

    Args:
        log: Of the run.
        limits: What ends it.
        schedule: When queries are due; None for a closed loop, which has no backlog.
        total: Of how many queries progress tells.
    """

    def __init__(self, log: QueryLog, limits: RunLimits, schedule: Schedule | None, total: int) -> None:
        self.next_ns = log.began_ns + LOOK_NS
        self._log = log
        self._limits = limits
        self._due_ns = np.empty(0, np.int64) if schedule is None else schedule.offsets_ns
        self._total = total
        self._growing = 0
        self._last_ns, self._last_answered = log.began_ns, 0
        self._settled = 0
        self._silent_ns, self._silent_sent = log.began_ns, 0

    def look(self, now_ns: int) -> Stop:
        """Returns why the run has to stop; ``COMPLETE``, which is false, where it goes on."""
        log, limits = self._log, self._limits
        self.next_ns = now_ns + LOOK_NS
        self._note_silence(now_ns)
        log.expire(now_ns, limits.timeout_ns)
        self._tell(now_ns)
        if limits.stop_requested():
            return Stop.INTERRUPTED
        elapsed_ns = now_ns - log.began_ns
        if limits.max_duration_s is not None and elapsed_ns >= limits.max_duration_s * _NS_PER_S:
            return Stop.OVER_TIME
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

    def _note_silence(self, now_ns: int) -> None:
        """Notes since when, and since which query, nothing has come back."""
        replied = self._log.replied_count
        if replied != self._settled or not self._log.sent_count:
            self._settled = replied
            self._silent_ns, self._silent_sent = now_ns, self._log.sent_count

    def _tell(self, now_ns: int) -> None:
        log = self._log
        sent, answered = log.sent_count, log.answered_count
        elapsed_ns = now_ns - log.began_ns
        passed_ns = max(1, now_ns - self._last_ns)
        rate_qps = (answered - self._last_answered) * _NS_PER_S / passed_ns
        self._last_ns, self._last_answered = now_ns, answered
        recent = log.queries(max(0, sent - _RECENT), sent)
        right = recent.outcome == Outcome.ANSWERED
        latency_ns = np.where(right, recent.done_ns, elapsed_ns) - recent.scheduled_ns
        unsent = self._due(elapsed_ns) - sent
        self._limits.on_progress(
            IssuerProgress(
                sent=sent,
                total=self._total,
                waiting=log.waiting + max(0, unsent),
                elapsed_s=elapsed_ns / _NS_PER_S,
                rate_qps=rate_qps,
                p99_ns=percentile(latency_ns, 99) if len(latency_ns) else None,
            )
        )

    def _due(self, elapsed_ns: int) -> int:
        """How many queries of the schedule are due; none of a closed loop."""
        return int(np.searchsorted(self._due_ns, elapsed_ns, "right"))

    def _grows(self, elapsed_ns: int) -> bool:
        """Whether the backlog grows, and will not be gone before the schedule ends."""
        due = self._due(elapsed_ns)
        if not due:
            return False
        step = -(-due // _LOOKED_AT) or 1
        queries = self._log.queries(0, due, step)
        queries.outcome[queries.outcome == Outcome.UNSENT] = Outcome.WAITING
        return growing(queries, elapsed_ns) and not self._drains(queries, step, due, elapsed_ns)

    def _drains(self, queries: Queries, step: int, due: int, elapsed_ns: int) -> bool:
        """Whether the queries that wait would be gone at some time, if answers went on at their best.

        That is as they came in the best eighth of the last two thirds of the run, so that a stall which is
        over counts for nothing. Where this is more than what came in the meantime, the backlog has an end,
        be it after that of the schedule.
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
