"""The interface of reports on the spans of traces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias

from inferometer.agent.tracing.span import SpanChunk, TraceLevel
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.reports.base import (
    NAME_COLUMNS,
    STABILITY_COLUMN,
    Column,
    M,
    Report,
    Row,
    describe_names,
)

Traced: TypeAlias = BatchMeasurement | TrainingMeasurement
"""The measurements whose traces have batches and layers; a batch of a training is a step."""
TRACED = (BatchMeasurement, TrainingMeasurement)
SpanSource: TypeAlias = Callable[[str], Iterator[SpanChunk]]
"""Yields the spans of an evaluation's trace, by its id; see ``EvaluationStore.spans``."""

TRACED_COLUMNS = (*NAME_COLUMNS, Column("trace_level", "trace level", detail=1), STABILITY_COLUMN)


class TraceReport(Report[M]):
    """A report on the spans of each traced evaluation."""

    level: ClassVar[TraceLevel]
    """The lowest trace level that the report requires."""
    of_full_batches: ClassVar[bool] = False
    """Whether the report covers only batches of the full batch size."""

    def rows(self, evaluations: Sequence[Evaluation[M]]) -> Iterator[Row]:
        """Yields nothing, because the rows require the spans; see ``rows_of``."""
        return iter(())

    def rows_of(self, evaluations: Sequence[Evaluation[M]], spans: SpanSource) -> Iterator[Row]:
        """Yields the rows of the ``evaluations`` with a trace of ``level`` or deeper, in their order.

        Args:
            evaluations: The evaluations.
            spans: The source of an evaluation's spans, which are read once, chunk by chunk.

        Raises:
            StoreError: Spans cannot be read.
        """
        for evaluation in evaluations:
            if evaluation.trace is not None and evaluation.trace_level >= self.level:
                yield from self.rows_of_one(evaluation, spans(evaluation.id))

    @abstractmethod
    def rows_of_one(self, evaluation: Evaluation[M], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields the rows of one evaluation."""


def describe_traced(evaluation: Evaluation) -> Row:
    """Returns the values of ``TRACED_COLUMNS``."""
    return {**describe_names(evaluation), "trace_level": evaluation.trace_level.name}
