"""The pictures of the page: the charts of the reports' pictures, as values of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferometer.evaluators.drawing.charts import PointChart, Series
from inferometer.evaluators.evaluation import Evaluation, measures
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.plots.base import Plot, find_plot
from inferometer.evaluators.plots.batches import DurationPlot
from inferometer.evaluators.plots.compared import compared_times
from inferometer.evaluators.plots.operators import OperatorsPlot
from inferometer.evaluators.plots.training import TrainingStepsPlot
from inferometer.evaluators.reports.base import Report

MOST_BATCHES = 20_000
"""Of more batches, the page shows the shortest and the longest of each stretch."""
_REPORTS = {
    "batches": "duration",
    "load": "workload",
    "rate_search": "max_qps",
    "training": "training_steps",
    "ingestion": "ingestion",
    "operators": "operators",
}
"""The report whose picture shows each value of a measurement, by the kind."""
_PLOTS: Mapping[str, Callable[[], Plot[Any]]] = {
    "duration": lambda: DurationPlot(MOST_BATCHES),
    "training_steps": lambda: TrainingStepsPlot(MOST_BATCHES),
    "operators": lambda: OperatorsPlot(most_points=0),  # a legend with a name for each framework alone
}
_DIGITS = 6  # of a coordinate, which are more than any screen has points


def charts_of(evaluation: Evaluation, reports: Mapping[str, Report[Any]]) -> list[dict[str, Any]]:
    """Returns the pictures of one evaluation; of batches each time, of load each query or probe."""
    name = _REPORTS.get(evaluation.measurement.kind)
    if name is None:
        return []
    plot = _PLOTS[name]() if name in _PLOTS else find_plot(name)
    drawing = plot.draw([evaluation], list(reports[name].rows([evaluation])))
    scores = None
    if measures(evaluation, BatchMeasurement):
        scores = find_plot("accuracy").draw([evaluation], list(reports["accuracy"].rows([evaluation])))
    drawings = (each for each in (drawing, scores) if each is not None)
    return [  # the notes of scores are about their bars, which the page has as a table
        chart_document(each.title, chart, () if each is scores else each.notes)
        for each in drawings
        for chart in each.charts
        if isinstance(chart, PointChart)
    ]


def compared_chart(a: Evaluation, b: Evaluation) -> dict[str, Any] | None:
    """Returns the times of two evaluations in one picture; None if they have none."""
    if not (measures(a, BatchMeasurement) and measures(b, BatchMeasurement)):
        return None
    chart = compared_times(a, b, MOST_BATCHES)
    return None if chart is None else chart_document("Predict time of each full batch", chart, ())


def chart_document(title: str, chart: PointChart, notes: Sequence[str]) -> dict[str, Any]:
    """Returns a chart; a latency without an end is null, which the page draws as an arrow."""
    told = "; ".join(series.tooltip.partition(": ")[2] or series.group for series in chart.series)
    return {
        "title": title,
        "label": f"{title}: {told}",
        "x_axis": chart.x_axis,
        "y_axis": chart.y_axis,
        "series": [_series(each) for each in chart.series],
        "rules": [{"at": rule.at, "text": rule.text, "upright": rule.upright} for rule in chart.rules],
        "bands": [{"start": band.start, "end": band.end, "text": band.text} for band in chart.bands],
        "x_logarithmic": chart.x_logarithmic,
        "y_logarithmic": chart.y_logarithmic,
        "tall": chart.tall,
        "notes": list(notes),
    }


def _series(series: Series) -> dict[str, Any]:
    order = sorted(range(len(series.x)), key=lambda place: series.x[place])
    return {
        "name": series.group,
        "x": [_coordinate(series.x[place]) for place in order],
        "y": [_coordinate(series.y[place]) for place in order],
        "line": series.line,
        "mark": series.mark.value,
        "size": series.size,
    }


def _coordinate(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
