"""The picture of a comparison: the times of two evaluations, batch by batch, over one axis."""

from __future__ import annotations

from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.drawing.charts import Drawing, PointChart, Series
from inferometer.evaluators.evaluation import Evaluation, of_kind
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.plot import thinned
from inferometer.evaluators.plots.base import label_of, readable, time_unit

MOST_POINTS = 1000
"""Points of one side that a drawing has at most."""
_NS_PER_US = 1000


def drawing_of(a: Side, b: Side) -> Drawing | None:
    """Returns the times of two sides as a picture; None unless each is one evaluation with full batches."""
    both = of_kind((*a.evaluations, *b.evaluations), BatchMeasurement)
    if len(both) != 2 or len(a.evaluations) != 1:
        return None
    chart = compared_times(both[0], both[1], MOST_POINTS)
    if chart is None:
        return None
    return Drawing("Predict time of each full batch", (chart,), groups=("A", "B"))


def compared_times(
    a: Evaluation[BatchMeasurement], b: Evaluation[BatchMeasurement], most_points: int
) -> PointChart | None:
    """Returns the predict times of the full batches of two evaluations; None if one has no full batch.

    Args:
        a: The baseline.
        b: The other.
        most_points: The number of batches of a side beyond which the shortest and the longest of each
            stretch are shown.
    """
    sides = {"A": a.measurement.full_ns, "B": b.measurement.full_ns}
    if not all(len(full_ns) for full_ns in sides.values()):
        return None
    scale, unit = time_unit(max(int(full_ns.max()) for full_ns in sides.values()) / _NS_PER_US)
    series = []
    for name, full_ns in sides.items():
        times = (full_ns / _NS_PER_US / scale).tolist()
        x, y = zip(*thinned(list(enumerate(times)), most_points), strict=True)
        mean = readable(sum(times) / len(times))
        series.append(
            Series(name, x, y, line=True, tooltip=f"{name}: {len(times):,} batches, {mean} {unit} on average")
        )
    return PointChart(label_of(a), "full batch", f"predict ({unit})", tuple(series))
