"""Reports on batches: latency and throughput, and the raw times of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, LatencySummary
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    describe,
)
from inferometer.evaluators.reports.times import time_columns, time_values

_NS_PER_US = 1000
_FIGURES = {"trimmed_mean": 2, "mean": 0, "p50": 0, "p90": 0, "p99": 0}
_WITH_INTERVAL = ("mean", "p50", "p90")
_STAGES = ("read", "preprocess", "predict", "postprocess")


class LatencyReport(Report[BatchMeasurement]):
    """One row for each evaluation, with the figures of ``LatencySummary`` in milliseconds a batch.

    A figure that requires a full batch is empty if there is none. A percentile or an end of an interval is
    empty if there are too few.
    """

    name = "latency"
    summary = "latency of a batch in ms, and throughput"
    undisturbed = True
    takes = (BatchMeasurement,)
    columns = (
        *EVALUATION_COLUMNS,
        *time_columns("latency_ms", "", _FIGURES, _WITH_INTERVAL),
        Column("throughput_inputs_per_s", "throughput (inputs/s)", decimals=1),
        Column("throughput_inputs_per_s_low", "throughput low", decimals=1, detail=3),
        Column("throughput_inputs_per_s_high", "throughput high", decimals=1, detail=3),
        Column("end_to_end_inputs_per_s", "end to end (inputs/s)", decimals=1, detail=1),
        Column("measured_batches", "measured batches", detail=1),
        Column("process", "process", detail=1),
        Column("trace_level", "trace level", detail=1),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            summary = LatencySummary.of(evaluation.measurement)
            low, high = summary.throughput_interval or (None, None)
            yield {
                **describe(evaluation),
                **time_values("latency_ms", summary, _FIGURES, _WITH_INTERVAL),
                "throughput_inputs_per_s": summary.throughput_inputs_per_s,
                "throughput_inputs_per_s_low": low,
                "throughput_inputs_per_s_high": high,
                "end_to_end_inputs_per_s": summary.end_to_end_inputs_per_s,
                "measured_batches": summary.measured_batches,
                "process": evaluation.process,
                "trace_level": evaluation.trace_level.name,
            }


class DurationReport(Report[BatchMeasurement]):
    """One row for each measured batch of each evaluation; read and preprocess are summed over the inputs."""

    name = "duration"
    summary = "the raw times of every measured batch in µs"
    takes = (BatchMeasurement,)
    columns = (
        *EVALUATION_COLUMNS,
        Column("batch", "batch"),
        Column("inputs", "inputs"),
        *(Column(f"{stage}_us", f"{stage} (us)", decimals=1) for stage in _STAGES),
        Column("trace_level", "trace level"),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        """Yields the batches of each evaluation, in order."""
        for evaluation in evaluations:
            described, times = describe(evaluation), evaluation.measurement.times
            columns = [getattr(times, f"{stage}_ns").tolist() for stage in _STAGES]
            for number, (inputs, *stages_ns) in enumerate(zip(times.sizes.tolist(), *columns, strict=True)):
                yield {
                    **described,
                    "batch": number,
                    "inputs": inputs,
                    **{
                        f"{n}_us": time_ns / _NS_PER_US for n, time_ns in zip(_STAGES, stages_ns, strict=True)
                    },
                    "trace_level": evaluation.trace_level.name,
                }
