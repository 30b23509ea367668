"""The interface of a target of load: it accepts queries without waiting for their answers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from inferometer.agent.inference.results import SystemDescription
from inferometer.evaluators.load.prepared_inputs import LoadInputs


class Answers(Protocol):
    """Receives the outcomes of queries. Thread-safe; times are on the clock of the run, in nanoseconds."""

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
        """Receives a right answer.

        Args:
            query: The query's number.
            done_ns: When the answer was complete.
            queue_ns: How long the query waited for its batch to begin; -1 if unknown.
            batch_ns: How long its batch was assembled, until the prediction began; -1 if unknown.
            predict_ns: How long the prediction of its batch took; -1 if unknown.
            batch_size: The queries in its batch; 0 if unknown.
        """
        ...

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Receives a failure, with its reason in one line."""
        ...


@runtime_checkable
class CheckedAnswers(Answers, Protocol):
    """Receives answers that are read only after the run, and then what was found in them."""

    def confirmed(
        self,
        query: int,
        *,
        queue_ns: int = -1,
        batch_ns: int = -1,
        predict_ns: int = -1,
        batch_size: int = 0,
    ) -> None:
        """Receives the times of an answer that was right; see ``answered``."""
        ...

    def refuted(self, query: int, reason: str) -> None:
        """Receives the reason, in one line, why an answer was none: its query has failed."""
        ...


class QueryTarget(Protocol):
    """The interface that a run needs of a target."""

    def begin(self, answers: Answers) -> None:
        """Begins a run, whose outcomes go to ``answers``."""
        ...

    def submit(self, query: int) -> None:
        """Accepts a query, and returns at once.

        One thread at a time calls it. A query that cannot be taken, as when a queue is full, has failed: this
        is reported like any other failure, and nothing is raised.
        """
        ...

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for that time; later outcomes are dropped."""
        ...


class LoadTarget(QueryTarget, Protocol):
    """One open model under load. It holds inputs: query n predicts input n modulo their number."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether the model runs in this process; closing then waits for a prediction under way."""
        ...

    def reconnect(self) -> None:
        """Reconnects for the next runs, if there is a connection. Must be called between runs."""
        ...

    def close(self) -> None:
        """Ends what is in flight; the model stays open. Calling it again does nothing."""
        ...


@runtime_checkable
class LoadableSystem(Protocol):
    """A system that makes its own load target, such as an agent elsewhere."""

    def load_target(self, inputs: LoadInputs) -> LoadTarget:
        """Returns a target that puts load on the system; the caller closes it."""
        ...
