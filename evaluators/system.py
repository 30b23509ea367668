"""The system under test: whatever answers predictions, in this process or behind a socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from inferometer.agent.inference.results import BatchResult, SystemDescription
from inferometer.agent.preprocessing.inputs import Input, Tensors
from inferometer.agent.tracing.recorder import TraceScope


class SystemUnderTest(Protocol):
    """One open model that predicts batches: a local session, a remote agent, or a null system."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether the model runs in this process; closing it then waits for a running prediction."""
        ...

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch and waits for it.

        Raises:
            AgentError: The connection to a remote agent was lost, and with it this batch.
        """
        ...

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, in order, reading and preprocessing a bounded number of batches ahead.

        Closing the iterator stops the work.

        Args:
            batches: The batches; a trace counts them from 0.
            trace: The scope of the spans; None records none.
        """
        ...

    def close(self) -> None:
        """Releases the model; calling it again does nothing."""
        ...


class TensorSystem(SystemUnderTest, Protocol):
    """A system that also predicts preprocessed inputs, which load needs."""

    def predict_tensor(self, batch: Tensors | NDArray[Any]) -> BatchResult:
        """Predicts one batch of preprocessed tensors by name, or of the model's only one."""
        ...
