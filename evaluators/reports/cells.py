"""The cells of a table as text, out of memory where they are many, as a table is read more than once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from evaluators.reports.base import Column, Row, Value
from manifests.errors import OutputError

_NOTHING = "-"
_BYTES_IN_MEMORY = 1_000_000
_LINES_IN_A_PIECE = 100
_SEPARATOR = "\t"  # which no cell holds, nor a line feed: they are escaped


class Cells:
    """The cells of rows, read row by row any number of times, and what the columns have in common.

    A megabyte is kept in memory; more is kept in a temporary file that has no name.

    Args:
        columns: What is shown of each row, and how.
        rows: Each has a value for every column. They are taken one by one, and not kept.

    Attributes:
        count: The number of rows.
        widths: Of each column, the places that its widest cell takes on a screen.
        numeric: Of each column, whether it holds numbers, and nothing else.

    Raises:
        OutputError: There is no room for the temporary file.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        self.count = 0
        self.widths = [0] * len(columns)
        self._numbers, self._others = [False] * len(columns), [False] * len(columns)
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - is open as long as this is
            _BYTES_IN_MEMORY, mode="w+", encoding="utf-8", newline="\n"
        )
        piece: list[str] = []
        try:
            for row in rows:
                piece.append(self._line(columns, row))
                self.count += 1
                if len(piece) >= _LINES_IN_A_PIECE:
                    self._keep(piece)
                    piece = []
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
        """Frees what they take; they are not to be read afterwards."""
        self._file.close()

    def _line(self, columns: Sequence[Column], row: Row) -> str:
        """The cells of a row as one line; their widths and kinds are taken note of."""
        cells = []
        for place, column in enumerate(columns):
            value = row[column.key]
            cell = _shown(value, column)
            self.widths[place] = max(self.widths[place], width(cell))
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._numbers[place] = True
            elif value is not None:
                self._others[place] = True
            cells.append(cell)
        return f"{_SEPARATOR.join(cells)}\n"

    def _keep(self, lines: Sequence[str]) -> None:
        try:
            self._file.write("".join(lines))
        except OSError as error:
            raise _no_room(error) from error


def _no_room(error: OSError) -> OutputError:
    return OutputError(
        f"a table of so many rows takes a temporary file, which fails: {error.strerror or error}; "
        "set TMPDIR to another folder, or choose csv or json"
    )


def width(text: str) -> int:
    """The places that a text takes on a screen."""
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
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)
