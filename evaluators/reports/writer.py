"""The one writer of rows: as a table, csv or json, to a stream or to a file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from evaluators.reports.base import Column, Row, Value
from evaluators.reports.output_file import OutputFile
from evaluators.reports.table import plain_table, terminal_table
from manifests.errors import ConfigurationError, OutputError


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
        rows: Each has a value for every column.
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
        return _write_stream(columns, list(rows), output_format, destination, header)
    file = OutputFile(destination)
    is_there = file.exists()
    if is_there and not (append or overwrite):
        raise file.in_the_way()
    rows = list(rows)
    if append and is_there and (present := file.read()):
        text = _appended(present, columns, rows, output_format, file, header)
    else:
        text = _text(columns, rows, output_format, header)
    if append or overwrite:
        file.replace(text)
    else:
        file.create(text)
    return len(rows)


def _write_stream(
    columns: Sequence[Column], rows: Sequence[Row], output_format: Format, stream: TextIO, header: bool
) -> int:
    try:
        if output_format is Format.TABLE and stream.isatty():
            text = terminal_table(columns, rows, stream, header=header)
        else:
            text = _text(columns, rows, output_format, header)
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
    return len(rows)


def _text(columns: Sequence[Column], rows: Sequence[Row], output_format: Format, header: bool) -> str:
    match output_format:
        case Format.TABLE:
            return plain_table(columns, rows, header=header)
        case Format.CSV:
            keys = [_csv_line([column.key for column in columns])] if header else []
            return "".join(keys + [_csv_line([row[column.key] for column in columns]) for row in rows])
        case Format.JSON:
            return _json_text(_objects(columns, rows))


def _appended(
    present: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    output_format: Format,
    file: OutputFile,
    header: bool,
) -> str:
    """The text ``present`` with the rows added."""
    if output_format is Format.JSON:
        return _json_text([*_json_array(present, file), *_objects(columns, rows)])
    if output_format is Format.CSV:
        _check_csv(present, columns, file, header)
        header = False
    separator = "" if present.endswith("\n") else "\n"
    return present + separator + _text(columns, rows, output_format, header)


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


def _objects(columns: Sequence[Column], rows: Sequence[Row]) -> list[dict[str, Value]]:
    return [{column.key: _json_value(row[column.key]) for column in columns} for row in rows]


def _json_value(value: Value) -> Value:
    """JSON has no infinity and no not-a-number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_text(objects: Sequence[Any]) -> str:
    return json.dumps(objects, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _json_array(present: str, file: OutputFile) -> list[Any]:
    try:
        content = json.loads(present)
        json.dumps(content, allow_nan=False)  # Python also reads NaN and Infinity, which are no JSON
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{file}: is no JSON: {error}; name another file") from error
    if not isinstance(content, list):
        raise OutputError(f"{file}: holds no JSON array that could be extended; name another file")
    return content
