"""The library's results: one evaluation, or rows that convert to lists, Arrow, pandas, text and HTML.

HTML consists of tables with pictures; all text is escaped to prevent script injection.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, overload

from typing_extensions import Self

from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.drawing.charts import Drawing, find_plot
from inferometer.evaluators.drawing.writer import inline_svg
from inferometer.evaluators.evaluation import Evaluation, Measurement, Status
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.summary import (
    conditions_rows,
    name_width,
    process_groups,
    process_rows,
    trace_rows,
)
from inferometer.evaluators.reports.base import Column, Report, Row, Value
from inferometer.evaluators.reports.table import cell_text, terminal_table
from inferometer.manifests.errors import ConfigurationError, printable

MOST_ROWS = 200
"""The maximum number of rows that a table shows."""
_ID_CHARACTERS = 8
_LEFT = "text-align: left; padding-right: 1em"
_RIGHT = "text-align: right; padding-right: 1em; font-variant-numeric: tabular-nums"


def figures(rows: Iterable[tuple[str, str]]) -> str:
    """Returns an HTML table of names and values; a value without a name belongs to the row above."""
    return f"<table>{''.join(_line('td', [(name, _LEFT), (value, _LEFT)]) for name, value in rows)}</table>"


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns an HTML table. Values that all rows share appear above the table, and ids are shortened."""
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
    """Returns texts as HTML, each on its own line."""
    return "".join(f"<div>{_text(text)}</div>" for text in texts)


def with_picture(shown: str, report: Report[Any], evaluations: Sequence[Evaluation]) -> str:
    """Adds the picture of a report, if Matplotlib is installed and there is something to draw."""
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


_Item = TypeVar("_Item")


class Tabular(ABC):
    """The base class of objects that display as a table and can be converted for other programs."""

    _columns: Sequence[Column]

    @property
    @abstractmethod
    def _table(self) -> Sequence[Row]:
        """The rows, each with a value for every column."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the list of values of each column, by column key."""
        return {column.key: [row[column.key] for row in self._table] for column in self._columns}

    def to_arrow(self) -> Any:
        """Returns a ``pyarrow.Table``.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return _installed("pyarrow").table(self.to_dict())

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return _installed("pandas").DataFrame(self.to_dict())

    def __repr__(self) -> str:
        """Returns the table as text, as wide as the terminal."""
        return "".join(terminal_table(self._columns, self._table, io.StringIO(), header=True)).rstrip("\n")

    def _repr_html_(self) -> str:
        return table(self._columns, self._table)


class Items(Tabular, Sequence[_Item]):
    """The base class of tables that are also sequences."""

    _items: tuple[_Item, ...]

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> _Item: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[_Item]: ...

    def __getitem__(self, place: int | slice) -> _Item | Sequence[_Item]:
        return self._items[place]


class Rows(Items[Row]):
    """The rows of a report.

    Args:
        columns: The columns.
        rows: The rows, each with a value for every column.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        self._columns = tuple(columns)
        self._items = tuple(rows)

    @property
    def _table(self) -> Sequence[Row]:
        return self._items


def _installed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigurationError(
            f"{package} is not installed; pip install {package}, or use to_dict"
        ) from error


M = TypeVar("M", bound=Measurement)


class Result(ABC, Generic[M]):
    """One evaluation; in a notebook it displays as a table with its picture.

    Attributes:
        evaluation: The complete evaluation, with the raw times and the system.
    """

    _pictured: ClassVar[type[Report[Any]]]
    """The report whose picture shows the evaluation."""

    def __init__(self, evaluation: Evaluation[M]) -> None:
        self.evaluation = evaluation
        self._group: tuple[Any, ...] = (self,)

    @classmethod
    def last_of(cls, evaluations: Iterable[Evaluation[M]]) -> Self:
        """Returns the result of the last evaluation of a call; its ``group`` contains all results."""
        group = tuple(map(cls, evaluations))
        for each in group:
            each._group = group
        return group[-1]

    @property
    def group(self) -> tuple[Self, ...]:
        """All results of the call, in order; a call with several evaluations returns the last one."""
        return self._group

    @property
    def id(self) -> str:
        """The evaluation's id, which ``agent info evaluation show``, for example, accepts."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether the evaluation ran to the end, and not every input failed; Ctrl-C makes it incomplete."""
        return self.evaluation.status is Status.COMPLETE

    @property
    def conditions(self) -> Conditions | None:
        """The disturbances during the measurement, and the verdict on stability; None if unknown."""
        return self.evaluation.conditions

    def __repr__(self) -> str:
        rows = self._rows()
        width = name_width(rows)
        return "\n".join(printable(f"{name:<{width}}{value}") for name, value in rows)

    def _repr_html_(self) -> str:
        return with_picture(figures(self._rows()), self._pictured(), [self.evaluation])

    def _rows(self) -> Sequence[tuple[str, str]]:
        system = self.evaluation.system
        manifest = system.manifest
        on = f"{manifest.framework.name} {system.framework_version} ({system.device}, {system.agent})"
        evaluations: list[Evaluation[Any]] = [each.evaluation for each in self.group]
        processes = process_rows(process_groups(evaluations))
        return (("model", f"{manifest.name} {manifest.version} on {on}"), *self._figures(), *processes)

    def _figures(self) -> Sequence[tuple[str, str]]:
        """Returns the summary as names and values; a value without a name continues the previous one."""
        evaluation, kind = self.evaluation, kind_of(self.evaluation)
        stopped = "" if self.complete or kind.keeps_interrupted else "  interrupted"
        return (
            *kind.summary(evaluation),
            *conditions_rows(evaluation),
            *trace_rows(evaluation),
            ("evaluation", self.id + stopped),
        )
