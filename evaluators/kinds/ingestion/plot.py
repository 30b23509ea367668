"""The plot of loaders that ran alone: the wait for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.drawing.charts import Drawing, PointChart, Series
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.plot import MOST_POINTS, thinned
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement
from inferometer.evaluators.plots.base import Chosen, Plot, label_of, readable, time_unit
from inferometer.evaluators.reports.base import Row

_WAIT = "wait for a batch"
_NS_PER_US = 1000


class IngestionPlot(Plot[IngestionMeasurement]):
    """A chart for each evaluation: how long each batch was waited for.

    Args:
        most_points: The points of one evaluation beyond which batches are left out.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def shows(self, row: Row) -> bool:
        """Returns whether there is a batch."""
        return bool(row["measured_batches"])

    def drawing(self, chosen: Chosen[IngestionMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the charts."""
        charts = tuple(chart for evaluation, _ in chosen for chart in self._charts(evaluation))
        return Drawing(
            title="Loading alone",
            charts=charts,
            groups=(_WAIT,),
            notes=("The wait of a caller who does nothing else.", *notes),
        )

    def _charts(self, evaluation: Evaluation[IngestionMeasurement]) -> Iterator[PointChart]:
        waits_us = evaluation.measurement.times.whole_ns / _NS_PER_US
        scale, unit = time_unit(float(waits_us.max()))
        values = (waits_us / scale).tolist()
        kept = thinned([(float(place), value) for place, value in enumerate(values)], self._most_points)
        mean = readable(sum(values) / len(values))
        x, y = zip(*kept, strict=True)
        tooltip = f"{evaluation.id}: {_WAIT}, {mean} {unit} on average"
        series = (Series(_WAIT, x, y, line=True, tooltip=tooltip),)
        yield PointChart(label_of(evaluation), "measured batch", f"time ({unit})", series)
