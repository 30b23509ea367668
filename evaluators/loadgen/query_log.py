"""The log of a run: what becomes of each query, kept in arrays while the load goes on."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.schedule import Schedule

_WAITING, _ANSWERED, _FAILED, _TIMED_OUT = map(
    int, (Outcome.WAITING, Outcome.ANSWERED, Outcome.FAILED, Outcome.TIMED_OUT)
)


class QueryLog:
    """Takes the three times of each query, and its outcome; satisfies ``target.Answers``. Thread-safe.

    All memory is taken when it is made: a query costs a few stores into arrays.

    Args:
        schedule: When the queries are due.
        began_ns: When the run begins, on the run's clock.
    """

    def __init__(self, schedule: Schedule, began_ns: int) -> None:
        count = len(schedule)
        self._scheduled_ns = schedule.offsets_ns
        self._began_ns = began_ns
        self._sent_ns = np.full(count, -1, np.int64)
        self._done_ns = np.full(count, -1, np.int64)
        self._outcome = np.zeros(count, np.int64)
        self._queue_ns = np.full(count, -1, np.int64)
        self._predict_ns = np.full(count, -1, np.int64)
        self._batch_size = np.zeros(count, np.int64)
        self._lock = threading.Lock()
        self._sent = 0
        self._settled = 0
        self._repeated = 0
        self._reasons: Counter[str] = Counter()

    def sent(self, query: int, now_ns: int) -> None:
        """Is told that a query is about to be handed over."""
        with self._lock:
            self._sent_ns[query] = now_ns - self._began_ns
            self._outcome[query] = _WAITING
            self._sent += 1

    def answered(
        self, query: int, done_ns: int, *, queue_ns: int = -1, predict_ns: int = -1, batch_size: int = 0
    ) -> None:
        """Takes an answer; see ``target.Answers``. One that comes again, or too late, is counted apart."""
        with self._lock:
            if self._outcome[query] != _WAITING:
                self._repeated += int(self._outcome[query] != _TIMED_OUT)
                return
            self._outcome[query] = _ANSWERED
            self._done_ns[query] = done_ns - self._began_ns
            self._queue_ns[query] = queue_ns
            self._predict_ns[query] = predict_ns
            self._batch_size[query] = batch_size
            self._settled += 1

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Takes a failure; see ``target.Answers``."""
        with self._lock:
            if self._outcome[query] != _WAITING:
                self._repeated += int(self._outcome[query] != _TIMED_OUT)
                return
            self._outcome[query] = _FAILED
            self._done_ns[query] = done_ns - self._began_ns
            self._settled += 1
            self._reasons[reason] += 1

    def expire(self, now_ns: int, timeout_ns: int) -> None:
        """Gives up the queries that were due so long ago and are not answered."""
        with self._lock:
            overdue = self._scheduled_ns < now_ns - self._began_ns - timeout_ns
            given_up = np.flatnonzero(overdue & (self._outcome == _WAITING))
            self._outcome[given_up] = _TIMED_OUT
            self._settled += len(given_up)

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

    def queries(self) -> Queries:
        """Returns the queries as they stand now."""
        with self._lock:
            return Queries(
                scheduled_ns=self._scheduled_ns,
                sent_ns=self._sent_ns.copy(),
                done_ns=self._done_ns.copy(),
                outcome=self._outcome.copy(),
                queue_ns=self._queue_ns.copy(),
                predict_ns=self._predict_ns.copy(),
                batch_size=self._batch_size.copy(),
                repeated=self._repeated,
            )
