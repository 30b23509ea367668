"""Reports that are made from the spans of traces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.trace_level import TraceLevel
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Report, Row

SpanSource: TypeAlias = Callable[[str], Iterator[SpanChunk]]
"""Yields the spans of an evaluation's trace, by its id; see ``EvaluationStore.spans``."""

TRACED_COLUMNS = (
    Column("id", "id"),
    Column("model_name", "model"),
    Column("framework_name", "framework"),
    Column("batch_size", "batch size"),
    Column("trace_level", "trace level"),
)


class TraceReport(Report):
    """A report with rows for each traced evaluation, out of its spans."""

    level: ClassVar[TraceLevel]
    """The trace level that an evaluation needs, at the least."""
    of_full_batches: ClassVar[bool] = False
    """Whether only batches that held the full batch size count."""

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields nothing: without the spans there are no rows; see ``rows_of``."""
        return iter(())

    def rows_of(self, evaluations: Sequence[Evaluation], spans: SpanSource) -> Iterator[Row]:
        """Yields the rows of those ``evaluations`` that were traced deep enough, in their order.

        Args:
            evaluations: What is reported on.
            spans: Gives the spans of one; they are read once, piece by piece.

        Raises:
            StoreError: Spans cannot be read.
        """
        for evaluation in evaluations:
            if evaluation.trace is not None and evaluation.options.trace_level >= self.level:
                yield from self.rows_of_one(evaluation, spans(evaluation.id))

    @abstractmethod
    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields the rows of one evaluation."""


def describe_traced(evaluation: Evaluation) -> Row:
    """Returns the values of ``TRACED_COLUMNS``."""
    manifest = evaluation.system.manifest
    return {
        "id": evaluation.id,
        "model_name": manifest.name,
        "framework_name": manifest.framework.name,
        "batch_size": evaluation.options.batch_size,
        "trace_level": evaluation.options.trace_level.name,
    }


def full_batches(evaluation: Evaluation) -> NDArray[np.bool_]:
    """Which of the measured batches held the full batch size; bool, by the batch's number."""
    full: NDArray[np.bool_] = evaluation.batches.sizes == evaluation.options.batch_size
    return full
