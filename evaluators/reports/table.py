"""Renders rows as an aligned table, which is made to fit a terminal."""

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
_TIME_LENGTH = 16
_LINES_OF_NAMES = 2
_SEPARATOR = "\t"  # cells hold no tab and no line feed, as both are escaped


class Cells:
    """The cells of rows, which can be read repeatedly, and the widths and the kinds of the columns.

    Up to a megabyte is kept in memory; more goes to an unnamed temporary file.

    Attributes:
        count: The number of rows.
        widths: The width of the widest cell of each column, in terminal cells.
        numeric: Whether each column holds only numbers.
        first: The cells of the first row.
        same: Whether each column has the same cell in every row.
        short: Whether each column holds ids that differ in their first 8 characters.

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
                try:
                    self._file.write(piece)
                except OSError as error:
                    raise _no_room(error) from error
        except BaseException:
            self._file.close()
            raise

    @property
    def numeric(self) -> Sequence[bool]:
        """See the attribute of the class."""
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
        """Releases the cells, which cannot be read afterwards."""
        self._file.close()

    def _line(self, columns: Sequence[Column], row: Row) -> str:
        """Returns the cells of a row as one line; also updates the widths and kinds of the columns."""
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


def _no_room(error: OSError) -> OutputError:
    return OutputError(
        f"a table of this many rows requires a temporary file, which fails: {error.strerror or error}; "
        "set TMPDIR to another folder, or choose csv or json"
    )


def width(text: str) -> int:
    """Returns the width of a text in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


def cell_text(value: Value, column: Column) -> str:
    """Returns a value as a table shows it: floats rounded, and always on one line."""
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
    """Yields the lines, joined into pieces that are large enough to be worth writing."""
    source = iter(lines)
    while piece := "".join(itertools.islice(source, _LINES_IN_A_PIECE)):
        yield piece


def plain_table(columns: Sequence[Column], rows: Iterable[Row], *, header: bool) -> Iterator[str]:
    """Yields the pieces of the table as plain text, as wide as its values; nothing is truncated.

    All rows are read before the first piece; many rows are kept in a temporary file.
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

    A table that has a header and is wider than the terminal is made to fit: columns that are the same in
    every row move above it, ids are shortened, long texts are cut or wrapped, and the least informative
    columns, which then come last, are left out and listed. With ``every_column``, none is moved or left out.
    """
    from rich.console import Console  # a pipe or a file does not require it

    # in a notebook, rich would display by itself, and the kernel asks for colours wherever the text goes
    console = Console(file=terminal, highlight=False, force_jupyter=False, force_terminal=terminal.isatty())
    with closing(Cells(columns, rows)) as cells:
        if header and max(map(width, _lines(columns, cells, header))) > console.width:
            yield from _fitted(console, columns, cells, every_column)
            return
        lines = _lines(columns, cells, header)
        if header:  # alone in a style, as printing with one takes long
            yield f"{_bold(console, next(lines))}\n"
        yield from joined(f"{line}\n" for line in lines)


def _fitted(console: Console, columns: Sequence[Column], cells: Cells, every_column: bool) -> Iterator[str]:
    """Yields the table, fitted to the width of the terminal."""
    room = _Room(columns, cells, console.width)
    places, above = list(range(len(columns))), []
    if not every_column:
        places.sort(key=lambda place: columns[place].detail)
    if not every_column and cells.count:
        above = [place for place in places if _is_known_once(columns[place], cells, place)]
        places = [place for place in places if place not in above] or places[:1]
    known = [place for place in above if cells.first[place] not in ("", _NOTHING)]
    yield from wrapped(
        [f"{columns[p].header}: {room.shortened(p, cells.first[p])}" for p in known], room.wide
    )
    left_out = room.squeeze(places) if every_column else room.fit(places)
    for line in room.heading(places):
        yield f"{_bold(console, line)}\n"
    for row in cells:
        yield from room.lines(places, [room.cell(place, row[place]) for place in places])
    if left_out:
        yield from _named(sorted(left_out), columns, room.wide)


def _is_known_once(column: Column, cells: Cells, place: int) -> bool:
    """Returns whether a column moves above the table or is left out: it is constant, empty or minor."""
    if cells.count > 1:
        return cells.same[place] and not column.stays
    return bool(column.detail) or cells.first[place] == _NOTHING


def _named(places: Sequence[int], columns: Sequence[Column], wide: int) -> Iterator[str]:
    """Yields the names of the columns that are not shown, or as many as fit into two lines."""
    names = [columns[place].header for place in places]
    for count in range(len(names), 0, -1):
        rest = f" and {len(names) - count} more" if count < len(names) else ""
        lines = folded(f"not shown, but in csv and json: {', '.join(names[:count])}{rest}", wide)
        if len(lines) <= _LINES_OF_NAMES or count == 1:
            yield from (f"{line}\n" for line in lines)
            return


class _Room:
    """The widths of the columns of a table that is too wide for a terminal."""

    def __init__(self, columns: Sequence[Column], cells: Cells, wide: int) -> None:
        self.wide = wide
        self._columns, self._cells = columns, cells
        self._is_text = [not (n or c.is_id) for n, c in zip(cells.numeric, columns, strict=True)]
        self.widths = [
            max(self._own_width(place), *map(width, column.header.split(" ")))
            for place, column in enumerate(columns)
        ]

    def _own_width(self, place: int) -> int:
        """Returns the width of the cells in a column."""
        most = _ID_LENGTH if self._cells.short[place] else self._cells.widths[place]
        return min(most, _TIME_LENGTH) if self._columns[place].is_time else most

    def fit(self, places: list[int]) -> list[int]:
        """Removes the last of the columns at ``places`` until the others fit; returns the removed ones.

        Texts are narrowed before an informative column is omitted.
        """
        left_out: list[int] = []
        while (too_wide := self._needed(places) - self.wide) > 0:
            last = places[-1]
            if len(places) == 1 or self._spare(last) >= too_wide:
                self.widths[last] -= too_wide
            elif self._columns[last].detail <= 1 and sum(map(self._spare, places)) >= too_wide:
                self.squeeze(places)
            else:
                left_out.append(places.pop())
        return left_out

    def squeeze(self, places: Sequence[int]) -> list[int]:
        """Narrows the texts among the columns at ``places``, the widest first; leaves no column out."""
        while (too_wide := self._needed(places) - self.wide) > 0:
            widest = max(places, key=self._spare)
            if self._spare(widest) <= 0:
                break
            self.widths[widest] -= min(too_wide, self._spare(widest))
        return []

    def heading(self, places: Sequence[int]) -> Iterator[str]:
        """Yields the lines of the heading; long headers are folded, and all of them end in the last line."""
        headings = [folded(self._columns[place].header, self.widths[place]) for place in places]
        most = max(map(len, headings))
        for line in zip(*([""] * (most - len(each)) + each for each in headings), strict=True):
            yield self._joined(places, line)

    def lines(self, places: Sequence[int], row: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yields the lines of a row, whose cells may have several lines."""
        for line in itertools.zip_longest(*row, fillvalue=""):
            yield f"{self._joined(places, line)}\n"

    def cell(self, place: int, text: str) -> list[str]:
        """Returns the lines of a cell."""
        if self._cells.short[place]:
            return [text[:_ID_LENGTH]]
        text, wide = self.shortened(place, text), self.widths[place]
        return folded(text, wide) if self._columns[place].wraps else [_cut(text, wide)]

    def shortened(self, place: int, text: str) -> str:
        """Returns a time truncated to the minute, and any other text unchanged."""
        return text[:_TIME_LENGTH].replace("T", " ") if self._columns[place].is_time else text

    def _joined(self, places: Sequence[int], line: Sequence[str]) -> str:
        numeric, widths = self._cells.numeric, self.widths
        aligned = (_aligned(t, widths[p], numeric[p]) for p, t in zip(places, line, strict=True))
        return _GAP.join(aligned).rstrip()

    def _needed(self, places: Sequence[int]) -> int:
        return sum(self.widths[place] for place in places) + len(_GAP) * (len(places) - 1)

    def _spare(self, place: int) -> int:
        """Returns by how much a column can be narrowed."""
        least = max(self._columns[place].least, *map(width, self._columns[place].header.split(" ")))
        return max(0, self.widths[place] - least) if self._is_text[place] else 0


def _cut(cell: str, wide: int) -> str:
    """Returns a cell of at most this width; an ellipsis replaces the part that is cut off."""
    if width(cell) <= wide:
        return cell
    while width(cell) >= wide:
        cell = cell[:-1]
    return f"{cell}…"


def wrapped(items: Sequence[str], wide: int, gap: str = _GAP) -> Iterator[str]:
    """Yields lines of as many items as fit; an item wider than a line is cut."""
    line = ""
    for item in items:
        if line and width(line) + len(gap) + width(item) > wide:
            yield f"{line}\n"
            line = ""
        line += f"{gap if line else ''}{_cut(item, wide)}"
    if line:
        yield f"{line}\n"


def folded(text: str, wide: int) -> list[str]:
    """Returns the lines of a text, each of at most this width.

    It is split between words, preferably at two blanks; a word that is wider than a line is split.
    """
    wide = max(wide, 1)
    lines = [""]
    for part in re.split(r"(?<=\S)(?=\s\s)", text):  # each with the blanks before it
        whole = width(part.lstrip()) <= wide
        for word in [part] if whole else re.split(r"(?<=\S)(?=\s)", part):
            _add(lines, word, wide)
    return lines


def _add(lines: list[str], word: str, wide: int) -> None:
    """Adds a word to the last line, or splits it over further lines."""
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
    """Returns the text with the terminal's control characters for bold, if any."""
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
