"""The report on every evaluation in one line: what ran, its main figures, and whether they can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.load.summary import LoadSummary
from inferometer.evaluators.max_qps.answer import invalid_reason
from inferometer.evaluators.measurements.batches import BatchMeasurement, LatencySummary
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement, IngestionSummary
from inferometer.evaluators.measurements.load import LoadMeasurement
from inferometer.evaluators.measurements.measurement import Measurement
from inferometer.evaluators.measurements.operators import OperatorMeasurement
from inferometer.evaluators.measurements.rate_search import RateSearchMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement, TrainingSummary
from inferometer.evaluators.reports.accuracy import score_values
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
    Value,
    describe,
    describe_names,
    describe_verdict,
    in_ms,
)

KIND_NAMES = {
    "batches": "batches",
    "load": "workload",
    "rate_search": "max QPS",
    "training": "training",
    "ingestion": "ingestion",
    "operators": "operators",
}
"""The kinds of measurement as the report calls them."""


class OverviewReport(Report[Measurement]):
    """One row for each evaluation of every kind; a figure that its kind does not have is empty.

    p50 is that of a full batch, of a query under load, of a step of training, or of the wait for a batch of a
    loader. The rate is in inputs/s of batches, in samples/s of training and of a loader, in answered
    queries/s of a workload, and in queries/s of the answer of a search. Operators have neither: each of
    their rows has its own. ``verdict`` is ``INVALID``, for the reason ``invalid``, or else ``stability``.
    """

    name = "evaluations"
    summary = "every evaluation, with its main figures and the verdict on its conditions"
    takes = (
        BatchMeasurement,
        LoadMeasurement,
        RateSearchMeasurement,
        TrainingMeasurement,
        IngestionMeasurement,
        OperatorMeasurement,
    )
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
            measurement = evaluation.measurement
            yield {
                **describe(evaluation),
                **describe_names(evaluation),
                "kind": KIND_NAMES[measurement.kind],
                "latency_ms_p50": None,
                "rate_per_s": None,
                "top1_accuracy": None,
                "score_name": None,
                "score": None,
                **_figures(measurement),
                **describe_verdict(evaluation, _invalid(measurement)),
            }


def _invalid(measurement: Measurement) -> str:
    """Why its figures cannot be trusted; empty if they can."""
    if isinstance(measurement, RateSearchMeasurement):
        return invalid_reason(measurement)
    return measurement.invalid if isinstance(measurement, LoadMeasurement) else ""


def _figures(measurement: Measurement) -> dict[str, Value]:
    """Those that a measurement of its kind has."""
    if isinstance(measurement, BatchMeasurement):
        summary, accuracy = LatencySummary.of(measurement, intervals=False), measurement.accuracy
        return {
            "latency_ms_p50": in_ms(summary.p50_ns),
            "rate_per_s": summary.throughput_inputs_per_s,
            "top1_accuracy": accuracy.top1_share if accuracy else None,
            **score_values(measurement.task_result),
        }
    if isinstance(measurement, LoadMeasurement):
        run, options = measurement.run, measurement.options
        load = LoadSummary.of(run.queries, options.latency_bound_ns, run.cut_ns, options.percentile)
        median = load.percentile(50.0)
        return {
            "latency_ms_p50": in_ms(median.value_ns if median else None),
            "rate_per_s": load.achieved_qps,
        }
    if isinstance(measurement, TrainingMeasurement):
        trained, top = TrainingSummary.of(measurement), measurement.accuracy
        return {
            "latency_ms_p50": in_ms(trained.p50_ns),
            "rate_per_s": trained.throughput_samples_per_s,
            "top1_accuracy": top.top1_share if top else None,
        }
    if isinstance(measurement, IngestionMeasurement):
        loaded = IngestionSummary.of(measurement)
        return {"latency_ms_p50": in_ms(loaded.p50_ns), "rate_per_s": loaded.samples_per_s}
    if isinstance(measurement, RateSearchMeasurement):
        return {"rate_per_s": measurement.answer.rate_qps if measurement.answer else None}
    return {}
