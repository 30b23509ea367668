"""Plots of the latency and duration reports."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.drawing.charts import (
    Box,
    BoxChart,
    Drawing,
    Label,
    PointChart,
    Series,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.plots.base import Chosen, Plot, label_of, number, plural, readable, time_unit
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.statistics import (
    carried_percentile,
    percentile,
    trimmed_mean,
    values_for_percentile,
)

_NS_PER_MS = 1_000_000


class LatencyPlot(Plot[BatchMeasurement]):
    """A box plot with a box for each evaluation that has a latency: its full batches, in milliseconds."""

    def shows(self, row: Row) -> bool:
        """Returns whether the row has a full batch."""
        return row["latency_ms_mean"] is not None

    def drawing(self, chosen: Chosen[BatchMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the boxes."""
        boxes = tuple(_box(evaluation) for evaluation, _ in chosen)
        return Drawing(
            title="Latency of a batch",
            charts=(BoxChart(Label(""), "latency of a batch (ms)", boxes),),
            notes=(
                "Box: 25th to 75th percentile; line: median; whiskers: 5th to 95th percentile, of fewer than "
                f"{values_for_percentile(95)} batches the shortest and the longest; diamond: trimmed mean.",
                "From host memory to host memory, synchronised with the device, over the full batches.",
                *notes,
            ),
        )


def _box(evaluation: Evaluation[BatchMeasurement]) -> Box:
    times_ms = evaluation.measurement.full_ns / _NS_PER_MS
    carried = len(times_ms) >= values_for_percentile(95)
    ends = (5, 95) if carried else (0, 100)
    low, first, middle, third, high = (percentile(times_ms, each) for each in (ends[0], 25, 50, 75, ends[1]))
    mean = trimmed_mean(times_ms)
    whiskers = ("5th percentile", "95th") if carried else ("shortest", "longest")
    p50 = carried_percentile(times_ms, 50)
    known = f"mean {readable(float(times_ms.mean()))}" if p50 is None else readable(p50)
    count = plural(len(times_ms), "batch", "es")
    return Box(
        label=label_of(evaluation, evaluation.trace_level.name),
        low=low,
        first=first,
        middle=middle,
        third=third,
        high=high,
        mark=mean,
        text=f"{known} ms, {count}",
        tooltip=(
            f"{evaluation.system.manifest.name}, {evaluation.id}: {whiskers[0]} {low:.6g} ms, "
            f"25th {first:.6g}, median {middle:.6g}, 75th {third:.6g}, {whiskers[1]} {high:.6g}, "
            f"trimmed mean {mean:.6g}; {count}"
        ),
    )


MOST_POINTS = 1000
"""The maximum number of points drawn for one evaluation."""
_FULL = "full batch"
_OTHER = "smaller batch"


class DurationPlot(Plot):
    """A chart for each evaluation, with a point per batch; of many batches, only the extremes of stretches.

    Args:
        most_points: The number of points of one evaluation above which batches are left out.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        """Returns the charts."""
        thinned = any(len(of_one) > self._most_points for _, of_one in chosen)
        smaller = any(
            number(row["inputs"]) != e.measurement.batch_size for e, of_one in chosen for row in of_one
        )
        return Drawing(
            title="Predict time of each batch",
            charts=tuple(_chart(evaluation, of_one, self._most_points) for evaluation, of_one in chosen),
            groups=(_FULL, _OTHER) if smaller else (_FULL,),
            notes=(
                *(("Of many batches, the shortest and the longest of each stretch are shown.",) * thinned),
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row], most_points: int) -> PointChart:
    scale, unit = time_unit(max(number(row["predict_us"]) for row in rows))
    series = []
    full = evaluation.measurement.batch_size
    for group, wanted in ((_FULL, True), (_OTHER, False)):
        points = [
            (number(row["batch"]), number(row["predict_us"]) / scale)
            for row in rows
            if (row["inputs"] == full) is wanted
        ]
        if points:
            kept = thinned(points, most_points)
            mean = sum(y for _, y in points) / len(points)
            tooltip = f"{evaluation.id}: {len(points):,} × {group}, {readable(mean)} {unit} on average"
            x, y = zip(*kept, strict=True)
            series.append(Series(group, x, y, line=wanted, tooltip=tooltip))
    heading = label_of(evaluation, evaluation.trace_level.name)
    return PointChart(heading, "batch", f"predict ({unit})", tuple(series))


def thinned(points: list[tuple[float, float]], most_points: int) -> list[tuple[float, float]]:
    """Returns the points, or of many the lowest and the highest of each stretch, which keeps outliers."""
    if len(points) <= most_points:
        return points
    kept = []
    stretches = most_points // 2
    for place in range(stretches):
        stretch = points[place * len(points) // stretches : (place + 1) * len(points) // stretches]
        lowest, highest = (pick(stretch, key=lambda point: point[1]) for pick in (min, max))
        kept += sorted({lowest, highest})
    return kept
