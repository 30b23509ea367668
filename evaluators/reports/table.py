"""Rendering of rows as an aligned table, which is made to fit a terminal."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import OutputError, printable

if TYPE_CHECKING:
    from rich.console import Console

_NOTHING = "-"
_BYTES_IN_MEMORY = 1_000_000
_LINES_IN_A_PIECE = 1000
_ID_LENGTH = 8
_WHOLE_ID_LENGTH = 36
_LEAST_TEXT = 20
_SEPARATOR = "\t"  # cells hold no tab and no line feed, as both are escaped


class Cells:
    """The cells of rows, which can be read repeatedly, and the widths and kinds of the columns.

    A megabyte is kept in memory; more is kept in an unnamed temporary file.

    Attributes:
        count: The number of rows.
        widths: The width of the widest cell of each column, in terminal cells.
        numeric: Whether each column holds nothing but numbers.
        first: The cells of the first row.
        same: Whether each column has the same cell in every row.
        short: Whether each column holds ids of which no two begin with the same 8 characters.

    Raises:
        OutputError: The temporary file cannot be written.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        self.count = 0
        self.widths = [0] * len(columns)
        self.first: list[str] = []
        self.same = [True] * len(columns)
        self.short = [column.is_id for column in columns]
        self._ids: list[dict[str, str]] = [{} for _ in columns]
        self._numbers, self._others = [False] * len(columns), [False] * len(columns)
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - is open as long as this is
            _BYTES_IN_MEMORY, mode="w+", encoding="utf-8", newline="\n"
        )
        try:
            for piece in joined(self._line(columns, row) for row in rows):
                self._keep(piece)
        except BaseException:
            self._file.close()
            raise

    @property
    def numeric(self) -> Sequence[bool]:
        """See the class."""
        return [numbers and not others for numbers, others in zip(self._numbers, self._others, strict=True)]

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the cells of each row, in order; only one iteration at a time."""
        try:
            self._file.seek(0)
            for line in self._file:
                yield line.removesuffix("\n").split(_SEPARATOR)
        except OSError as error:
            raise _no_room(error) from error

    def close(self) -> None:
        """Frees the cells, which cannot be read afterwards."""
        self._file.close()

    def _line(self, columns: Sequence[Column], row: Row) -> str:
        """The cells of a row as one line; also updates the widths and kinds of the columns."""
        cells = []
        for place, column in enumerate(columns):
            value = row[column.key]
            cell = cell_text(value, column)
            self.widths[place] = max(self.widths[place], width(cell))
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._numbers[place] = True
            elif value is not None:
                self._others[place] = True
            if self.short[place]:
                known = self._ids[place].setdefault(cell[:_ID_LENGTH], cell)
                self.short[place] = known == cell and len(cell) == _WHOLE_ID_LENGTH
            cells.append(cell)
        self.first = self.first or cells
        self.same = [
            same and cell == of_all for same, cell, of_all in zip(self.same, cells, self.first, strict=True)
        ]
        self.count += 1
        return f"{_SEPARATOR.join(cells)}\n"

    def _keep(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise _no_room(error) from error


def _no_room(error: OSError) -> OutputError:
    return OutputError(
        f"a table of so many rows requires a temporary file, which fails: {error.strerror or error}; "
        "set TMPDIR to another folder, or choose csv or json"
    )


def width(text: str) -> int:
    """Returns the width of a text in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


def cell_text(value: Value, column: Column) -> str:
    """Returns a value as a table shows it: floats rounded, and in one line, whatever characters it has."""
    match value:
        case None:
            return _NOTHING
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.{column.decimals}f}"
        case int():
            return str(value)
    return printable(value)


_GAP = "  "


def joined(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines in pieces that are worth writing."""
    source = iter(lines)
    while piece := "".join(itertools.islice(source, _LINES_IN_A_PIECE)):
        yield piece


def plain_table(columns: Sequence[Column], rows: Iterable[Row], *, header: bool) -> Iterator[str]:
    """Yields the pieces of the table as plain text, as wide as its values; nothing is truncated.

    All rows are read before the first piece; many rows are kept in a temporary file.

    Raises:
        OutputError: The temporary file cannot be written.
    """
    with closing(Cells(columns, rows)) as cells:
        yield from joined(f"{line}\n" for line in _lines(columns, cells, header))


def terminal_table(
    columns: Sequence[Column], rows: Iterable[Row], terminal: TextIO, *, header: bool
) -> Iterator[str]:
    """Yields the pieces of the table for a terminal; see ``plain_table``.

    A table with a header that is wider than the terminal is made to fit: what is the same in every row goes
    above it, ids are shortened, and the columns that tell least, which come last then, are left out and
    named.
    """
    from rich.console import Console  # a pipe or a file does not require it

    console = Console(file=terminal, highlight=False)
    with closing(Cells(columns, rows)) as cells:
        if header and cells.count and max(map(width, _lines(columns, cells, header))) > console.width:
            yield from _fitted(console, columns, cells)
            return
        lines = _lines(columns, cells, header)
        if header:  # alone in a style, as printing with one takes long
            yield f"{_bold(console, next(lines))}\n"
        yield from joined(f"{line}\n" for line in lines)


def _fitted(console: Console, columns: Sequence[Column], cells: Cells) -> Iterator[str]:
    """Yields the table without what is wider than the terminal."""
    places = sorted(range(len(columns)), key=lambda place: columns[place].detail)
    above = [place for place in places if (cells.same[place] if cells.count > 1 else columns[place].detail)]
    places = [place for place in places if place not in above] or places[:1]
    widths = [
        max(_ID_LENGTH if cells.short[p] else cells.widths[p], width(columns[p].header)) for p in places
    ]
    numeric, left_out = cells.numeric, []
    while (too_wide := sum(widths) + len(_GAP) * (len(widths) - 1) - console.width) > 0:
        text = not (numeric[places[-1]] or cells.short[places[-1]])
        least = max(_LEAST_TEXT, width(columns[places[-1]].header))
        if len(widths) == 1 or (text and widths[-1] - too_wide >= least):
            widths[-1] -= too_wide
        else:
            left_out.append(columns[places.pop()].header)
            widths.pop()
    known = [place for place in above if cells.first[place] != _NOTHING]
    yield from _wrapped([f"{columns[p].header}: {cells.first[p]}" for p in known], console.width)
    right = [numeric[place] for place in places]
    heading = map(_aligned, [columns[place].header for place in places], widths, right)
    yield f"{_bold(console, _GAP.join(heading).rstrip())}\n"
    for row in cells:
        whole = [row[place][:_ID_LENGTH] if cells.short[place] else row[place] for place in places]
        yield f"{_GAP.join(map(_aligned, map(_cut, whole, widths), widths, right)).rstrip()}\n"
    if left_out:
        names = ", ".join(reversed(left_out))
        yield from _wrapped([*f"not shown, but in csv and json: {names}".split(" ")], console.width, " ")


def _cut(cell: str, wide: int) -> str:
    """A cell that is no wider; an ellipsis stands for what is cut off its end."""
    if width(cell) <= wide:
        return cell
    while width(cell) >= wide:
        cell = cell[:-1]
    return f"{cell}…"


def _wrapped(items: Sequence[str], wide: int, gap: str = _GAP) -> Iterator[str]:
    """Yields lines of as many items as fit."""
    line = ""
    for item in items:
        if line and width(line) + len(gap) + width(item) > wide:
            yield f"{line}\n"
            line = ""
        line += f"{gap if line else ''}{_cut(item, wide)}"
    if line:
        yield f"{line}\n"


def _bold(console: Console, text: str) -> str:
    """The text with the terminal's control characters for bold, if any."""
    from rich.text import Text

    with console.capture() as captured:
        console.print(Text(text, style="bold"), soft_wrap=True, end="")
    return captured.get()


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
