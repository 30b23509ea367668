"""The writer of rows: as a table, csv, json or markdown, to a stream or to a file.

Users choose the columns and the order of the rows by name. Markdown tables use GitHub's syntax. A file is
written atomically: it holds either its old content or all of the new content.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from inferometer.agent.files import replacing
from inferometer.evaluators.reports.base import Column, Layout, Row, Value, finite
from inferometer.evaluators.reports.table import cell_text, joined, plain_table, terminal_table
from inferometer.manifests.errors import ConfigurationError, OutputError, explained, suggestion

Content: TypeAlias = str | bytes | Iterable[str]
"""The content of a file: text, bytes, or text in pieces, which are read one by one."""


class OutputFile:
    """A file of bytes or of UTF-8 text that is written in one step.

    If two programs append at the same time, only the content of the later one is kept.

    Args:
        path: The file; a link is followed.
        appendable: Whether errors about an existing file suggest appending to it.
        replaceable: Whether they suggest overwriting it.

    Its methods raise OutputError if the path is not that of a regular file, its folder does not exist, or the
    file cannot be read or written, is not text, or exists but must not be changed.
    """

    def __init__(self, path: Path, *, appendable: bool = True, replaceable: bool = True) -> None:
        self._path = path
        self._appendable = appendable
        self._replaceable = replaceable

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        """Returns whether the file exists; raises OutputError if it cannot be written or has no folder."""
        with self._refusing():
            if not self._path.exists():
                self._path.parent.stat()
                return False
            if self._path.is_dir():
                raise OutputError(f"{self}: is a folder; name a file")
            if not self._path.is_file():
                raise OutputError(f"{self}: is not a regular file; to write to the screen, name no file")
            if not os.access(self._path, os.W_OK):
                raise OutputError(f"{self}: cannot be written: it is read-only")
            return True

    def read(self) -> str:
        """Returns the text of the file."""
        try:
            with explained(OutputError, f"{self}: cannot be read"):
                return self._path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise OutputError(f"{self}: is not text in UTF-8; name another file") from error

    def create(self, content: Content) -> None:
        """Writes a new file."""
        self.write(content, overwrite=False)

    def write(self, content: Content, *, overwrite: bool) -> None:
        """Writes the file; an existing one is replaced only with ``overwrite``."""
        with self._refusing():
            # Path.resolve fails on links in a circle
            target = Path(os.path.realpath(self._path)) if overwrite else self._path
            self._write(target, content, new=not overwrite)

    def in_the_way(self) -> OutputError:
        """Returns the error for an existing file that must not be changed."""
        if not self._replaceable:
            return OutputError(f"{self} exists; name another file")
        remedy = "overwrite it (--overwrite)"
        if self._appendable:
            remedy = "append to it or overwrite it (--append, --overwrite)"
        return OutputError(f"{self} exists; {remedy}, or name another file")

    def refuse_existing(self) -> None:
        """Checks, before the content exists, that ``create`` can succeed."""
        if self.exists():
            raise self.in_the_way()

    def _write(self, target: Path, content: Content, *, new: bool) -> None:
        pieces = [content] if isinstance(content, str | bytes) else content
        try:
            with replacing(target, synced=True, new=new) as file:
                for piece in pieces:
                    file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
                if not new and target.exists():
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        except UnicodeEncodeError as error:
            raise OutputError(f"{self}: cannot be written: a value is not text in UTF-8") from error

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Translates the system's errors into OutputError."""
        try:
            yield
        except FileExistsError as error:
            raise self.in_the_way() from error
        except FileNotFoundError as error:
            raise OutputError(f"{self}: the folder {self._path.parent} does not exist") from error
        except OSError as error:
            raise OutputError(f"{self}: cannot be written: {error.strerror or error}") from error


_UNIT = re.compile(r"\s*\([^)]*\)")
_DESCENDING = "-"


def choose_columns(columns: Sequence[Column], names: str) -> tuple[Column, ...]:
    """Returns the named columns, each once, in the order of the names.

    A column's name is its key or, if no other column has the same heading, its heading without the unit; case
    does not matter, and blanks and hyphens stand for underscores.

    Args:
        columns: All columns of the report.
        names: Names, separated by commas.

    Raises:
        ConfigurationError: A column does not exist, or no name is given.
    """
    known = _known_columns(columns)
    return tuple(dict.fromkeys(_find(known, name) for name in _split(names, "columns")))


def sort_rows(columns: Sequence[Column], rows: Iterable[Row], names: str) -> list[Row]:
    """Returns the rows sorted by the named columns; rows that are equal in them keep their order.

    Rows without a value come last in either direction.

    Args:
        columns: All columns of the report.
        rows: The rows, which are kept in memory.
        names: As for ``choose_columns``; a name that begins with ``-`` sorts in descending order.

    Raises:
        ConfigurationError: A column does not exist, or no name is given.
    """
    known = _known_columns(columns)
    keys = [
        (_find(known, name.removeprefix(_DESCENDING)).key, name.startswith(_DESCENDING))
        for name in _split(names, "sort")
    ]
    ordered = list(rows)
    for key, descending in reversed(keys):
        ordered.sort(key=lambda row: _place(row[key]), reverse=descending)
        ordered.sort(key=lambda row: _is_missing(row[key]))
    return ordered


def _known_columns(columns: Sequence[Column]) -> Mapping[str, Column]:
    """Returns the columns by each of their names, with the keys first."""
    known = {column.key: column for column in columns}
    headings = [_name(_UNIT.sub("", column.header)) for column in columns]
    for heading, column in zip(headings, columns, strict=True):
        if headings.count(heading) == 1:
            known.setdefault(heading, column)
    return known


def _split(names: str, option: str) -> list[str]:
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise ConfigurationError(f"{option} names no column; give names with commas between")
    return found


def _find(known: Mapping[str, Column], name: str) -> Column:
    found = known.get(_name(name))
    if found is None:
        raise ConfigurationError(f'unknown column "{name}"; {suggestion(_name(name), known)}')
    return found


def _name(text: str) -> str:
    return re.sub(r"[\s-]", "_", text.strip().casefold())


def _is_missing(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _place(value: Value) -> tuple[int, float, str]:
    """Returns a sort key: numbers are sorted by value, and texts after them."""
    if _is_missing(value):
        return (0, 0.0, "")
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value or 0), "")


NOTHING = "---"
"""The text of the cell for a missing value."""


def _header_line(columns: Sequence[Column]) -> str:
    return _line(_escaped(column.header) for column in columns)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _cell(value: Value, column: Column) -> str:
    return NOTHING if value is None else _escaped(cell_text(value, column))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


class Format(str, Enum):
    """The format of rows.

    ``TABLE`` is for people, with rounded numbers, and so is ``MARKDOWN``, a table for a page. ``CSV`` follows
    RFC 4180, except that lines end in only a line feed. ``JSON`` is an array of objects. Both have the
    columns' keys and exact numbers.
    """

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def write(
    columns: Sequence[Column],
    rows: Iterable[Row] | None,
    output_format: Format | Layout,
    destination: TextIO | Path,
    *,
    append: bool = False,
    overwrite: bool = False,
    header: bool = True,
    every_column: bool = False,
) -> int:
    """Writes rows.

    Args:
        columns: The columns, in order.
        rows: The rows, each with a value for every column. They are not kept in memory; a table reads all of
            them before its first line. None writes nothing, and raises the errors that rows would meet.
        output_format: The format, or one of the report's own.
        destination: A stream, or a file that does not exist unless ``append`` or ``overwrite`` is set. The
            file is written atomically.
        append: Appends to the file. A csv or a Markdown table gets no second header line; a json array is
            extended.
        overwrite: Replaces the file.
        header: Whether table, csv and markdown begin with a header line; json has none.
        every_column: Whether a table has every column even if the terminal is too narrow for it.

    Returns:
        The number of rows. Without rows, a table, csv or markdown is only its header, and json is ``[]``.

    Raises:
        ConfigurationError: Both ``append`` and ``overwrite`` are set, or one of them for a stream.
        OutputError: The destination cannot be written, or has content that cannot be appended to.
    """
    if append and overwrite:
        raise ConfigurationError("append and overwrite exclude each other; choose one")
    if not isinstance(destination, Path):
        if append or overwrite:
            raise ConfigurationError("append and overwrite are for a file; name one as the output")
        if rows is None:
            return 0
        return _write_stream(columns, rows, output_format, destination, header, every_column)
    file = OutputFile(destination, appendable=isinstance(output_format, Format))
    is_there = file.exists()
    if is_there and not (append or overwrite):
        raise file.in_the_way()
    counted, count = _counted(() if rows is None else rows)
    if append and is_there and (present := file.read()):
        pieces = _appended(present, columns, counted, output_format, file, header)
    else:
        pieces = _pieces(columns, counted, output_format, header)
    if rows is None:
        deque(pieces, 0)  # what is there may be nothing that can be appended to
    else:
        file.write(pieces, overwrite=append or overwrite)
    return next(count)


def _counted(rows: Iterable[Row]) -> tuple[Iterator[Row], Iterator[int]]:
    """Returns the rows, and an iterator whose next number is their count once all rows have been read."""
    count = itertools.count()
    return (row for row, _ in zip(rows, count)), count  # noqa: B905 - the count has no end


def _write_stream(
    columns: Sequence[Column],
    rows: Iterable[Row],
    output_format: Format | Layout,
    stream: TextIO,
    header: bool,
    every_column: bool,
) -> int:
    counted, count = _counted(rows)
    if output_format is Format.TABLE and stream.isatty():
        pieces = terminal_table(columns, counted, stream, header=header, every_column=every_column)
    else:
        pieces = _pieces(columns, counted, output_format, header)
    # outside of the try in _put: an error while rows are made is no fault of the output
    for piece in pieces:
        _put(stream, piece)
    return next(count)


def _put(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # the command line handles it
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise OutputError(
            f"the output's encoding, {error.encoding}, lacks a character; set PYTHONIOENCODING=utf-8"
        ) from error


def _pieces(
    columns: Sequence[Column], rows: Iterable[Row], output_format: Format | Layout, header: bool
) -> Iterator[str]:
    if not isinstance(output_format, Format):
        yield from output_format(rows)
        return
    match output_format:
        case Format.TABLE:
            yield from plain_table(columns, rows, header=header)
        case Format.CSV:
            lines = (_csv_line([row[column.key] for column in columns]) for row in rows)
            keys = [_csv_line([column.key for column in columns])] if header else []
            yield from joined(itertools.chain(keys, lines))
        case Format.JSON:
            yield from _json_pieces(_objects(columns, rows))
        case Format.MARKDOWN:
            # numbers are rounded, and texts that may wrap are on the left
            if header:
                yield _header_line(columns)
                yield _line(":---" if column.wraps else ":---:" for column in columns)
            yield from joined(_line(_cell(row[column.key], column) for column in columns) for row in rows)


def _appended(
    present: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    output_format: Format | Layout,
    file: OutputFile,
    header: bool,
) -> Iterator[str]:
    if not isinstance(output_format, Format):
        raise OutputError(f"{file}: this format does not support appending; name another file")
    if output_format is Format.JSON:
        yield from _json_pieces(itertools.chain(_json_array(present, file), _objects(columns, rows)))
        return
    if output_format is Format.CSV:
        _check_csv(present, columns, file, header)
        header = False
    if output_format is Format.MARKDOWN and header:
        if not present.startswith(_header_line(columns)):
            raise OutputError(f"{file}: has a different table; name another file")
        header = False
    separator = "" if present.endswith("\n") else "\n"
    yield present + separator
    yield from _pieces(columns, rows, output_format, header)


def _csv_line(values: Sequence[Value]) -> str:
    # csv quotes \r and \n within a value only where they are part of its line end
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in values])
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _check_csv(present: str, columns: Sequence[Column], file: OutputFile, header: bool) -> None:
    """Checks that a csv has the ``columns`` or, if it has no header line, as many of them."""
    keys = [column.key for column in columns]
    try:
        first = next(csv.reader(io.StringIO(present, newline="")), [])
    except csv.Error as error:
        raise OutputError(f"{file}: is not csv: {error}; name another file") from error
    if first != keys and (header or len(first) != len(keys)):
        raise OutputError(f"{file}: has other columns than {','.join(keys)}; name another file")


def _objects(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[dict[str, Value]]:
    for row in rows:
        yield {column.key: finite(row[column.key]) for column in columns}


def _json_pieces(objects: Iterable[Any]) -> Iterator[str]:
    """Yields an array as ``json.dumps`` writes it with an indent of 2, element by element."""
    elements = (json.dumps([each], indent=2, ensure_ascii=False, allow_nan=False)[1:-2] for each in objects)
    first = next(elements, None)
    if first is None:
        yield "[]\n"
        return
    yield "[" + first
    yield from joined("," + element for element in elements)
    yield "\n]\n"


def _json_array(present: str, file: OutputFile) -> list[Any]:
    try:
        content = json.loads(present)
        json.dumps(content, allow_nan=False)  # Python also reads NaN and Infinity, which are no JSON
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{file}: is not JSON: {error}; name another file") from error
    if not isinstance(content, list):
        raise OutputError(f"{file}: holds no JSON array to extend; name another file")
    return content
