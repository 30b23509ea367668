"""The raw layers: every time that a layer ran, in the order in which the spans are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from agent.trace_level import TraceLevel
from agent.tracing.span import NO_BATCH, SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row
from evaluators.reports.trace_report import TRACED_COLUMNS, TraceReport, describe_traced

_NS_PER_US = 1000


class LayerRunsReport(TraceReport):
    """One row for each layer of each measured batch, full or not; what ``--raw`` shows of the layers.

    ``started_at_ns`` is on the clock of the trace. Times are under the framework's profiler.
    """

    name: ClassVar[str] = "layer_runs"
    summary: ClassVar[str] = "every time that a layer ran, under the framework's profiler"
    level: ClassVar[TraceLevel] = TraceLevel.FRAMEWORK_TRACE
    columns: ClassVar[tuple[Column, ...]] = (
        *TRACED_COLUMNS,
        Column("batch", "batch"),
        Column("inputs", "inputs"),
        Column("layer_index", "index"),
        Column("layer_name", "layer"),
        Column("layer_type", "type"),
        Column("started_at_ns", "started (ns since 1970)"),
        Column("duration_us", "duration (us)", decimals=1),
    )

    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each span of a layer; one chunk is in memory at a time."""
        described = describe_traced(evaluation)
        sizes = evaluation.batches.sizes.tolist()
        for chunk in chunks:
            layers = [kind.level is TraceLevel.FRAMEWORK_TRACE for kind in chunk.kinds]
            columns = (chunk.kind, chunk.batch, chunk.start_ns, chunk.duration_ns)
            for place, batch, start_ns, duration_ns in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                if not layers[place] or batch == NO_BATCH:
                    continue
                kind = chunk.kinds[place]
                index, type_ = kind.attribute("layer_index"), kind.attribute("layer_type")
                yield {
                    **described,
                    "batch": batch,
                    "inputs": sizes[batch] if batch < len(sizes) else None,
                    "layer_index": index if isinstance(index, int) else None,
                    "layer_name": kind.name,
                    "layer_type": type_ if isinstance(type_, str) else "",
                    "started_at_ns": start_ns,
                    "duration_us": duration_ns / _NS_PER_US,
                }
