"""The system under test: whatever answers predictions, in this process or behind a socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from agent.description import SystemDescription
from agent.inputs import Input
from agent.results import BatchResult
from agent.tracing.scope import TraceScope


class SystemUnderTest(Protocol):
    """One open model that predicts batches: a local session, a remote agent, or a null system."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch and waits for it.

        Raises:
            AgentError: A remote agent was lost, so that nothing about this batch can be known.
        """
        ...

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, in order, reading and preprocessing a bounded number of batches ahead.

        Closing the iterator stops the work.

        Args:
            batches: The batches; those of a trace are counted from 0.
            trace: Where its spans go; None records none.
        """
        ...

    def close(self) -> None:
        """Frees the model; calling it again does nothing."""
        ...
