"""The evaluation: what ran, on what and when, as an envelope around one measurement of any kind.

The system under test makes predictions in this process or behind a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from inferometer.agent.inference.stages import BatchResult, SystemDescription
from inferometer.agent.preprocessing.inputs import Input, Tensors
from inferometer.agent.tracing.recorder import SpanChunk, TraceLevel, TraceScope
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.datasets.base import DatasetIdentity


class Measurement(Protocol):
    """The measured part of an evaluation: its options and its raw values.

    Each kind is a package in ``kinds``, which also defines its documents in the store and its reports.
    """

    kind: ClassVar[str]
    """The kind's name in stored documents and filters; never renamed."""

    @property
    def batch_size(self) -> int:
        """The maximum number of inputs that were predicted together."""
        ...

    @property
    def elapsed_ns(self) -> int:
        """How long the measured part took, in nanoseconds."""
        ...


class TimedMeasurement(Measurement, Protocol):
    """A measurement of batches or steps that run one after the other."""

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """int64; the times of the full batches or steps in nanoseconds, in order."""
        ...


SpanSource: TypeAlias = Callable[[str], Iterator[SpanChunk]]
"""Yields the spans of the trace of the evaluation with the given id; see ``EvaluationStore.spans``."""
M = TypeVar("M", bound=Measurement)
M_co = TypeVar("M_co", bound=Measurement, covariant=True, default=Measurement)


def utc_now() -> datetime:
    """Returns the current time in UTC, to the millisecond, as precisely as databases store it."""
    return to_the_millisecond(datetime.now(timezone.utc))


def to_the_millisecond(moment: datetime) -> datetime:
    """Returns a time in UTC, truncated to milliseconds."""
    return moment.astimezone(timezone.utc).replace(microsecond=moment.microsecond // 1000 * 1000)


class Status(str, Enum):
    """How an evaluation ended. Reports show only complete ones by default."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    """Every input failed: no figure describes the model."""

    @classmethod
    def of(cls, *, whole: bool, usable: bool) -> Status:
        """Returns the status of a run that was ``whole`` or stopped, with ``usable`` results or without."""
        return cls.INTERRUPTED if not whole else cls.COMPLETE if usable else cls.FAILED


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a measurement or of a search.

    Attributes:
        done: The number of inputs processed so far, or of another unit.
        total: The total number, including the warm-up; 0 if unknown.
        counted: The unit of the counts; empty if ``now`` includes them.
        now: The current activity, if the counts do not show it.
    """

    done: int
    total: int
    counted: str = "inputs"
    now: str = ""

    def __str__(self) -> str:
        if not self.counted:
            return self.now
        of = f" of {self.total:,}" if self.total else ""
        return f"{self.done:,}{of} {self.counted}" + (f", {self.now}" if self.now else "")


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
            batches: The batches; a trace numbers them from 0.
            trace: The scope of the spans; None records none.
        """
        ...

    def close(self) -> None:
        """Releases the model; calling it again does nothing."""
        ...


class TensorSystem(SystemUnderTest, Protocol):
    """A system that also accepts preprocessed inputs, which load tests need."""

    def predict_tensor(self, batch: Tensors | NDArray[Any]) -> BatchResult:
        """Predicts one batch of preprocessed inputs: tensors by name, or the model's only tensor."""
        ...


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The trace of an evaluation, without its spans.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_count: The number of spans that were kept.
        dropped: The number of recorded spans that were left out because there were too many.
        notes: What the trace lacks and why, one line each.
        url: Its URL in Jaeger for users; None if it was not exported.
    """

    trace_id: str
    span_count: int
    dropped: int = 0
    notes: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation(Generic[M_co]):
    """One evaluation of one model, and everything needed to run it again.

    Attributes:
        id: A UUID.
        created_at: When it began, in UTC, to the millisecond.
        status: How it ended.
        system: The model, its framework and its machine.
        dataset: The dataset that it ran over.
        measurement: The measurement, with the options that shaped it.
        trace_level: How deeply it was traced.
        trace: The trace; None for a run at NO_TRACE.
        spans: The trace's spans; empty in an evaluation that the store returns.
        group_id: An id that evaluations share if they belong together, such as runs at each trace level.
        conditions: The disturbances and the verdict; None in evaluations by earlier versions.
        process: The number, from 1, of the group's fresh process in which it ran; None for an evaluation that
            ran in the process in which it was requested.
    """

    id: str
    created_at: datetime
    status: Status
    system: SystemDescription
    dataset: DatasetIdentity
    measurement: M_co
    trace_level: TraceLevel = TraceLevel.NO_TRACE
    trace: TraceSummary | None = None
    spans: tuple[SpanChunk, ...] = ()
    group_id: str | None = None
    conditions: Conditions | None = None
    process: int | None = None

    @property
    def profiled(self) -> bool:
        """Whether it ran under the framework's profiler, so that its latency is not the model's."""
        # the framework of a server is not known
        return self.trace_level > TraceLevel.MODEL_TRACE and not self.system.is_of_server


def measures(evaluation: Evaluation, kind: type[M]) -> TypeGuard[Evaluation[M]]:
    """Whether the measurement is of this kind."""
    return isinstance(evaluation.measurement, kind)


def of_kind(evaluations: Iterable[Evaluation], kind: type[M]) -> list[Evaluation[M]]:
    """Returns the evaluations whose measurement is of this kind, in their order."""
    return [evaluation for evaluation in evaluations if measures(evaluation, kind)]


def processes_of(evaluations: Iterable[Evaluation]) -> int:
    """Returns how many processes ran the model in some evaluations, as far as known.

    Evaluations on an agent all ran in its one process. Those of a group without process numbers ran one after
    another in a single process.
    """
    return len(
        {
            (each.group_id or each.id, each.process) if each.system.is_local else (each.system.agent, None)
            for each in evaluations
        }
    )
