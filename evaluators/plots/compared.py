"""The picture of a comparison: the times of two evaluations, batch by batch, over one axis."""

from __future__ import annotations

from inferometer.evaluators.drawing.charts import PointChart, Series
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.plots.base import label_of, readable, time_unit
from inferometer.evaluators.plots.batches import thinned

_NS_PER_US = 1000


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
