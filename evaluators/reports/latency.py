"""The latency report: how long a batch took, and how many inputs a second that makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Report, Row
from evaluators.reports.columns import EVALUATION_COLUMNS, STATUS_COLUMN, describe
from evaluators.statistics import LatencySummary

_NS_PER_MS = 1_000_000


class LatencyReport(Report):
    """One row for each evaluation; the figures are those of ``LatencySummary``, in milliseconds a batch.

    Those that an evaluation has no full batch for are empty.
    """

    name: ClassVar[str] = "latency"
    summary: ClassVar[str] = "latency of a batch in ms, and throughput"
    undisturbed: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        *EVALUATION_COLUMNS,
        Column("latency_ms_trimmed_mean", "trimmed mean (ms)"),
        Column("latency_ms_mean", "mean (ms)"),
        Column("latency_ms_p50", "p50 (ms)"),
        Column("latency_ms_p90", "p90 (ms)"),
        Column("latency_ms_p99", "p99 (ms)"),
        Column("throughput_inputs_per_s", "throughput (inputs/s)", decimals=1),
        Column("end_to_end_inputs_per_s", "end to end (inputs/s)", decimals=1),
        Column("measured_batches", "measured batches"),
        Column("trace_level", "trace level"),
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields one row for each of the ``evaluations``, in their order."""
        for evaluation in evaluations:
            summary = LatencySummary.of(evaluation)
            yield {
                **describe(evaluation),
                "latency_ms_trimmed_mean": _ms(summary.trimmed_mean_ns),
                "latency_ms_mean": _ms(summary.mean_ns),
                "latency_ms_p50": _ms(summary.p50_ns),
                "latency_ms_p90": _ms(summary.p90_ns),
                "latency_ms_p99": _ms(summary.p99_ns),
                "throughput_inputs_per_s": summary.throughput_inputs_per_s,
                "end_to_end_inputs_per_s": summary.end_to_end_inputs_per_s,
                "measured_batches": summary.measured_batches,
                "trace_level": evaluation.options.trace_level.name,
            }


def _ms(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else duration_ns / _NS_PER_MS
