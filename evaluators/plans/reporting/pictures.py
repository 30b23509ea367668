"""Charts of the tables of a plan: bars, lines over a number, and points of two figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Drawing,
    Label,
    Mark,
    PointChart,
    Series,
    how_many_fit,
)
from inferometer.evaluators.plans.expressions import shown
from inferometer.evaluators.plots.base import readable
from inferometer.evaluators.reports.base import Row, Value

MOST_ROWS = 40
"""The rows of bars in one chart."""
MOST_LINES = 14
"""The lines of one chart, each in a colour of its own."""
MOST_POINTS = 300
"""The points beyond which those of a group have one tooltip together."""
_FAR = 8.0  # a ratio beyond which an axis is logarithmic
_BETWEEN = " · "


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a chart: its position, group, short name and full description."""

    x: float
    y: float
    group: str = ""
    text: str = ""
    tooltip: str = ""


def interval_text(row: Row, key: str) -> str:
    """Returns a figure of a row with its interval, in three digits: ``1.25 [1.19, 1.31]``."""
    value, low, high = (_number(row.get(f"{key}{end}")) for end in ("", "_low", "_high"))
    if value is None:
        return ""
    return readable(value) if low is None or high is None else f"{readable(value)} [{_ends(low, high)}]"


def label_of(row: Row, names: Sequence[str]) -> str:
    """Returns the label of a row: the values of some columns."""
    return _BETWEEN.join(_text(row.get(name)) for name in names)


def heading_of(names: Sequence[str]) -> str:
    """Returns the names of the parts of a label."""
    return _BETWEEN.join(name.replace("_", " ") for name in names)


def bar_chart(
    axis: str, rows: Sequence[Row], names: Sequence[str], figures: Mapping[str, str]
) -> BarChart | None:
    """Returns a row of bars for each row of a table.

    Args:
        axis: The figure.
        rows: The rows; the first ``MOST_ROWS`` with a value are drawn.
        names: The columns that identify a row.
        figures: The group of each bar by the column of its value.

    Returns:
        None if no row has a value of zero or more.
    """
    lines = []
    for row in rows:
        label = label_of(row, names)
        bars = tuple(
            Bar(value, group, interval_text(row, key), _told(label, group, interval_text(row, key)))
            for key, group in figures.items()
            if (value := _number(row.get(key))) is not None and value >= 0
        )
        if bars:
            lines.append(BarRow(Label(label), bars))
    return BarChart(Label(axis, heading_of(names)), axis, tuple(lines[:MOST_ROWS])) if lines else None


def line_chart(
    axes: tuple[str, str], rows: Sequence[Row], names: Sequence[str], places: Mapping[str, float]
) -> PointChart | None:
    """Returns a line for each row of a table, over the numbers that its columns stand for.

    Args:
        axes: The names of the numbers and of the figure.
        rows: The rows; the first ``MOST_LINES`` are drawn.
        names: The columns that identify a row.
        places: The number of each column of values.

    Returns:
        None if no row has a value of zero or more.
    """
    points = [
        Point(place, value, label_of(row, names), "", _told(label_of(row, names), *_at(row, key, place)))
        for row in rows[:MOST_LINES]
        for key, place in sorted(places.items(), key=lambda item: item[1])
        if (value := _number(row.get(key))) is not None and value >= 0
    ]
    if not points:
        return None
    series = (*lines_through(points), *point_series(points))
    return PointChart(
        Label(axes[1], heading_of(names)),
        *axes,
        series,
        x_logarithmic=is_far([point.x for point in points]),
        tall=True,
    )


def lines_through(points: Sequence[Point]) -> Iterator[Series]:
    """Yields a line through the points of each group, in the order of ``x``."""
    for group, of_one in _groups(points).items():
        ordered = sorted(of_one, key=lambda point: point.x)
        x, y = tuple(point.x for point in ordered), tuple(point.y for point in ordered)
        yield Series(group, x, y, line=True, tooltip=group)


def point_series(points: Sequence[Point], mark: Mark = Mark.DOT) -> Iterator[Series]:
    """Yields the points, each with its tooltip and name; many points form one series for each group."""
    if len(points) <= MOST_POINTS:
        for point in points:
            yield Series(
                point.group, (point.x,), (point.y,), tooltip=point.tooltip, mark=mark, size=5, text=point.text
            )
        return
    for group, of_one in _groups(points).items():
        x, y = tuple(point.x for point in of_one), tuple(point.y for point in of_one)
        yield Series(group, x, y, tooltip=f"{len(of_one):,} points, {group}".strip(", "), mark=mark)


def drawing_of(
    title: str,
    charts: Sequence[BarChart | PointChart | None],
    groups: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Drawing | None:
    """Returns a drawing of as many charts as fit; None without a chart."""
    there = [chart for chart in charts if chart is not None]
    if not there:
        return None
    fitting = how_many_fit(there)
    hidden = (f"{fitting} of {len(there)} charts are shown.",) * (fitting < len(there))
    return Drawing(title, tuple(there[:fitting]), tuple(dict.fromkeys(groups)), (*notes, *hidden))


def rows_note(count: int, most: int) -> tuple[str, ...]:
    """Returns the note that some rows are not drawn, where there are more than ``most``."""
    return (f"The first {most} of {count:,} rows are shown.",) * (count > most)


def as_number(value: Value) -> float | None:
    """Returns a value as a finite number, parsing a text if needed; None for any other value."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_far(values: Sequence[float]) -> bool:
    """Returns whether values lie so far apart that a logarithmic axis separates them better."""
    return min(values) > 0 and max(values) > _FAR * min(values)


def _at(row: Row, key: str, place: float) -> tuple[str, str]:
    return f"at {place:g}", interval_text(row, key)


def _ends(low: float, high: float) -> str:
    return f"{readable(low)}, {readable(high)}"


def _told(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _groups(points: Sequence[Point]) -> Mapping[str, Sequence[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.group, []).append(point)
    return found


def _number(value: Value) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def _text(value: Value) -> str:
    return "-" if value is None else shown(value)
