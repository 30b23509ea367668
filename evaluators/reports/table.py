"""Rows as a table for people: aligned columns, turned on its side where a terminal is too narrow for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TextIO

from evaluators.reports.base import Column, Row
from evaluators.reports.cells import Cells, width

if TYPE_CHECKING:
    from rich.console import Console

_GAP = "  "
_LINES_IN_A_PIECE = 1000


def plain_table(columns: Sequence[Column], rows: Iterable[Row], *, header: bool) -> Iterator[str]:
    """Yields the pieces of the table as plain text, as wide as its values are; nothing is cut.

    All rows are taken before the first piece, and kept out of memory where they are many.

    Raises:
        OutputError: There is no room for so many.
    """
    with closing(Cells(columns, rows)) as cells:
        lines = _lines(columns, cells, header)
        while piece := list(itertools.islice(lines, _LINES_IN_A_PIECE)):
            yield "".join(f"{line}\n" for line in piece)


def terminal_table(
    columns: Sequence[Column], rows: Iterable[Row], terminal: TextIO, *, header: bool
) -> Iterator[str]:
    """Yields the pieces of the table for a terminal, in its colours.

    Where it is wider than the terminal it is turned, with one line for each column and the rows beside each
    other, unless there is to be no header. Rows are kept as for ``plain_table``.

    Raises:
        OutputError: There is no room for so many.
    """
    from rich.console import Console  # which a pipe or a file does not need

    console = Console(file=terminal, highlight=False)
    with closing(Cells(columns, rows)) as cells:
        turned = header and cells.count and max(map(width, _lines(columns, cells, header))) > console.width
        if turned:
            yield from _turned(console, columns, cells)
        else:
            yield from _upright(console, _lines(columns, cells, header), header)


def _upright(console: Console, lines: Iterator[str], header: bool) -> Iterator[str]:
    """Yields pieces of the lines; only the first may have a style, as printing with one takes long."""
    if header:
        yield f"{_bold(console, next(lines))}\n"
    while piece := list(itertools.islice(lines, _LINES_IN_A_PIECE)):
        yield "".join(f"{line}\n" for line in piece)


def _turned(console: Console, columns: Sequence[Column], cells: Cells) -> Iterator[str]:
    """Yields blocks with a line for each column, and as many rows beside each other as fit, at least one."""
    widest = max(width(column.header) for column in columns)
    names = [_bold(console, _aligned(column.header, widest, right=False) + _GAP) for column in columns]
    blank = ""
    for block in _blocks(cells, console.width - widest):
        widths = [max(map(width, row)) for row in block]
        piece = [blank]
        for place, name in enumerate(names):
            values = (
                _aligned(row[place], wide, right=False) for row, wide in zip(block, widths, strict=True)
            )
            piece.append(f"{name}{_GAP.join(values).rstrip()}\n")
        yield "".join(piece)
        blank = "\n"


def _bold(console: Console, text: str) -> str:
    """The text with the control characters that make it bold, where the terminal has that."""
    from rich.text import Text

    with console.capture() as captured:
        console.print(Text(text, style="bold"), soft_wrap=True, end="")
    return captured.get()


def _blocks(cells: Iterable[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Rows that fit beside each other into so many places, each with a gap before it."""
    block: list[list[str]] = []
    used = 0
    for row in cells:
        wide = len(_GAP) + max(map(width, row))
        if block and used + wide > room:
            yield block
            block, used = [], 0
        block.append(row)
        used += wide
    yield block


def _lines(columns: Sequence[Column], cells: Cells, header: bool) -> Iterator[str]:
    headers = [column.header for column in columns]
    widths = [
        max(wide, width(heading)) if header else wide
        for wide, heading in zip(cells.widths, headers, strict=True)
    ]
    numeric = cells.numeric
    for line in itertools.chain([headers] if header else [], cells):
        yield _GAP.join(map(_aligned, line, widths, numeric)).rstrip()


def _aligned(cell: str, wide: int, right: bool) -> str:
    space = " " * (wide - width(cell))
    return space + cell if right else cell + space
