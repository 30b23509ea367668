"""Plots of training: step times, losses, and scaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Drawing,
    Label,
    PointChart,
    Series,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.plot import MOST_POINTS, thinned
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.plots.base import Chosen, Plot, label_of, number, readable, time_unit
from inferometer.evaluators.reports.base import Row

_WHOLE, _WAIT, _LOSS = "whole step", "wait for data", "loss"
_NS_PER_US = 1000
_PARTS = ("wait", "copy", "forward", "backward", "communicate", "update")


class TrainingPlot(Plot[TrainingMeasurement]):
    """A row for each training: the parts of a mean step, one after the other."""

    def shows(self, row: Row) -> bool:
        """Returns whether the parts of a step are known."""
        return row["forward_ms"] is not None

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the bars."""
        lines = tuple(_parts_row(evaluation, of_one[0]) for evaluation, of_one in chosen)
        return Drawing(
            title="Parts of a training step",
            charts=(BarChart(Label(""), "mean of a step (ms)", lines, stacked=True),),
            groups=_PARTS,
            notes=(
                "Forward, backward, communication and update are the means of some steps, which are "
                "synchronised after each part.",
                *notes,
            ),
        )


def _parts_row(evaluation: Evaluation[TrainingMeasurement], row: Row) -> BarRow:
    bars = []
    for part in _PARTS:
        value_ms = number(row[f"{part}_ms"])
        text = f"{readable(value_ms)} ms"
        bars.append(Bar(value_ms, part, text, f"{evaluation.id}: {part} {text}"))
    options = evaluation.measurement.options
    more = (f"{options.devices * options.ranks} devices",) * (options.devices * options.ranks > 1)
    return BarRow(label_of(evaluation, *more), tuple(bars))


class TrainingStepsPlot(Plot[TrainingMeasurement]):
    """Two charts for each training: the time of each step on its slowest rank, and the loss.

    Args:
        most_points: The points of one evaluation beyond which steps are left out.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the charts."""
        charts = tuple(chart for evaluation, _ in chosen for chart in self._charts(evaluation))
        return Drawing(
            title="Steps of training",
            charts=charts,
            groups=(_WHOLE, _WAIT, _LOSS),
            notes=("Of several ranks, the slowest in each step, and the mean loss.", *notes),
        )

    def _charts(self, evaluation: Evaluation[TrainingMeasurement]) -> Iterator[PointChart]:
        measured = evaluation.measurement
        whole_us = measured.times.slowest_ns / _NS_PER_US
        wait_us = measured.times.wait_ns.max(axis=0) / _NS_PER_US
        scale, unit = time_unit(float(whole_us.max(initial=0.0)))
        heading = label_of(evaluation)
        series = tuple(
            self._series(evaluation, group, (values_us / scale).tolist(), unit)
            for group, values_us in ((_WHOLE, whole_us), (_WAIT, wait_us))
        )
        yield PointChart(heading, "measured step", f"time ({unit})", series)
        losses = measured.losses.mean(axis=0).tolist()
        yield PointChart(
            Label("", "with the warm-up"), "step", "loss", (self._series(evaluation, _LOSS, losses, ""),)
        )

    def _series(
        self, evaluation: Evaluation[TrainingMeasurement], group: str, values: Sequence[float], unit: str
    ) -> Series:
        kept = thinned([(float(place), value) for place, value in enumerate(values)], self._most_points)
        mean = sum(values) / len(values)
        tooltip = f"{evaluation.id}: {group}, {readable(mean)} {unit}".rstrip() + " on average"
        x, y = zip(*kept, strict=True)
        return Series(group, x, y, line=True, tooltip=tooltip)


class ScalingPlot(Plot[TrainingMeasurement]):
    """A bar for each training of a scaling report: its efficiency in percent."""

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the bars."""
        lines = tuple(_efficiency(evaluation, of_one[0]) for evaluation, of_one in chosen)
        return Drawing(
            title="Efficiency of scaling",
            charts=(BarChart(Label(""), "efficiency (%)", lines, whole=100),),
            groups=("efficiency",),
            notes=("Relative to the fewest devices of each group; above 100 % it is cut.", *notes),
        )


def _efficiency(evaluation: Evaluation[TrainingMeasurement], row: Row) -> BarRow:
    percent = number(row["efficiency_percent"])
    text = f"{percent:.2f} %, speed-up {number(row['speedup']):.2f}"
    tooltip = f"{evaluation.id}: {text} on {row['devices']} devices"
    return BarRow(
        label_of(evaluation, f"{row['devices']} devices"), (Bar(percent, "efficiency", text, tooltip),)
    )
