"""The one writer of rows: as a table, csv or json, to a stream or to a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from evaluators.reports.base import Column, Row, Value
from evaluators.reports.output_file import OutputFile
from evaluators.reports.table import plain_table, terminal_table
from manifests.errors import ConfigurationError, OutputError

_LINES_IN_A_PIECE = 1000


class Format(str, Enum):
    """How rows are written.

    ``TABLE`` is for people, with rounded numbers. ``CSV`` follows RFC 4180, but a line ends in a line feed
    alone. ``JSON`` is an array of objects. Both have the columns' keys, and numbers as exact as they are.
    """

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def write(
    columns: Sequence[Column],
    rows: Iterable[Row],
    output_format: Format,
    destination: TextIO | Path,
    *,
    append: bool = False,
    overwrite: bool = False,
    header: bool = True,
) -> int:
    """Writes rows.

    Args:
        columns: What is written of each row, and in which order.
        rows: Each has a value for every column. They are taken one by one, and not kept in memory; a table
            takes all of them before it begins.
        output_format: The format.
        destination: A stream, or a file that does not exist unless ``append`` or ``overwrite`` is set. The
            file is written in one step, so that it never holds a part.
        append: Adds to what the file holds. A csv that has its header line gets no second one; a json array
            is extended.
        overwrite: Replaces the file.
        header: Whether table and csv begin with a header line; json has none.

    Returns:
        The number of rows. Without any, a table and a csv are their header line, and json is ``[]``.

    Raises:
        ConfigurationError: Both ``append`` and ``overwrite`` are set, or one of them for a stream.
        OutputError: The destination cannot be written, or holds what cannot be appended to.
    """
    if append and overwrite:
        raise ConfigurationError("append and overwrite exclude each other; choose one")
    if not isinstance(destination, Path):
        if append or overwrite:
            raise ConfigurationError("append and overwrite are for a file; name one as the output")
        return _write_stream(columns, rows, output_format, destination, header)
    file = OutputFile(destination)
    is_there = file.exists()
    if is_there and not (append or overwrite):
        raise file.in_the_way()
    counted = _Counted(rows)
    if append and is_there and (present := file.read()):
        pieces = _appended(present, columns, counted, output_format, file, header)
    else:
        pieces = _pieces(columns, counted, output_format, header)
    if append or overwrite:
        file.replace(pieces)
    else:
        file.create(pieces)
    return counted.count


class _Counted:
    """Rows that are counted as they are taken."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


def _write_stream(
    columns: Sequence[Column], rows: Iterable[Row], output_format: Format, stream: TextIO, header: bool
) -> int:
    counted = _Counted(rows)
    if output_format is Format.TABLE and stream.isatty():
        pieces = terminal_table(columns, counted, stream, header=header)
    else:
        pieces = _pieces(columns, counted, output_format, header)
    # What fails while rows are made is no fault of the output; so each is made outside of the try.
    for piece in pieces:
        _put(stream, piece)
    return counted.count


def _put(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # the reader has seen enough; the command line knows what to do
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise OutputError(
            f"the output takes {error.encoding} only, which a value does not fit; set PYTHONIOENCODING=utf-8"
        ) from error


def _pieces(
    columns: Sequence[Column], rows: Iterable[Row], output_format: Format, header: bool
) -> Iterator[str]:
    """The text of rows, piece by piece."""
    match output_format:
        case Format.TABLE:
            yield from plain_table(columns, rows, header=header)
        case Format.CSV:
            lines = (_csv_line([row[column.key] for column in columns]) for row in rows)
            keys = [_csv_line([column.key for column in columns])] if header else []
            yield from _joined(itertools.chain(keys, lines))
        case Format.JSON:
            yield from _json_pieces(_objects(columns, rows))


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines put together to pieces that are worth writing."""
    source = iter(lines)
    while piece := "".join(itertools.islice(source, _LINES_IN_A_PIECE)):
        yield piece


def _appended(
    present: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    output_format: Format,
    file: OutputFile,
    header: bool,
) -> Iterator[str]:
    """The text ``present`` with the rows added."""
    if output_format is Format.JSON:
        yield from _json_pieces(itertools.chain(_json_array(present, file), _objects(columns, rows)))
        return
    if output_format is Format.CSV:
        _check_csv(present, columns, file, header)
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
    """Makes sure that a csv has the ``columns``; one without header line has at least as many."""
    keys = [column.key for column in columns]
    try:
        first = next(csv.reader(io.StringIO(present, newline="")), [])
    except csv.Error as error:
        raise OutputError(f"{file}: is no csv: {error}; name another file") from error
    if first != keys and (header or len(first) != len(keys)):
        raise OutputError(f"{file}: has other columns than {','.join(keys)}; name another file")


def _objects(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[dict[str, Value]]:
    for row in rows:
        yield {column.key: _json_value(row[column.key]) for column in columns}


def _json_value(value: Value) -> Value:
    """JSON has no infinity and no not-a-number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_pieces(objects: Iterable[Any]) -> Iterator[str]:
    """An array as ``json.dumps`` writes it with an indent of 2, element by element."""
    elements = (json.dumps([each], indent=2, ensure_ascii=False, allow_nan=False)[1:-2] for each in objects)
    first = next(elements, None)
    if first is None:
        yield "[]\n"
        return
    yield "[" + first
    yield from _joined("," + element for element in elements)
    yield "\n]\n"


def _json_array(present: str, file: OutputFile) -> list[Any]:
    try:
        content = json.loads(present)
        json.dumps(content, allow_nan=False)  # Python also reads NaN and Infinity, which are no JSON
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{file}: is no JSON: {error}; name another file") from error
    if not isinstance(content, list):
        raise OutputError(f"{file}: holds no JSON array that could be extended; name another file")
    return content
