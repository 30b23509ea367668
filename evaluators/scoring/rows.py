"""The rows of one result of a task: one row per score."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.tasks.metric import TaskResult

COLUMNS = (
    Column("task", "task"),
    Column("score_name", "score"),
    Column("score", "value", decimals=4, stays=True),
    Column("score_low", "low", decimals=4, stays=True),
    Column("score_high", "high", decimals=4, stays=True),
    Column("score_unit", "unit"),
    Column("evaluated_inputs", "evaluated inputs"),
    Column("failed_inputs", "failed inputs"),
    Column("dataset_name", "dataset"),
    Column("definition", "definition", detail=3),
)
"""Columns like those of the report on accuracy, which instead has one row per evaluation."""


def rows_of(result: TaskResult, failed: int, dataset: str) -> Iterator[Row]:
    """Yields a row for each score.

    Args:
        result: The scores.
        failed: The number of inputs that could not be scored.
        dataset: The name of the dataset.
    """
    for score in result.scores:
        low, high = score.interval or (None, None)
        yield {
            "task": result.task,
            "score_name": score.name,
            "score": score.value,
            "score_low": low,
            "score_high": high,
            "score_unit": score.unit or None,
            "evaluated_inputs": result.samples,
            "failed_inputs": failed,
            "dataset_name": dataset,
            "definition": result.definition,
        }
