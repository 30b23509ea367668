"""The layers report: where the time of a model goes, layer by layer in the order of execution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from agent.trace_level import TraceLevel
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row
from evaluators.reports.trace_report import TRACED_COLUMNS, TraceReport, describe_traced, full_batches
from evaluators.statistics import percentile, trimmed_mean
from evaluators.traces.layers import layers

_NS_PER_US = 1000


class LayersReport(TraceReport):
    """One row for each layer of each evaluation, over its full batches.

    Times are under the framework's profiler, which slows layers down: they tell where the time goes, not how
    long the model takes; ``latency`` is for that, from runs that were traced no deeper than MODEL_TRACE.
    ``share_percent`` is the layer's part of the time of all layers, which makes 100 in all.
    """

    name: ClassVar[str] = "layers"
    summary: ClassVar[str] = "the time and memory of each layer, under the framework's profiler"
    level: ClassVar[TraceLevel] = TraceLevel.FRAMEWORK_TRACE
    of_full_batches: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        *TRACED_COLUMNS,
        Column("layer_index", "index"),
        Column("layer_name", "layer"),
        Column("layer_type", "type"),
        Column("input_shapes", "inputs"),
        Column("output_shapes", "outputs"),
        Column("occurrences", "times"),
        Column("duration_us_trimmed_mean", "trimmed mean (us)", decimals=1),
        Column("duration_us_p50", "p50 (us)", decimals=1),
        Column("duration_us_p99", "p99 (us)", decimals=1),
        Column("total_us", "total (us)", decimals=1),
        Column("share_percent", "share (%)", decimals=2),
        Column("allocated_bytes", "allocated (bytes)"),
        Column("peak_bytes", "peak (bytes)"),
    )

    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each layer of an evaluation, in the order of execution."""
        found = layers(chunks, full_batches(evaluation))
        whole_ns = sum(int(layer.durations_ns.sum()) for layer in found)
        for layer in found:
            total_ns = int(layer.durations_ns.sum())
            yield {
                **describe_traced(evaluation),
                "layer_index": layer.index,
                "layer_name": layer.name,
                "layer_type": layer.type,
                "input_shapes": " ".join(layer.input_shapes),
                "output_shapes": " ".join(layer.output_shapes),
                "occurrences": len(layer.durations_ns),
                "duration_us_trimmed_mean": trimmed_mean(layer.durations_ns) / _NS_PER_US,
                "duration_us_p50": percentile(layer.durations_ns, 50) / _NS_PER_US,
                "duration_us_p99": percentile(layer.durations_ns, 99) / _NS_PER_US,
                "total_us": total_ns / _NS_PER_US,
                "share_percent": 100 * total_ns / whole_ns if whole_ns else None,
                "allocated_bytes": layer.allocated_bytes,
                "peak_bytes": layer.peak_bytes,
            }
