"""The picture of the duration report: the predict time of each batch, in the order of the batches."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.evaluation import Evaluation
from evaluators.plots.base import Plot, by_evaluation, label_of, number, readable, time_unit
from evaluators.plots.drawing import Drawing, PointChart, Series
from evaluators.reports.base import Row

MOST_POINTS = 1000
"""Points of one evaluation that are drawn at most."""
_FULL = "full batch"
_OTHER = "smaller batch"


class DurationPlot(Plot):
    """A chart for each evaluation."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns a point for each batch; of many that follow each other, the shortest and the longest."""
        chosen, notes = by_evaluation(evaluations, rows)
        if not chosen:
            return None
        thinned = any(len(of_one) > MOST_POINTS for _, of_one in chosen)
        smaller = any(number(row["inputs"]) != e.options.batch_size for e, of_one in chosen for row in of_one)
        return Drawing(
            title="Predict time of each batch",
            charts=tuple(_chart(evaluation, of_one) for evaluation, of_one in chosen),
            groups=(_FULL, _OTHER) if smaller else (_FULL,),
            notes=(
                *(("Of many batches, the shortest and the longest of each stretch are shown.",) * thinned),
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row]) -> PointChart:
    scale, unit = time_unit(max(number(row["predict_us"]) for row in rows))
    series = []
    full = evaluation.options.batch_size
    for group, wanted in ((_FULL, True), (_OTHER, False)):
        points = [
            (number(row["batch"]), number(row["predict_us"]) / scale)
            for row in rows
            if (row["inputs"] == full) is wanted
        ]
        if points:
            kept = _thinned(points)
            mean = sum(y for _, y in points) / len(points)
            tooltip = f"{evaluation.id}: {len(points):,} × {group}, {readable(mean)} {unit} on average"
            x, y = zip(*kept, strict=True)
            series.append(Series(group, x, y, line=wanted, tooltip=tooltip))
    heading = label_of(evaluation, evaluation.options.trace_level.name)
    return PointChart(heading, "batch", f"predict ({unit})", tuple(series))


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, or of each of many stretches the lowest and the highest, so that no outlier is lost."""
    if len(points) <= MOST_POINTS:
        return points
    kept = []
    stretches = MOST_POINTS // 2
    for place in range(stretches):
        stretch = points[place * len(points) // stretches : (place + 1) * len(points) // stretches]
        lowest, highest = (pick(stretch, key=lambda point: point[1]) for pick in (min, max))
        kept += sorted({lowest, highest})
    return kept
