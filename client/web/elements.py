"""The elements of the page as JSON values: its tables with their cells, and its charts.

Cells have the values of the reports' JSON and the texts of the printed tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from inferometer.evaluators.drawing.charts import PointChart, Series
from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.evaluators.reports.table import cell_text
from inferometer.evaluators.reports.writer import finite


def text_of(value: Value, column: Column) -> str | None:
    """Returns the text of a cell; None if the value serves as its text, or is missing."""
    return cell_text(value, column) if isinstance(value, bool | float) else None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns_of(
    columns: Iterable[Column], numeric: Iterable[str] = (), first: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Returns the columns, those with a key in ``first`` before the others, which become details."""
    known = {column.key: column for column in columns}
    numbers = set(numeric)
    return [
        {
            "key": key,
            "header": known[key].header,
            "numeric": key in numbers,
            "detail": bool(first) and key not in first,
        }
        for key in dict.fromkeys((*first, *known))
    ]


def table_of(report: str, caption: str, columns: Sequence[Column], rows: Iterable[Row]) -> dict[str, Any]:
    """Returns a report's rows as a table."""
    held = list(rows)
    numeric = [column.key for column in columns if any(_is_number(row[column.key]) for row in held)]
    return {
        "report": report,
        "caption": caption,
        "columns": columns_of(columns, numeric),
        "rows": [[finite(row[column.key]) for column in columns] for row in held],
        "texts": [[text_of(row[column.key], column) for column in columns] for row in held],
    }


def figures_of(
    report: str, columns: Sequence[Column], row: Row, headlines: Sequence[str], first: int = 0
) -> list[dict[str, Any]]:
    """Returns the numbers of a report's only row; interval bounds are attached to their figures.

    Args:
        report: Its name.
        columns: Its columns.
        row: The row.
        headlines: The keys of the main figures, in their order.
        first: The position of the first main figure among the main figures of all reports.
    """
    known = {column.key: column for column in columns}
    figures = []
    for key, column in known.items():
        figure_key, _, end = key.rpartition("_")
        if end in ("low", "high") and figure_key in known:
            continue
        if not _is_number(row[key]) and not (row[key] is None and key in headlines):
            continue
        figure = {
            "key": key,
            "report": report,
            "label": column.header,
            "value": finite(row[key]),
            "text": text_of(row[key], column),
            "headline": first + headlines.index(key) if key in headlines else None,
        }
        for end in ("low", "high"):
            if (end_key := f"{key}_{end}") in known:
                figure[end] = finite(row[end_key])
                figure[f"{end}_text"] = text_of(row[end_key], known[end_key])
        figures.append(figure)
    return figures


_DIGITS = 6  # of a coordinate, which are more than any screen has points


def chart_document(title: str, chart: PointChart, notes: Sequence[str]) -> dict[str, Any]:
    """Returns a chart; an unbounded latency is null, which the page draws as an arrow."""
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
