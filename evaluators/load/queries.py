"""The queries of a run under load, stored in columns; the log that fills them; and how the run ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.server_statistics import ServerSeries
from inferometer.evaluators.statistics import NEVER_NS


class Outcome(IntEnum):
    """The outcome of a query. Only a query with a right answer can be in time."""

    UNSENT = 0
    """The query was due after the run stopped; it is excluded from all figures."""
    WAITING = 1
    """The query had not been answered when the run ended."""
    ANSWERED = 2
    FAILED = 3
    TIMED_OUT = 4
    """There was no answer within the timeout; a later answer is ignored."""


class Stop(str, Enum):
    """Why a run ended."""

    COMPLETE = ""
    INTERRUPTED = "interrupted"
    HOPELESS = "too many queries were late"
    BACKLOG = "the backlog grew without end"
    SILENT = "no query was answered for as long as the timeout"


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """The queries of one run in columns of n values; times are in nanoseconds since the run began.

    Attributes:
        scheduled_ns: int64, ascending; when each query was due.
        sent_ns: int64; when it was sent to the system under test; -1 if it was not sent.
        done_ns: int64; when it was answered or failed; -1 if neither.
        outcome: int64; see ``Outcome``.
        queue_ns: int64; how long it waited for its batch to begin; -1 if unknown.
        predict_ns: int64; how long its batch's prediction took; -1 if unknown.
        batch_size: int64; the queries in its batch; 0 if unknown.
        repeated: The number of answers to queries that already had one.
        batch_ns: int64; how long its batch was assembled, until the prediction began; -1 if unknown, which
            is the default.
    """

    scheduled_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.int64]
    queue_ns: NDArray[np.int64]
    predict_ns: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    repeated: int = 0
    batch_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        if not len(self.batch_ns) and len(self):
            object.__setattr__(self, "batch_ns", np.full(len(self), -1, np.int64))

    def __len__(self) -> int:
        """Returns the number of queries."""
        return len(self.scheduled_ns)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """int64; the time from when a query was due to its answer; ``NEVER_NS`` if it has no right answer.

        It is measured from the scheduled time, so a query that had to wait before it could be sent is as late
        as it would appear to its user (no coordinated omission).
        """
        answered = self.outcome == Outcome.ANSWERED
        latency: NDArray[np.int64] = np.where(answered, self.done_ns - self.scheduled_ns, NEVER_NS)
        return latency

    @property
    def lag_ns(self) -> NDArray[np.int64]:
        """int64; how long after it was due each sent query was sent: the harness's own delay."""
        sent = self.sent_ns >= 0
        lag: NDArray[np.int64] = self.sent_ns[sent] - self.scheduled_ns[sent]
        return lag

    @property
    def unqueued(self) -> NDArray[np.bool_]:
        """bool; whether a query found the system idle because all queries before it had been settled."""
        none = np.zeros(1, np.int64)
        free_ns = np.concatenate([none, np.maximum.accumulate(self.done_ns)])[: len(self)]
        waiting = np.concatenate([none, np.cumsum(self.outcome == Outcome.WAITING)])[: len(self)]
        found: NDArray[np.bool_] = (self.sent_ns >= free_ns) & (waiting == 0)
        return found

    def from_sending(self) -> Queries:
        """Returns the queries of a whole run that were sent, with latencies measured from sending.

        If a query waited behind others, its latency also excludes the lag of the query that found the system
        idle and so began that queue. Without the lag, a system that serves in order would have answered
        sooner by no more than this (by induction over Lindley's recursion, 1952). The burst that follows a
        stall of the harness is then not attributed to the system.
        """
        was_sent = self.sent_ns >= 0
        lag_ns = np.where(was_sent, self.sent_ns - self.scheduled_ns, 0)
        began = np.maximum.accumulate(np.where(self.unqueued, np.arange(len(self)), 0))
        from_ns = self.scheduled_ns + np.maximum(lag_ns, lag_ns[began])
        from_ns = np.where(self.done_ns >= 0, np.minimum(from_ns, self.done_ns), from_ns)
        return replace(self, scheduled_ns=from_ns).chosen(was_sent)

    @property
    def due_at_once(self) -> bool:
        """Whether all queries were due at the same time, as in MLPerf's offline scenario.

        A latency then measures the work done before a query rather than the query itself: percentiles depend
        on the number of queries, and the order of queries gives no estimate of a sampling error.
        """
        return len(self) > 1 and bool(self.scheduled_ns[0] == self.scheduled_ns[-1])

    def count(self, outcome: Outcome) -> int:
        """Returns the number of queries with an outcome."""
        return int(np.count_nonzero(self.outcome == outcome))

    def since(self, offset_ns: int) -> Queries:
        """Returns the queries that were due at or after a time."""
        return self.chosen(self.scheduled_ns >= offset_ns)

    def chosen(self, places: NDArray[np.bool_]) -> Queries:
        """Returns a selection of the queries; ``places``, bool, n, tells whether to include each."""
        return replace(self, **{name: getattr(self, name)[places] for name in QUERY_COLUMNS})


QUERY_COLUMNS = {"scheduled_ns": NEVER_NS, "sent_ns": -1, "done_ns": -1, "outcome": 0, "queue_ns": -1}
QUERY_COLUMNS |= {"predict_ns": -1, "batch_size": 0, "batch_ns": -1}
"""The columns, in order, with their values for a query that was not sent."""
LATER_COLUMNS = frozenset({"batch_ns"})
"""Columns that earlier versions of the program did not store."""
_UNSENT, _WAITING, _ANSWERED, _FAILED, _TIMED_OUT = map(int, Outcome)


def _unsent(count: int) -> Queries:
    return Queries(**{n: np.full(count, value, np.int64) for n, value in QUERY_COLUMNS.items()}, repeated=0)


class QueryLog:
    """A thread-safe log of the times and the outcome of each query; satisfies ``target.Answers``.

    Memory is allocated in advance: logging a query takes a few stores into arrays. Queries are sent in order.

    Attributes:
        sent_count: The number of queries that were sent.
        answered_count: The number of queries with a right answer.
    """

    def __init__(self, schedule: Schedule, began_ns: int) -> None:
        self._all = replace(_unsent(len(schedule)), scheduled_ns=schedule.offsets_ns)
        self.began_ns = began_ns
        self._lock = threading.Lock()
        self.sent_count = 0
        self._settled = 0
        self.answered_count = 0
        self._failed = 0
        self._repeated = 0
        self._expired = 0
        self._judged = 0
        self._late = 0
        self._reasons: Counter[str] = Counter()

    @property
    def scheduled_ns(self) -> NDArray[np.int64]:
        """int64; when the queries are due, since the run began; without a schedule, never unless sent."""
        return self._all.scheduled_ns

    def begin(self, now_ns: int) -> None:
        """Sets the beginning of the run; must be called before a query is sent."""
        self.began_ns = now_ns

    def sent(self, query: int, now_ns: int) -> None:
        """Logs that a query is about to be sent."""
        with self._lock:
            self._all.sent_ns[query] = now_ns - self.began_ns
            self._all.outcome[query] = _WAITING
            self.sent_count += 1

    def sent_unscheduled(self, now_ns: int, due_ns: int | None = None) -> int:
        """Logs that a query, which is due now or was then, is about to be sent; returns its number.

        Due times ascend, so one that is before that of the query before becomes the same.
        """
        with self._lock:
            query = self.sent_count
            if query == len(known := self._all):
                more = _unsent(max(1024, query))
                columns = {n: np.concatenate([getattr(known, n), getattr(more, n)]) for n in QUERY_COLUMNS}
                self._all = Queries(**columns, repeated=0)
            self._all.scheduled_ns[query] = self._all.sent_ns[query] = now_ns - self.began_ns
            if due_ns is not None:
                before_ns = self._all.scheduled_ns[query - 1] if query else 0
                self._all.scheduled_ns[query] = max(due_ns - self.began_ns, before_ns)
            self._all.outcome[query] = _WAITING
            self.sent_count += 1
            return query

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Records an answer; see ``target.Answers``. Repeated answers are only counted, late ones ignored."""
        with self._lock:
            queries = self._all  # under the lock, as a closed loop replaces it when it is full
            if queries.outcome[query] != _WAITING:
                self._repeated += int(queries.outcome[query] != _TIMED_OUT)
                return
            queries.outcome[query] = _ANSWERED
            queries.done_ns[query] = done_ns - self.began_ns
            for name, value in times.items():
                getattr(queries, name)[query] = value
            self._settled += 1
            self.answered_count += 1

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Records a failure; see ``target.Answers``."""
        with self._lock:
            if self._all.outcome[query] != _WAITING:
                self._repeated += int(self._all.outcome[query] != _TIMED_OUT)
                return
            self._all.outcome[query] = _FAILED
            self._all.done_ns[query] = done_ns - self.began_ns
            self._settled += 1
            self._failed += 1
            self._reasons[reason] += 1

    def confirmed(self, query: int, **times: int) -> None:
        """Records the times of an answer that has already been recorded; see ``target.CheckedAnswers``."""
        with self._lock:
            if self._all.outcome[query] == _ANSWERED:
                for name, value in times.items():
                    getattr(self._all, name)[query] = value

    def refuted(self, query: int, reason: str) -> None:
        """Turns a recorded answer into a failure; see ``target.CheckedAnswers``."""
        with self._lock:
            if self._all.outcome[query] != _ANSWERED:
                return
            self._all.outcome[query] = _FAILED
            self.answered_count -= 1
            self._failed += 1
            self._reasons[reason] += 1

    def expire(self, now_ns: int, timeout_ns: int) -> None:
        """Times out the queries without an outcome that have been due for longer than the timeout."""
        with self._lock:
            overdue = self._due_before(now_ns - timeout_ns)
            outcomes = self._all.outcome[self._expired : overdue]
            given_up = outcomes == _WAITING
            outcomes[given_up] = _TIMED_OUT
            self._settled += int(np.count_nonzero(given_up))
            self._expired = max(self._expired, overdue)

    def late(self, now_ns: int, bound_ns: int) -> int:
        """Returns the number of queries later than a bound, which must be the same in every call."""
        with self._lock:
            decided = self._due_before(now_ns - bound_ns)
            part = slice(self._judged, max(self._judged, decided))
            in_time = (self._all.outcome[part] == _ANSWERED) & (
                self._all.done_ns[part] - self.scheduled_ns[part] <= bound_ns
            )
            self._late += int(np.count_nonzero(~in_time))
            self._judged = part.stop
            return self._late

    def _due_before(self, time_ns: int) -> int:
        """Returns how many of the sent queries were due before a time; the caller holds the lock."""
        due = int(np.searchsorted(self.scheduled_ns, time_ns - self.began_ns))
        return min(due, self.sent_count)

    def close(self, ended_ns: int, timeout_ns: int) -> None:
        """Ends the run, and gives an outcome to all queries that were due by then.

        Queries that were not sent are waiting; those that waited for longer than the timeout have timed out,
        as have those answered too late between two calls of ``expire``.
        """
        with self._lock:
            due = int(np.searchsorted(self.scheduled_ns, ended_ns - self.began_ns, "right"))
            outcome, due_ns = self._all.outcome[:due], self.scheduled_ns[:due]
            outcome[outcome == _UNSENT] = _WAITING
            open_ns = np.where(outcome == _WAITING, ended_ns - self.began_ns, self._all.done_ns[:due])
            open_or_right = (outcome == _WAITING) | (outcome == _ANSWERED)
            timed_out = open_or_right & (open_ns - due_ns > timeout_ns)
            for name in ("done_ns", "queue_ns", "predict_ns", "batch_size", "batch_ns"):
                getattr(self._all, name)[:due][timed_out] = QUERY_COLUMNS[name]
            outcome[timed_out] = _TIMED_OUT

    @property
    def replied_count(self) -> int:
        """The number of queries that were answered or failed."""
        return self.answered_count + self._failed

    @property
    def waiting(self) -> int:
        """The number of queries that were sent and have no outcome yet."""
        with self._lock:
            return self.sent_count - self._settled

    @property
    def reasons(self) -> dict[str, int]:
        """The number of failed queries by reason, the most frequent first."""
        with self._lock:
            return dict(self._reasons.most_common())

    def queries(self, first: int = 0, end: int | None = None, step: int = 1) -> Queries:
        """Returns the queries as they are now: all of them, or every ``step``-th query of a range."""
        part = slice(first, end, step)
        with self._lock:
            columns = {name: getattr(self._all, name)[part].copy() for name in QUERY_COLUMNS}
            return Queries(**columns, repeated=self._repeated)


def bound_ns_of(bound_ms: float) -> int:
    """Returns a latency bound in nanoseconds, rounded because 2.01 ms is slightly less in binary."""
    return round(bound_ms * 1_000_000)


@dataclass(frozen=True, slots=True, eq=False)
class LoadRun:
    """One schedule and the outcomes of its queries.

    Attributes:
        rate_qps: The requested rate; 0 for a closed loop.
        source: Where the schedule comes from, such as an arrival process or a file.
        seed: The seed from which it was drawn; None for a file or a closed loop.
        checksum: ``sha256:…`` of the schedule; empty for a closed loop.
        queries: The queries that were due before the run ended. A query not yet sent by then, because the
            target had not returned from an earlier one, is ``WAITING``, or ``TIMED_OUT`` after the timeout.
        cut_ns: Queries that were due before this form the empty start, which is excluded from all figures.
        stopped: Why the run ended before its schedule did; empty if it was not stopped.
        invalid: Why its figures cannot be trusted; empty if they can.
        reasons: The number of failed queries by reason, the most frequent first.
        began_ns: When the run began, on its clock; it is not stored.
        server: What each source of the server's statistics reported; empty if none was read.
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
    began_ns: int = 0
    server: tuple[ServerSeries, ...] = ()

    @classmethod
    def of(cls, log: QueryLog, schedule: Schedule, stop: Stop, ended_ns: int, timeout_ns: int) -> LoadRun:
        """Closes the log of a run that ended at the given time, and returns the run, without a cut.

        The schedule of a run whose queries are due when they are sent is empty.
        """
        log.close(ended_ns, timeout_ns)
        due = int(np.searchsorted(log.scheduled_ns, ended_ns - log.began_ns, "right"))
        return cls(
            rate_qps=schedule.rate_qps,
            source=schedule.source,
            seed=schedule.seed,
            checksum=schedule.checksum if len(schedule) else "",
            queries=log.queries(0, max(due, log.sent_count)),
            stopped=stop.value,
            reasons=log.reasons,
            began_ns=log.began_ns,
        )

    @property
    def stop(self) -> Stop:
        """Why the run ended."""
        return Stop(self.stopped)
