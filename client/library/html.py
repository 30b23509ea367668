"""HTML for notebooks: tables with pictures. All text is escaped to prevent script injection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.plots.base import find_plot
from inferometer.evaluators.plots.writer import inline_svg
from inferometer.evaluators.reports.base import Column, Report, Row, Value
from inferometer.evaluators.reports.table import cell_text
from inferometer.manifests.errors import printable

MOST_ROWS = 200
"""The most rows of a table that are shown."""
_ID_CHARACTERS = 8
_LEFT = "text-align: left; padding-right: 1em"
_RIGHT = "text-align: right; padding-right: 1em; font-variant-numeric: tabular-nums"


def figures(rows: Iterable[tuple[str, str]]) -> str:
    """Returns names with their values, one a row; a value without a name belongs to the row above."""
    return f"<table>{''.join(_line('td', [(name, _LEFT), (value, _LEFT)]) for name, value in rows)}</table>"


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns a table. Values that all rows share appear above the table, and ids are shortened."""
    shown = rows[:MOST_ROWS]
    same = [column for column in columns if len(rows) > 1 and len({row[column.key] for row in rows}) == 1]
    inside = [column for column in columns if column not in same] or list(columns[:1])
    above = [
        f"{column.header}: {cell_text(rows[0][column.key], column)}"
        for column in same
        if column not in inside and rows[0][column.key] is not None
    ]
    if len(shown) < len(rows):
        above.append(f"the first {len(shown)} of {len(rows):,} rows")
    caption = lines([" · ".join(above)] if above else [])
    head = _line("th", [(column.header, _side(row[column.key] for row in shown)) for column in inside])
    body = "".join(_line("td", [_cell(row[column.key], column) for column in inside]) for row in shown)
    return f'<div style="overflow-x: auto">{caption}<table>{head}{body}</table></div>'


def lines(texts: Iterable[str]) -> str:
    """Returns texts below each other."""
    return "".join(f"<div>{_text(text)}</div>" for text in texts)


def with_picture(shown: str, report: Report[Any], evaluations: Sequence[Evaluation]) -> str:
    """Adds the picture of a report, if Matplotlib is installed and there is anything to draw."""
    return with_drawing(shown, find_plot(report.name).draw(evaluations, list(report.rows(evaluations))))


def with_drawing(shown: str, drawing: Drawing | None) -> str:
    """Adds a drawing, if there is one and Matplotlib is installed."""
    picture = None if drawing is None else inline_svg(drawing)
    return shown if picture is None else f'{shown}<div style="overflow-x: auto">{picture}</div>'


def _cell(value: Value, column: Column) -> tuple[str, str]:
    if value is None:
        return "", _LEFT
    text = cell_text(value, column)
    return text[:_ID_CHARACTERS] if column.is_id else text, _side([value])


def _side(values: Iterable[Value]) -> str:
    """Returns the style of a cell or a column: numbers are right-aligned."""
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in values
        if value is not None
    ]
    return _RIGHT if numbers and all(numbers) else _LEFT


def _line(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    written = (f'<{tag} style="{style}">{_text(text)}</{tag}>' for text, style in cells)
    return f"<tr>{''.join(written)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))
