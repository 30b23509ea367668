"""The picture of the latency report: a box an evaluation, out of the times of its batches."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.evaluation import Evaluation
from evaluators.plots.base import Plot, by_evaluation, label_of, readable
from evaluators.plots.drawing import Box, BoxChart, Drawing, Label
from evaluators.reports.base import Row
from evaluators.statistics import percentile, trimmed_mean

_NS_PER_MS = 1_000_000


class LatencyPlot(Plot):
    """A box for each evaluation that has a latency in its row."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns boxes over the full batches, in milliseconds."""
        measured = [row for row in rows if row["latency_ms_p50"] is not None]
        chosen, notes = by_evaluation(evaluations, measured)
        boxes = tuple(_box(evaluation) for evaluation, _ in chosen)
        if not boxes:
            return None
        return Drawing(
            title="Latency of a batch",
            charts=(BoxChart(Label(""), "latency of a batch (ms)", boxes),),
            notes=(
                "Box: 25th to 75th percentile; line: median; whiskers: 5th to 95th percentile; "
                "diamond: trimmed mean.",
                "From host memory to host memory, synchronised with the device, over the full batches.",
                *notes,
            ),
        )


def _box(evaluation: Evaluation) -> Box:
    times_ms = evaluation.batches.full(evaluation.options.batch_size) / _NS_PER_MS
    low, first, middle, third, high = (percentile(times_ms, percent) for percent in (5, 25, 50, 75, 95))
    mean = trimmed_mean(times_ms)
    count = f"{len(times_ms):,} batch{'' if len(times_ms) == 1 else 'es'}"
    return Box(
        label=label_of(evaluation, evaluation.options.trace_level.name),
        low=low,
        first=first,
        middle=middle,
        third=third,
        high=high,
        mark=mean,
        text=f"{readable(middle)} ms, {count}",
        tooltip=(
            f"{evaluation.system.manifest.name}, {evaluation.id}: 5th percentile {low:.6g} ms, "
            f"25th {first:.6g}, median {middle:.6g}, 75th {third:.6g}, 95th {high:.6g}, "
            f"trimmed mean {mean:.6g}; {count}"
        ),
    )
