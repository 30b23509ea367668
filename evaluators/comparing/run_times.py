"""The raw times of one run, of which figures are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.loadgen.queries import Outcome, Queries


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """The raw times of one run: of batches one after the other, or of queries under load.

    Attributes:
        latency_ns: int64, n values in the order in which they began; ``NEVER_NS`` without a right answer.
        elapsed_ns: int64, n values: how far each took the run; their sum is the run's duration. Of batches
            one after the other it is their latency, of queries under load the time to the next one, of
            queries that were all due at once the time from the answers before.
        inputs: int64, n values: the right answers in each.

    Raises:
        ValueError: There is no value, or the columns differ in length.
    """

    latency_ns: NDArray[np.int64]
    elapsed_ns: NDArray[np.int64]
    inputs: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.latency_ns) == len(self.elapsed_ns) == len(self.inputs) > 0:
            raise ValueError("a run needs at least one value, and columns of one length")

    @classmethod
    def of_batches(cls, latency_ns: NDArray[np.int64], sizes: NDArray[np.int64]) -> RunTimes:
        """Returns the times of batches that ran one after the other: at least one.

        Args:
            latency_ns: int64, n.
            sizes: int64, n; the inputs in each.
        """
        return cls(latency_ns, latency_ns, sizes)

    @classmethod
    def of_queries(cls, queries: Queries) -> RunTimes:
        """Returns the times of queries under load, from the first arrival to the last answer.

        Of queries that were all due at once (``Queries.due_at_once``) there is a value for each time at which
        answers came, such as those of a batch, in this order: how far each query took the run is not told by
        when it was due.
        """
        sent = queries.chosen(queries.outcome != Outcome.UNSENT)
        if sent.due_at_once:
            return cls._of_answers(sent)
        end_ns = max(int(sent.done_ns.max(initial=0)), int(sent.scheduled_ns.max(initial=0)))
        return cls(
            sent.latency_ns,
            np.diff(sent.scheduled_ns, append=end_ns),
            (sent.outcome == Outcome.ANSWERED).astype(np.int64),
        )

    @classmethod
    def _of_answers(cls, sent: Queries) -> RunTimes:
        begin_ns = sent.scheduled_ns[0]
        answered = sent.chosen(sent.outcome == Outcome.ANSWERED)
        done_ns, counts = np.unique(answered.done_ns, return_counts=True)
        return cls(done_ns - begin_ns, np.diff(done_ns, prepend=begin_ns), counts.astype(np.int64))
