"""Rows as a table for people: aligned columns, turned on its side where a terminal is too narrow for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from evaluators.reports.base import Column, Row, Value

if TYPE_CHECKING:
    from rich.console import Console

_GAP = "  "
_NOTHING = "-"


def plain_table(columns: Sequence[Column], rows: Sequence[Row], *, header: bool) -> str:
    """Returns the table as plain text, as wide as its values are; nothing is cut."""
    return "".join(f"{line}\n" for line in _lines(columns, rows, header))


def terminal_table(columns: Sequence[Column], rows: Sequence[Row], terminal: TextIO, *, header: bool) -> str:
    """Returns the table for a terminal, in its colours.

    Where it is wider than the terminal it is turned, with one line for each column and the rows beside each
    other, unless there is to be no header.
    """
    from rich.console import Console  # which a pipe or a file does not need
    from rich.text import Text

    console = Console(file=terminal, highlight=False)
    lines = _lines(columns, rows, header)
    with console.capture() as captured:
        if header and rows and max(map(cell_len, lines)) > console.width:
            _print_turned(console, columns, rows)
        else:
            for number, line in enumerate(lines):
                console.print(Text(line, style="bold" if header and number == 0 else ""), soft_wrap=True)
    return captured.get()


def _print_turned(console: Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Prints a line for each column, with as many rows beside each other as fit, and at least one."""
    from rich.text import Text

    names = max(cell_len(column.header) for column in columns)
    cells = [[_shown(row[column.key], column) for column in columns] for row in rows]
    widths = [max(map(cell_len, row)) for row in cells]
    start = 0
    while start < len(rows):
        if start:
            console.print()
        end, used = start + 1, names + len(_GAP) + widths[start]
        while end < len(rows) and used + len(_GAP) + widths[end] <= console.width:
            used += len(_GAP) + widths[end]
            end += 1
        for number, column in enumerate(columns):
            values = (_aligned(cells[row][number], widths[row], right=False) for row in range(start, end))
            name = _aligned(column.header, names, right=False) + _GAP
            console.print(Text.assemble((name, "bold"), _GAP.join(values).rstrip()), soft_wrap=True)
        start = end


def _lines(columns: Sequence[Column], rows: Sequence[Row], header: bool) -> list[str]:
    cells = [[_shown(row[column.key], column) for column in columns] for row in rows]
    if header:
        cells.insert(0, [column.header for column in columns])
    widths = [max(map(cell_len, column), default=0) for column in zip(*cells, strict=True)]
    numeric = [_is_numeric([row[column.key] for row in rows]) for column in columns]
    return [
        _GAP.join(
            _aligned(cell, width, right) for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def _aligned(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if right else cell + space


def _is_numeric(values: Sequence[Value]) -> bool:
    """Whether there are numbers among the values, and nothing else."""
    found = [value for value in values if value is not None]
    return bool(found) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)


def _shown(value: Value, column: Column) -> str:
    """A value as a table shows it: floats rounded, control characters escaped so that a line stays one."""
    match value:
        case None:
            return _NOTHING
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.{column.decimals}f}"
        case int():
            return str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)
