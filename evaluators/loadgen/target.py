"""What load is put on: a system under test that takes queries without waiting for their answers."""

from __future__ import annotations

from typing import Protocol

from agent.description import SystemDescription


class Answers(Protocol):
    """Takes what becomes of queries. Thread-safe; times are of the clock of the run, in nanoseconds."""

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
        """Is told of a right answer.

        Args:
            query: The query's number.
            done_ns: When the answer was there.
            queue_ns: How long the query waited for its batch to begin; -1 where that is not known.
            batch_ns: How long its batch was put together, until the prediction began; -1 where that is not
                known.
            predict_ns: How long the prediction of its batch took; -1 where that is not known.
            batch_size: The queries in its batch; 0 where that is not known.
        """
        ...

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Is told that a query has failed, and why, in one line."""
        ...


class QueryTarget(Protocol):
    """What a run asks of a target."""

    def begin(self, answers: Answers) -> None:
        """Is told of a run that begins, and who takes its answers."""
        ...

    def submit(self, query: int) -> None:
        """Hands a query over, and returns at once.

        It comes from one thread at a time. A query that cannot be taken, as when a queue is full, has failed:
        that is told to the answers like any other failure, and nothing is raised.
        """
        ...

    def end(self, timeout_s: float) -> None:
        """Waits until every query is answered or has failed, or for that time; later answers go nowhere."""
        ...


class LoadTarget(QueryTarget, Protocol):
    """One open model under load. It holds inputs: query n predicts input n modulo their number."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    def close(self) -> None:
        """Ends what is under way; the model stays its owner's. Calling it again does nothing."""
        ...
