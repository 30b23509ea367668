"""The accuracy report: how often a model was right, and over how many inputs that is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Report, Row
from evaluators.reports.columns import EVALUATION_COLUMNS, STATUS_COLUMN, describe


class AccuracyReport(Report):
    """One row for each evaluation. Accuracy is a share, 0…1, of the evaluated inputs.

    Evaluated are the inputs with a label and a prediction; where there were none, accuracy is empty.
    """

    name: ClassVar[str] = "accuracy"
    summary: ClassVar[str] = "top-1 and top-5 accuracy, with the inputs they are counted over"
    columns: ClassVar[tuple[Column, ...]] = (
        *EVALUATION_COLUMNS,
        Column("top1_accuracy", "top-1 (share)", decimals=4),
        Column("top5_accuracy", "top-5 (share)", decimals=4),
        Column("evaluated_inputs", "evaluated inputs"),
        Column("failed_inputs", "failed inputs"),
        Column("dataset_name", "dataset"),
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields one row for each of the ``evaluations``, in their order."""
        for evaluation in evaluations:
            accuracy = evaluation.accuracy
            yield {
                **describe(evaluation),
                "top1_accuracy": accuracy.top1_share if accuracy else None,
                "top5_accuracy": accuracy.top5_share if accuracy else None,
                "evaluated_inputs": accuracy.evaluated if accuracy else 0,
                "failed_inputs": len(evaluation.failures),
                "dataset_name": evaluation.dataset.name,
            }
