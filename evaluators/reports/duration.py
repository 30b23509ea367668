"""The duration report: the raw predict times of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Report, Row
from evaluators.reports.columns import EVALUATION_COLUMNS, STATUS_COLUMN, describe

_NS_PER_US = 1000


class DurationReport(Report):
    """One row for each measured batch of each evaluation, in order."""

    name: ClassVar[str] = "duration"
    summary: ClassVar[str] = "the raw times of every measured batch in µs"
    columns: ClassVar[tuple[Column, ...]] = (
        *EVALUATION_COLUMNS,
        Column("batch", "batch"),
        Column("inputs", "inputs"),
        Column("read_us", "read (us)", decimals=1),
        Column("preprocess_us", "preprocess (us)", decimals=1),
        Column("predict_us", "predict (us)", decimals=1),
        Column("postprocess_us", "postprocess (us)", decimals=1),
        Column("trace_level", "trace level"),
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields the batches of the ``evaluations``; read and preprocess are summed over the inputs."""
        for evaluation in evaluations:
            described = describe(evaluation)
            batches = evaluation.batches
            columns = (batches.sizes, batches.read_ns, batches.preprocess_ns, batches.predict_ns)
            rows = zip(*(c.tolist() for c in (*columns, batches.postprocess_ns)), strict=True)
            for number, (inputs, read_ns, preprocess_ns, predict_ns, postprocess_ns) in enumerate(rows):
                yield {
                    **described,
                    "batch": number,
                    "inputs": inputs,
                    "read_us": read_ns / _NS_PER_US,
                    "preprocess_us": preprocess_ns / _NS_PER_US,
                    "predict_us": predict_ns / _NS_PER_US,
                    "postprocess_us": postprocess_ns / _NS_PER_US,
                    "trace_level": evaluation.options.trace_level.name,
                }
