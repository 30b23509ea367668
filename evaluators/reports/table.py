"""Rendering of rows as an aligned table, which is made to fit a terminal."""

from __future__ import annotations

import itertools
import re
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
            cell = _shown(value, column)
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
    columns: Sequence[Column],
    rows: Iterable[Row],
    terminal: TextIO,
    *,
    header: bool,
    every_column: bool = False,
) -> Iterator[str]:
    """Yields the pieces of the table for a terminal; see ``plain_table``.

    A table with a header that is wider than the terminal is made to fit: what is the same in every row goes
    above it, ids are shortened, long texts are cut or go on in further lines, and the columns that tell
    least, which come last then, are left out and named. With ``every_column``, none is moved or left out.
    """
    from rich.console import Console  # a pipe or a file does not require it

    console = Console(file=terminal, highlight=False)
    with closing(Cells(columns, rows)) as cells:
        if header and cells.count and max(map(width, _lines(columns, cells, header))) > console.width:
            yield from _fitted(console, columns, cells, every_column)
            return
        lines = _lines(columns, cells, header)
        if header:  # alone in a style, as printing with one takes long
            yield f"{_bold(console, next(lines))}\n"
        yield from joined(f"{line}\n" for line in lines)


def _fitted(console: Console, columns: Sequence[Column], cells: Cells, every_column: bool) -> Iterator[str]:
    """Yields the table without what is wider than the terminal."""
    places, above = list(range(len(columns))), []
    if not every_column:
        places.sort(key=lambda place: columns[place].detail)
        above = [p for p in places if (cells.same[p] if cells.count > 1 else columns[p].detail)]
        places = [place for place in places if place not in above] or places[:1]
    known = [place for place in above if cells.first[place] != _NOTHING]
    yield from wrapped([f"{columns[p].header}: {cells.first[p]}" for p in known], console.width)
    room = _Room(columns, cells, console.width)
    left_out = room.squeeze(places) if every_column else room.fit(places)
    heading = (_aligned(columns[p].header, room.widths[p], cells.numeric[p]) for p in places)
    yield f"{_bold(console, _GAP.join(heading).rstrip())}\n"
    for row in cells:
        folded = [room.cell(place, row[place]) for place in places]
        for line in itertools.zip_longest(*folded, fillvalue=""):
            yield f"{_GAP.join(map(_aligned, line, *room.aligning(places))).rstrip()}\n"
    if left_out:
        names = ", ".join(columns[place].header for place in left_out)
        yield from wrapped(f"not shown, but in csv and json: {names}".split(" "), console.width, " ")


class _Room:
    """The widths of the columns of a table that is too wide for a terminal."""

    def __init__(self, columns: Sequence[Column], cells: Cells, wide: int) -> None:
        self._columns, self._cells, self._wide = columns, cells, wide
        self._is_text = [not (n or s) for n, s in zip(cells.numeric, cells.short, strict=True)]
        self.widths = [
            max(_ID_LENGTH if short else own, width(column.header))
            for column, own, short in zip(columns, cells.widths, cells.short, strict=True)
        ]

    def fit(self, places: list[int]) -> list[int]:
        """Takes the last of the ``places`` out until the others have room; returns those it took out."""
        left_out: list[int] = []
        while (too_wide := self._needed(places) - self._wide) > 0:
            last = places[-1]
            if len(places) == 1 or (
                self._is_text[last] and self.widths[last] - too_wide >= self._least(last)
            ):
                self.widths[last] -= too_wide
            else:
                left_out.insert(0, places.pop())
        return left_out

    def squeeze(self, places: Sequence[int]) -> list[int]:
        """Narrows the texts among the ``places``, the widest first; leaves none out."""
        texts = [place for place in places if self._is_text[place]]
        while (too_wide := self._needed(places) - self._wide) > 0:
            spare = {place: self.widths[place] - self._least(place) for place in texts}
            widest = max(texts, key=lambda place: spare[place], default=None)
            if widest is None or spare[widest] <= 0:
                break
            self.widths[widest] -= min(too_wide, spare[widest])
        return []

    def cell(self, place: int, text: str) -> list[str]:
        """The lines of a cell."""
        if self._cells.short[place]:
            return [text[:_ID_LENGTH]]
        wide = self.widths[place]
        return folded(text, wide) if self._columns[place].wraps else [_cut(text, wide)]

    def aligning(self, places: Sequence[int]) -> tuple[list[int], list[bool]]:
        """The widths, and whether the cells stand to the right."""
        return [self.widths[place] for place in places], [self._cells.numeric[place] for place in places]

    def _needed(self, places: Sequence[int]) -> int:
        return sum(self.widths[place] for place in places) + len(_GAP) * (len(places) - 1)

    def _least(self, place: int) -> int:
        return max(_LEAST_TEXT, width(self._columns[place].header))


def _cut(cell: str, wide: int) -> str:
    """A cell that is no wider; an ellipsis stands for what is cut off its end."""
    if width(cell) <= wide:
        return cell
    while width(cell) >= wide:
        cell = cell[:-1]
    return f"{cell}…"


def wrapped(items: Sequence[str], wide: int, gap: str = _GAP) -> Iterator[str]:
    """Yields lines of as many items as fit; an item that is wider than a line is cut."""
    line = ""
    for item in items:
        if line and width(line) + len(gap) + width(item) > wide:
            yield f"{line}\n"
            line = ""
        line += f"{gap if line else ''}{_cut(item, wide)}"
    if line:
        yield f"{line}\n"


def folded(text: str, wide: int) -> list[str]:
    """Returns the lines of a text that are no wider.

    It is split between words, where there are two blanks first; a word that is wider than a line is split.
    """
    wide = max(wide, 1)
    lines = [""]
    for part in re.split(r"(?<=\S)(?=\s\s)", text):  # each with the blanks before it
        whole = width(part.lstrip()) <= wide
        for word in [part] if whole else re.split(r"(?<=\S)(?=\s)", part):
            _add(lines, word, wide)
    return lines


def _add(lines: list[str], word: str, wide: int) -> None:
    """Adds a word to the last line, or to further ones."""
    if width(lines[-1] + word) > wide and lines[-1]:
        lines.append("")
        word = word.lstrip()
    while width(word) > wide:
        head = word[:wide]
        while width(head) > wide and len(head) > 1:
            head = head[:-1]
        lines[-1:] = [head, ""]
        word = word[len(head) :]
    lines[-1] += word


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
