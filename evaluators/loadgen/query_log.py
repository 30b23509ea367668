"""The log of a run: what becomes of each query, kept in arrays while the load goes on."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.schedule import Schedule

_UNSENT, _WAITING, _ANSWERED, _FAILED, _TIMED_OUT = map(int, Outcome)
_NOT_DUE_NS = np.iinfo(np.int64).max
_COLUMNS = {"_scheduled_ns": _NOT_DUE_NS, "_sent_ns": -1, "_done_ns": -1, "_outcome": 0, "_queue_ns": -1}
_COLUMNS |= {"_batch_ns": -1, "_predict_ns": -1, "_batch_size": 0}
"""The columns, with what they hold of a query before anything is known of it."""


class QueryLog:
    """Takes the three times of each query, and its outcome; satisfies ``target.Answers``. Thread-safe.

    All memory is taken when it is made: a query costs a few stores into arrays. Queries are sent in their
    order.

    Args:
        schedule: When the queries are due.
        began_ns: When the run begins, on the run's clock.
    """

    _scheduled_ns: NDArray[np.int64]
    _sent_ns: NDArray[np.int64]
    _done_ns: NDArray[np.int64]
    _outcome: NDArray[np.int64]
    _queue_ns: NDArray[np.int64]
    _batch_ns: NDArray[np.int64]
    _predict_ns: NDArray[np.int64]
    _batch_size: NDArray[np.int64]

    def __init__(self, schedule: Schedule, began_ns: int) -> None:
        for name, value in _COLUMNS.items():
            setattr(self, name, np.full(len(schedule), value, np.int64))
        self._scheduled_ns = schedule.offsets_ns
        self._began_ns = began_ns
        self._lock = threading.Lock()
        self._sent = 0
        self._settled = 0
        self._answered = 0
        self._failed = 0
        self._repeated = 0
        self._expired = 0
        self._judged = 0
        self._late = 0
        self._reasons: Counter[str] = Counter()

    def begin(self, now_ns: int) -> None:
        """Is told that the run begins at another time than was thought; no query was sent yet."""
        self._began_ns = now_ns

    def sent(self, query: int, now_ns: int) -> None:
        """Is told that a query is about to be handed over."""
        with self._lock:
            self._sent_ns[query] = now_ns - self._began_ns
            self._outcome[query] = _WAITING
            self._sent += 1

    def sent_unscheduled(self, now_ns: int) -> int:
        """Is told that a query that is due now is about to be handed over; returns its number."""
        with self._lock:
            query = self._sent
            if query == len(self._scheduled_ns):
                for name, value in _COLUMNS.items():
                    old = getattr(self, name)
                    setattr(self, name, np.concatenate([old, np.full(max(1024, query), value, np.int64)]))
            self._scheduled_ns[query] = self._sent_ns[query] = now_ns - self._began_ns
            self._outcome[query] = _WAITING
            self._sent += 1
            return query

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
        """Takes an answer; see ``target.Answers``. One that comes again, or too late, is counted apart."""
        with self._lock:
            if self._outcome[query] != _WAITING:
                self._repeated += int(self._outcome[query] != _TIMED_OUT)
                return
            self._outcome[query] = _ANSWERED
            self._done_ns[query] = done_ns - self._began_ns
            self._queue_ns[query] = queue_ns
            self._batch_ns[query] = batch_ns
            self._predict_ns[query] = predict_ns
            self._batch_size[query] = batch_size
            self._settled += 1
            self._answered += 1

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Takes a failure; see ``target.Answers``."""
        with self._lock:
            if self._outcome[query] != _WAITING:
                self._repeated += int(self._outcome[query] != _TIMED_OUT)
                return
            self._outcome[query] = _FAILED
            self._done_ns[query] = done_ns - self._began_ns
            self._settled += 1
            self._failed += 1
            self._reasons[reason] += 1

    def expire(self, now_ns: int, timeout_ns: int) -> None:
        """Gives up the queries that were due so long ago and are not answered."""
        with self._lock:
            overdue = self._due_before(now_ns - timeout_ns)
            outcomes = self._outcome[self._expired : overdue]
            given_up = outcomes == _WAITING
            outcomes[given_up] = _TIMED_OUT
            self._settled += int(np.count_nonzero(given_up))
            self._expired = max(self._expired, overdue)

    def late(self, now_ns: int, bound_ns: int) -> int:
        """The queries that are later than a bound; it has to be the same in every call."""
        with self._lock:
            decided = self._due_before(now_ns - bound_ns)
            part = slice(self._judged, max(self._judged, decided))
            in_time = (self._outcome[part] == _ANSWERED) & (
                self._done_ns[part] - self._scheduled_ns[part] <= bound_ns
            )
            self._late += int(np.count_nonzero(~in_time))
            self._judged = part.stop
            return self._late

    def _due_before(self, time_ns: int) -> int:
        """How many of the queries that were sent were due before a time; the caller has the lock."""
        due = int(np.searchsorted(self._scheduled_ns, time_ns - self._began_ns))
        return min(due, self._sent)

    def close(self, ended_ns: int, timeout_ns: int) -> None:
        """Is told that the run has ended, and settles what was due by then.

        What was due before and not sent is waiting, and what has waited for longer than the timeout is timed
        out, as is what was answered so late between two calls of ``expire``.
        """
        with self._lock:
            due = int(np.searchsorted(self._scheduled_ns, ended_ns - self._began_ns, "right"))
            outcome, done_ns, due_ns = self._outcome[:due], self._done_ns[:due], self._scheduled_ns[:due]
            outcome[outcome == _UNSENT] = _WAITING
            open_ns = np.where(outcome == _WAITING, ended_ns - self._began_ns, done_ns)
            open_or_right = (outcome == _WAITING) | (outcome == _ANSWERED)
            timed_out = open_or_right & (open_ns - due_ns > timeout_ns)
            for column in (done_ns, self._queue_ns[:due], self._batch_ns[:due], self._predict_ns[:due]):
                column[timed_out] = -1
            self._batch_size[:due][timed_out] = 0
            outcome[timed_out] = _TIMED_OUT

    @property
    def began_ns(self) -> int:
        """When the run begins, on its clock."""
        return self._began_ns

    @property
    def scheduled_ns(self) -> NDArray[np.int64]:
        """When the queries are due since the run began; those of no schedule, which were not sent, never."""
        return self._scheduled_ns

    @property
    def sent_count(self) -> int:
        """The queries that were sent."""
        return self._sent

    @property
    def answered_count(self) -> int:
        """The queries with a right answer."""
        return self._answered

    @property
    def replied_count(self) -> int:
        """The queries that were answered or failed."""
        return self._answered + self._failed

    @property
    def waiting(self) -> int:
        """The queries that were sent and have no outcome yet."""
        with self._lock:
            return self._sent - self._settled

    @property
    def reasons(self) -> dict[str, int]:
        """How many queries failed for which reason, the most frequent first."""
        with self._lock:
            return dict(self._reasons.most_common())

    def queries(self, first: int = 0, end: int | None = None, step: int = 1) -> Queries:
        """Returns the queries as they stand now: all of them, or every ``step``-th of a part."""
        part = slice(first, end, step)
        with self._lock:
            return Queries(
                scheduled_ns=self._scheduled_ns[part],
                sent_ns=self._sent_ns[part].copy(),
                done_ns=self._done_ns[part].copy(),
                outcome=self._outcome[part].copy(),
                queue_ns=self._queue_ns[part].copy(),
                batch_ns=self._batch_ns[part].copy(),
                predict_ns=self._predict_ns[part].copy(),
                batch_size=self._batch_size[part].copy(),
                repeated=self._repeated,
            )
