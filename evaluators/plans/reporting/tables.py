"""Tables of a plan, and their charts: a figure by rows and columns, and the incomplete runs.

The charts (bars, lines over a number, points of two figures) are also used by the plan's other reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    readable,
)
from inferometer.evaluators.plans.cells import Run, shown
from inferometer.evaluators.plans.reporting.cases import (
    ENDS,
    Case,
    Figure,
    figure_columns,
    main_figures,
    number_of,
)
from inferometer.evaluators.plans.running.folder import Ended, RunHistory
from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.evaluators.reports.table import cell_text
from inferometer.manifests.errors import ConfigurationError, suggestion

MOST_ROWS = 40
"""The maximum number of rows of bars in one chart."""
MOST_LINES = 14
"""The maximum number of lines in one chart, each in a colour of its own."""
MOST_POINTS = 300
"""The number of points beyond which the points of a group share one tooltip."""
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
    """Returns the ``figure_text`` of a figure in a row; empty if it has no value."""
    value, low, high = (number_of(row.get(f"{key}{end}")) for end in ("", *ENDS))
    return "" if value is None else figure_text(Figure(value, low, high))


def figure_text(figure: Figure) -> str:
    """Returns a figure with its interval, to three digits: ``1.25 [1.19, 1.31]``."""
    ends = f" [{', '.join(map(readable, figure.ends))}]" if figure.ends else ""
    return f"{readable(figure.value)}{ends}"


def label_of(row: Row, names: Sequence[str]) -> str:
    """Returns the label of a row: the values of some columns."""
    return _BETWEEN.join("-" if row.get(name) is None else shown(row[name]) for name in names)


def heading_of(names: Sequence[str]) -> str:
    """Returns the heading over labels: the names of their parts."""
    return _BETWEEN.join(name.replace("_", " ") for name in names)


def bar_chart(
    axis: str, rows: Sequence[Row], names: Sequence[str], figures: Mapping[str, str]
) -> BarChart | None:
    """Returns a row of bars for each row of a table.

    Args:
        axis: The name of the figure.
        rows: The rows; the first ``MOST_ROWS`` with a value are drawn.
        names: The columns that identify a row.
        figures: The group of each bar, by the column that has its value.

    Returns:
        None if no row has a value of zero or more.
    """
    lines = []
    for row in rows:
        label = label_of(row, names)
        bars = tuple(
            Bar(value, group, text := interval_text(row, key), _told(label, group, text))
            for key, group in figures.items()
            if (value := number_of(row.get(key))) is not None and value >= 0
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
        places: The number that each column of values stands for.

    Returns:
        None if no row has a value of zero or more.
    """
    points = [
        Point(place, value, label, "", _told(label, f"at {place:g}", interval_text(row, key)))
        for row in rows[:MOST_LINES]
        for label in [label_of(row, names)]
        for key, place in sorted(places.items(), key=lambda item: item[1])
        if (value := number_of(row.get(key))) is not None and value >= 0
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
    """Yields the points, each with its tooltip and name; many points form one series per group."""
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
    """Returns a drawing of as many charts as fit; None if there are no charts."""
    there = [chart for chart in charts if chart is not None]
    if not there:
        return None
    fitting = how_many_fit(there)
    hidden = (f"{fitting} of {len(there)} charts are shown.",) * (fitting < len(there))
    return Drawing(title, tuple(there[:fitting]), tuple(dict.fromkeys(groups)), (*notes, *hidden))


def rows_note(count: int, most: int) -> tuple[str, ...]:
    """Returns the note that some rows are not drawn, if there are more than ``most``."""
    return (f"The first {most} of {count:,} rows are shown.",) * (count > most)


def as_number(value: Value) -> float | None:
    """Returns a value as a finite number, parsing a text if needed; None for any other value."""
    try:
        return number_of(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None


def is_far(values: Sequence[float]) -> bool:
    """Returns whether values lie so far apart that a logarithmic axis separates them better."""
    return min(values) > 0 and max(values) > _FAR * min(values)


def _told(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _groups(points: Sequence[Point]) -> Mapping[str, Sequence[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.group, []).append(point)
    return found


DOUBTS = Column("doubts", "doubts", detail=1)
"""The reasons why the figures of a row may be unreliable."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """A table about the cells of a plan.

    Attributes:
        name: The name of the table, for the page.
        caption: What the table shows, in one line.
        notes: Notes that a reader needs, one line each.
        drawing: Its chart; None for none.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    drawing: Drawing | None = None

    def for_people(self) -> PlanTable:
        """Returns the table with each figure and its interval in one cell: ``1.25 [1.19, 1.31]``."""
        known = {column.key for column in self.columns}
        joined = [column for column in self.columns if f"{column.key}_low" in known]
        ends = {f"{column.key}{end}" for column in joined for end in ENDS}
        rows = tuple({**row, **{each.key: _with_interval(row, each) for each in joined}} for row in self.rows)
        return replace(self, columns=tuple(c for c in self.columns if c.key not in ends), rows=rows)


def _with_interval(row: Row, column: Column) -> str | None:
    value, low, high = (row[f"{column.key}{end}"] for end in ("", *ENDS))
    if value is None:
        return None
    told = cell_text(value, column)
    return told if low is None else f"{told} [{cell_text(low, column)}, {cell_text(high, column)}]"


def known_figures(cases: Sequence[Case], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the named figures, or the main one; raises ConfigurationError if no case has one of them."""
    known = dict.fromkeys(name for case in cases for name in case.figures)
    for name in names:
        if name not in known:
            raise ConfigurationError(f'no cell has the figure "{name}"; {suggestion(name, known)}')
    main = [name for name in main_figures() if name in known]
    return (
        tuple(names)
        or tuple(name for name in main if all(name in case.figures for case in cases))[:1]
        or tuple(main[:1])
    )


def telling(cases: Sequence[Case], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names, other than those in use, that are needed to tell the cases apart.

    Parameters come first, in the plan's order; a name that splits no group further is omitted.
    """
    every = dict.fromkeys(name for case in cases for name in (*case.cell.parameters, *case.apart))
    kept, groups = list(taken), len({place_of(case, taken) for case in cases})
    for name in every:
        more = len({place_of(case, (*kept, name)) for case in cases})
        if name not in kept and more > groups:
            kept.append(name)
            groups = more
    return tuple(kept[len(taken) :])


def table(
    cases: Sequence[Case], rows: Sequence[str] = (), columns: Sequence[str] = (), values: Sequence[str] = ()
) -> PlanTable:
    """Returns a table of figures by rows and columns.

    Args:
        cases: The cases.
        rows: The dimensions of the rows; empty for those that tell the cases apart besides the columns.
        columns: The dimensions of the columns; empty for one column for each figure.
        values: The keys of the figures; empty for the main one.

    Raises:
        ConfigurationError: A name is unknown, or cases that differ in another dimension fall into one place.
    """
    figures = known_figures(cases, values)
    check_dimensions(cases, (*rows, *columns))
    rows = tuple(rows) or telling(cases, columns)
    found: dict[tuple[str, ...], dict[tuple[str, ...], Case]] = {}
    for case in cases:
        of_row = found.setdefault(place_of(case, rows), {})
        other = of_row.setdefault(place_of(case, columns), case)
        if other is not case:
            raise ConfigurationError(mixed(other, case, (*rows, *columns)))
    across = {place: told_of(case, columns) for of_row in found.values() for place, case in of_row.items()}
    made = tuple(_row(rows, of_row, across, figures) for of_row in found.values())
    by = " and ".join(filter(None, (", ".join(rows), ", ".join(columns))))
    caption = f"{', '.join(figures)} by {by}" if by else ", ".join(figures)
    return PlanTable(
        name="table",
        caption=caption,
        columns=(
            *dimension_columns(rows),
            *(each for told in across.values() for name in figures for each in value_columns(name, told)),
            DOUBTS,
        ),
        rows=made,
        notes=tuple(notes_on(cases, figures)),
        drawing=_drawing(caption, made, rows, columns, figures, across),
    )


def _drawing(
    caption: str,
    rows: Sequence[Row],
    names: Sequence[str],
    columns: Sequence[str],
    figures: Sequence[str],
    across: Mapping[tuple[str, ...], str],
) -> Drawing | None:
    """Draws lines over the dimension of the columns if it is a single numeric one, otherwise bars."""
    places = {place: as_number(place[0]) for place in across} if len(columns) == 1 else {}
    numbers = {place: number for place, number in places.items() if number is not None}
    known, charts = figure_columns(), []
    is_over = len(numbers) == len(across) > 1
    for figure in figures:
        keys = {place: f"{figure}[{told}]" if told else figure for place, told in across.items()}
        chart: BarChart | PointChart | None
        if is_over:
            over = {keys[place]: number for place, number in numbers.items()}
            chart = line_chart((columns[0].replace("_", " "), known[figure].header), rows, names, over)
        else:
            by_key = {key: across[place] for place, key in keys.items()}
            chart = bar_chart(known[figure].header, rows, names, by_key)
        charts.append(chart)
    groups = [label_of(row, names) for row in rows[:MOST_LINES]] if is_over else list(across.values())
    most = MOST_LINES if is_over else MOST_ROWS
    return drawing_of(caption, charts, groups, rows_note(len(rows), most))


def dimension_columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Returns the columns of dimensions, keyed by their names."""
    return tuple(Column(name, name.replace("_", " "), stays=True) for name in names)


def value_columns(name: str, place: str = "") -> tuple[Column, ...]:
    """Returns the columns of a figure and of the ends of its interval.

    Args:
        name: The key of the figure.
        place: The place of the column, such as ``batch_size=8``, which becomes part of the keys. Empty for
            all.
    """
    known = figure_columns()[name]
    key = f"{name}[{place}]" if place else name
    heading = f"{place}: {known.header}" if place else known.header
    return interval_columns(Column(key, heading, known.decimals, stays=True))


def interval_columns(column: Column) -> tuple[Column, ...]:
    """Returns a column and the columns of the ends of its interval."""
    key, heading = column.key, column.header
    ends = (Column(f"{key}{end}", f"{heading}{end.replace('_', ' ')}", column.decimals, 3) for end in ENDS)
    return (column, *ends)


def figure_values(name: str, figure: Figure | None, place: str = "") -> dict[str, Value]:
    """Returns the values for the columns of ``value_columns``."""
    key = f"{name}[{place}]" if place else name
    values = (None,) * 3 if figure is None else (figure.value, figure.low, figure.high)
    return {f"{key}{end}": value for end, value in zip(("", *ENDS), values, strict=True)}


def check_dimensions(cases: Sequence[Case], names: Sequence[str]) -> None:
    """Raises ConfigurationError, which names the nearest one, if no case has a dimension."""
    known = dict.fromkeys(name for case in cases for name in case.dimensions)
    for name in names:
        if cases and name not in known:
            raise ConfigurationError(f'no cell has "{name}"; {suggestion(name, known)}')


def notes_on(cases: Sequence[Case], figures: Sequence[str]) -> Iterator[str]:
    """Yields notes on the meaning of the intervals of figures."""
    counts = {case.figures[name].count for case in cases for name in figures if name in case.figures}
    if counts == {1}:
        yield "One repetition of each cell: its intervals are those within the run, and not between runs."
    elif counts:
        most = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
        yield f"Each figure is the geometric mean of {most} repetitions, with its 95 % interval."


def failures(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> PlanTable:
    """Returns the runs that did not complete, and those whose jobs had no result, with the reasons."""
    rows = []
    for run in runs:
        known = history.get(run.key)
        result = known.result if known else None
        if known is None or not (known.losses or (result and result.ended is not Ended.COMPLETE)):
            continue
        rows.append(
            {
                "run": run.key,
                "cell": run.cell.name,
                "ended": known.state,
                "reason": result.reason if result else "",
                "before": "; ".join(known.losses),
                "host": result.host if result else "",
            }
        )
    names = (Column("run", "run"), Column("ended", "ended", stays=True))
    wide = (  # a terminal narrows the last column first
        Column("reason", "reason", stays=True, least=32, wraps=True),
        Column("before", "before that", least=30, wraps=True),
        Column("cell", "cell", stays=True, wraps=True),
    )
    return PlanTable(
        name="failures",
        caption="the runs that are not complete, or were lost on the way",
        columns=(*names, *wide, Column("host", "host", detail=1)),
        rows=tuple(rows),
        notes=() if rows else ("No run failed, or was lost on the way.",),
    )


def _row(
    rows: Sequence[str],
    of_row: Mapping[tuple[str, ...], Case],
    across: Mapping[tuple[str, ...], str],
    figures: Sequence[str],
) -> Row:
    first = next(iter(of_row.values()))
    values: dict[str, Value] = {name: first.dimensions.get(name) for name in rows}
    doubts = []
    for place, told in across.items():
        case = of_row.get(place)
        for name in figures:
            values |= figure_values(name, case.figures.get(name) if case else None, told)
        if case is not None and case.doubts:
            doubts.append(f"{told}: {case.doubts}" if told else case.doubts)
    return {**values, DOUBTS.key: ", ".join(doubts) or None}


def mixed(one: Case, other: Case, names: Sequence[str]) -> str:
    """Returns the reason why two cases cannot share a place."""
    left = telling((one, other), names)
    differs = f"they differ in {', '.join(left)}" if left else "they do not differ in any parameter"
    return (
        f"cells {one.cell.id} and {other.cell.id} fall into one place of the table: {differs}; "
        "add a row or a column, or choose with --where"
    )


def place_of(case: Case, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of dimensions as texts."""
    return tuple(shown(case.dimensions.get(name)) for name in names)


def told_of(case: Case, names: Sequence[str]) -> str:
    """Returns the values of dimensions with their names: ``batch_size=8, threads=2``."""
    return ", ".join(f"{name}={shown(case.dimensions.get(name))}" for name in names)
