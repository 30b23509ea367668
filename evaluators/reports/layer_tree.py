"""The layer tree report: the layers summed up by their type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from agent.trace_level import TraceLevel
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row
from evaluators.reports.trace_report import TRACED_COLUMNS, TraceReport, describe_traced, full_batches
from evaluators.statistics import trimmed_mean
from evaluators.traces.layers import Layer, layers

_NS_PER_US = 1000


class LayerTreeReport(TraceReport):
    """One row for each type of layer of each evaluation, over its full batches, the heaviest first.

    ``layers`` counts the layers of a type, ``occurrences`` how often they ran in all. Times are under the
    framework's profiler; see ``LayersReport``. ``allocated_bytes`` sums up the layers of the type.
    """

    name: ClassVar[str] = "layer_tree"
    summary: ClassVar[str] = "layers by their type: how many, their time and its share, their memory"
    level: ClassVar[TraceLevel] = TraceLevel.FRAMEWORK_TRACE
    of_full_batches: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        *TRACED_COLUMNS,
        Column("layer_type", "type"),
        Column("layers", "layers"),
        Column("occurrences", "times"),
        Column("duration_us_trimmed_mean", "trimmed mean (us)", decimals=1),
        Column("total_us", "total (us)", decimals=1),
        Column("share_percent", "share (%)", decimals=2),
        Column("allocated_bytes", "allocated (bytes)"),
    )

    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each type of an evaluation's layers."""
        types: dict[str, list[Layer]] = {}
        for layer in layers(chunks, full_batches(evaluation)):
            types.setdefault(layer.type, []).append(layer)
        totals = {type_: sum(int(x.durations_ns.sum()) for x in found) for type_, found in types.items()}
        whole_ns = sum(totals.values())
        for type_, found in sorted(types.items(), key=lambda item: -totals[item[0]]):
            durations_ns = np.concatenate([layer.durations_ns for layer in found])
            memory = [layer.allocated_bytes for layer in found if layer.allocated_bytes is not None]
            yield {
                **describe_traced(evaluation),
                "layer_type": type_,
                "layers": len(found),
                "occurrences": len(durations_ns),
                "duration_us_trimmed_mean": trimmed_mean(durations_ns) / _NS_PER_US,
                "total_us": totals[type_] / _NS_PER_US,
                "share_percent": 100 * totals[type_] / whole_ns if whole_ns else None,
                "allocated_bytes": sum(memory) if memory else None,
            }
