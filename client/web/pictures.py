"""The pictures of the page: the charts of the reports' pictures, as values of JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inferometer.evaluators.drawing.charts import PointChart, Series
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import kind_of

MOST_BATCHES = 20_000
"""Of more batches, the page shows the shortest and the longest of each stretch."""
_DIGITS = 6  # of a coordinate, which are more than any screen has points


def charts_of(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Returns the pictures of one evaluation; of batches each time, of load each query or probe."""
    return [
        chart_document(each.title, chart, each.notes)
        for each in kind_of(evaluation).drawings(evaluation, MOST_BATCHES)
        for chart in each.charts
        if isinstance(chart, PointChart)
    ]


def compared_chart(a: Evaluation, b: Evaluation) -> dict[str, Any] | None:
    """Returns the times of two evaluations in one picture; None if they have none."""
    kind = kind_of(a)
    drawing = kind.compared_drawing(a, b, MOST_BATCHES) if kind is kind_of(b) else None
    if drawing is None:
        return None
    [chart] = drawing.charts
    return chart_document(drawing.title, chart, ()) if isinstance(chart, PointChart) else None


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
