"""The queries of a run: when each was due, sent and done, and what became of it, in columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

NEVER_NS = np.iinfo(np.int64).max
"""The latency of a query without an answer: later than any bound."""


class Outcome(IntEnum):
    """What became of a query. Only a right answer can be in time."""

    UNSENT = 0
    """It was due after the run was stopped; it counts for nothing."""
    WAITING = 1
    """It was sent, and not answered when the run ended."""
    ANSWERED = 2
    FAILED = 3
    TIMED_OUT = 4
    """No answer came within the timeout; one that comes later changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """The queries of one run in columns of n values, all in nanoseconds since the run began.

    Attributes:
        scheduled_ns: int64, ascending; when each was due.
        sent_ns: int64; when the system under test was handed it; -1 where it was not.
        done_ns: int64; when its answer, or its failure, was there; -1 where neither was.
        outcome: int64; see ``Outcome``.
        queue_ns: int64; how long it waited for its batch to begin; -1 where the system does not tell.
        predict_ns: int64; how long its batch's prediction took; -1 where the system does not tell.
        batch_size: int64; the queries in its batch; 0 where the system does not tell.
        repeated: How many answers came for queries that had one.
        batch_ns: int64; how long its batch was put together, until the prediction began; -1 where the system
            does not tell. Where it is left out, it is told of no query.
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
        """The number of queries."""
        return len(self.scheduled_ns)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """int64; from when a query was due to its answer, and ``NEVER_NS`` without a right answer.

        It counts from the schedule, so that a query which had to wait before it could be sent is as late as
        its user would find it (no coordinated omission).
        """
        answered = self.outcome == Outcome.ANSWERED
        latency: NDArray[np.int64] = np.where(answered, self.done_ns - self.scheduled_ns, NEVER_NS)
        return latency

    @property
    def lag_ns(self) -> NDArray[np.int64]:
        """int64; of the queries that were sent, how much later than due that was: the harness's own delay."""
        sent = self.sent_ns >= 0
        lag: NDArray[np.int64] = self.sent_ns[sent] - self.scheduled_ns[sent]
        return lag

    @property
    def due_at_once(self) -> bool:
        """Whether all were due at one time, as in MLPerf's scenario offline.

        A latency then tells how much was done before a query, and not how long the query took: percentiles
        follow from how many there were, and have no error of chance that their order could tell.
        """
        return len(self) > 1 and bool(self.scheduled_ns[0] == self.scheduled_ns[-1])

    def count(self, outcome: Outcome) -> int:
        """The number of queries with an outcome."""
        return int(np.count_nonzero(self.outcome == outcome))

    def since(self, offset_ns: int) -> Queries:
        """Returns the queries that were due from a time on."""
        return self.chosen(self.scheduled_ns >= offset_ns)

    def chosen(self, places: NDArray[np.bool_]) -> Queries:
        """Returns some of the queries.

        Args:
            places: bool, n.
        """
        return replace(self, **{name: getattr(self, name)[places] for name in QUERY_COLUMNS})


QUERY_COLUMNS = (
    *("scheduled_ns", "sent_ns", "done_ns", "outcome", "queue_ns", "predict_ns", "batch_size"),
    "batch_ns",
)
"""The columns, in order."""
LATER_COLUMNS = frozenset({"batch_ns"})
"""Those that queries which were kept before there were any do not have."""
