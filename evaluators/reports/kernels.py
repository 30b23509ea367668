"""The kernels report: what ran on the device, and which layer it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agent.trace_level import TraceLevel
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row
from evaluators.reports.trace_report import TRACED_COLUMNS, TraceReport, describe_traced, full_batches
from evaluators.statistics import trimmed_mean

_NS_PER_US = 1000


@dataclass(slots=True, eq=False)
class _Kernel:
    activity: str
    durations_ns: list[NDArray[np.int64]] = field(default_factory=list)


class KernelsReport(TraceReport):
    """One row for each kernel, copy or call of the device's runtime within each layer, the heaviest first.

    Times on the device are not those of the layer that caused them: both run side by side.
    """

    name: ClassVar[str] = "cuda_launch"
    summary: ClassVar[str] = "kernels, copies and runtime calls of a GPU, by layer"
    level: ClassVar[TraceLevel] = TraceLevel.SYSTEM_LIBRARY_TRACE
    of_full_batches: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        *TRACED_COLUMNS,
        Column("layer_name", "layer"),
        Column("kernel_name", "kernel"),
        Column("activity", "activity"),
        Column("occurrences", "times"),
        Column("duration_us_trimmed_mean", "trimmed mean (us)", decimals=1),
        Column("total_us", "total (us)", decimals=1),
        Column("share_percent", "share (%)", decimals=2),
    )

    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each kernel of an evaluation's layers; ``share_percent`` is of all rows."""
        found = _kernels(chunks, full_batches(evaluation))
        totals = {key: sum(int(d.sum()) for d in kernel.durations_ns) for key, kernel in found.items()}
        whole_ns = sum(totals.values())
        for key, kernel in sorted(found.items(), key=lambda item: -totals[item[0]]):
            durations_ns = np.concatenate(kernel.durations_ns)
            yield {
                **describe_traced(evaluation),
                "layer_name": key[0],
                "kernel_name": key[1],
                "activity": kernel.activity,
                "occurrences": len(durations_ns),
                "duration_us_trimmed_mean": trimmed_mean(durations_ns) / _NS_PER_US,
                "total_us": totals[key] / _NS_PER_US,
                "share_percent": 100 * totals[key] / whole_ns if whole_ns else None,
            }


def _kernels(chunks: Iterator[SpanChunk], batches: NDArray[np.bool_]) -> dict[tuple[str, str], _Kernel]:
    """The spans of SYSTEM_LIBRARY_TRACE by the name of their layer and their own.

    A layer's span is added before what lies below it, and batch after batch, so that its name is known and
    can be forgotten with its batch.
    """
    found: dict[tuple[str, str], _Kernel] = {}
    layer_of: dict[int, str] = {}
    current = -1
    for chunk in chunks:
        levels = [kind.level for kind in chunk.kinds]
        for row, (place, span_id, parent_id, batch) in enumerate(
            zip(
                chunk.kind.tolist(),
                chunk.span_id.tolist(),
                chunk.parent_id.tolist(),
                chunk.batch.tolist(),
                strict=True,
            )
        ):
            kind = chunk.kinds[place]
            if batch != current:
                current = batch
                layer_of.clear()
            if levels[place] is TraceLevel.FRAMEWORK_TRACE:
                layer_of[span_id] = kind.name
                continue
            if levels[place] not in (TraceLevel.ML_LIBRARY_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE):
                continue
            layer = layer_of.get(parent_id, "")
            layer_of[span_id] = layer
            if (
                levels[place] is TraceLevel.SYSTEM_LIBRARY_TRACE
                and 0 <= batch < len(batches)
                and batches[batch]
            ):
                activity = kind.attribute("activity")
                kernel = found.setdefault((layer, kind.name), _Kernel(str(activity or "runtime call")))
                kernel.durations_ns.append(chunk.duration_ns[row : row + 1])
    return found
