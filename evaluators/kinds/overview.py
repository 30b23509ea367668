"""The report on every evaluation in one line: the model, its main figures, and whether to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inferometer.evaluators.evaluation import Evaluation, Measurement
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    INVALID_COLUMN,
    SCORE_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    Report,
    Row,
    describe,
    describe_names,
    describe_verdict,
)


class OverviewReport(Report[Measurement]):
    """One row for each evaluation of every kind; a figure that its kind does not have is empty.

    p50 is that of a full batch, of a query under load, of a step of training, or of the wait for a batch of a
    loader. The rate is in inputs/s of batches, in samples/s of training and of a loader, in answered
    queries/s of a workload, and in queries/s of the answer of a search. Operators have neither: each of
    their rows has its own. ``verdict`` is ``INVALID``, for the reason ``invalid``, or else ``stability``.
    """

    name = "evaluations"
    summary = "every evaluation, with its main figures and the verdict on its conditions"
    columns = (
        *EVALUATION_COLUMNS[:2],
        Column("kind", "kind"),
        *EVALUATION_COLUMNS[2:],
        Column("latency_ms_p50", "p50 (ms)"),
        Column("rate_per_s", "rate (1/s)", decimals=1),
        VERDICT_COLUMN,
        Column("top1_accuracy", "top-1", decimals=4),
        replace(STABILITY_COLUMN, detail=2),
        INVALID_COLUMN,
        STATUS_COLUMN,
        *SCORE_COLUMNS,
    )

    def rows(self, evaluations: Sequence[Evaluation[Measurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            measurement, kind = evaluation.measurement, kind_of(evaluation)
            yield {
                **describe(evaluation),
                **describe_names(evaluation),
                "kind": kind.title,
                "latency_ms_p50": None,
                "rate_per_s": None,
                "top1_accuracy": None,
                "score_name": None,
                "score": None,
                **kind.overview(measurement),
                **describe_verdict(evaluation, kind.invalid(measurement)),
            }
