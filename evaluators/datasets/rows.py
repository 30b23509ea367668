"""The rows of a file of texts or numbers, in JSON lines or CSV, and the values in their columns.

Everything here raises DatasetError for a row that cannot be read; the message gives its line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.datasets.files import CSV_RULES, numbers, parse_json, read_whole, reading, shown
from inferometer.manifests.errors import DatasetError

_MAX_FILE_BYTES = 1024 * 1024 * 1024
"""The maximum size of a file in bytes; the whole file is read into memory."""
TAB_SUFFIX = ".tsv"
JSON_SUFFIXES = (".jsonl", ".ndjson")


class Row(NamedTuple):
    """One row of a file.

    Attributes:
        place: The position for messages: the path, and the number of the row's first line.
        number: The number of that line, or of the question.
        columns: The values by column name; those from a CSV are texts.
    """

    place: str
    number: int
    columns: Mapping[str, Any]


def read_json_lines(path: Path) -> Iterator[Row]:
    """Yields the objects of a file that has one per line; empty lines are skipped."""
    for number, line in enumerate(content_of(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from error
        if not isinstance(value, dict):
            raise DatasetError(f'{place}: is not a JSON object; give one per line, such as {{"text": "…"}}')
        yield Row(place, number, value)


def read_csv(path: Path) -> Iterator[Row]:
    """Yields the rows of a CSV with a header; values in a ``.tsv`` are separated by tabs."""
    content = content_of(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"{path}: line {number}: is not UTF-8") from error
    delimiter = "\t" if path.suffix.casefold() == TAB_SUFFIX else ","
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        number = rows.line_num + 1
        try:
            values = next(rows, None)
        except csv.Error as error:
            raise DatasetError(f"{path}: line {number}: is not CSV; {CSV_RULES}") from error
        if values is None:
            return
        if not values:
            continue
        if header is None:
            header = [name.strip() or f"column {place}" for place, name in enumerate(values, start=1)]
            if len(set(header)) < len(header):
                raise DatasetError(f"{path}: line {number}: two columns have the same name")
            continue
        if len(values) != len(header):
            raise DatasetError(
                f"{path}: line {number}: has {len(values)} values; the header has {len(header)} columns"
            )
        yield Row(f"{path}: line {number}", number, dict(zip(header, values, strict=True)))


def content_of(path: Path) -> bytes:
    """Returns the content of a file without a byte order mark; raises DatasetError."""
    with reading(path):
        content = read_whole(path, _MAX_FILE_BYTES, "; split it")
    return content.removeprefix(b"\xef\xbb\xbf")


def id_of(row: Row) -> str:
    """Returns the id of a row, by default its number."""
    id_ = row.columns.get("id", row.number)
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise DatasetError(f"{row.place}: id is neither a text nor a whole number")
    return str(id_)


def label_of(row: Row) -> str | None:
    """Returns the label of a row; None if it has none."""
    value = row.columns.get("label")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{row.place}: label is neither a text nor a whole number")
    if not str(value).strip():
        raise DatasetError(f"{row.place}: label is empty")
    return str(value)


def several_labels(value: object, place: str) -> tuple[str, ...]:
    """Returns different labels from a list, from its JSON, or from a text where ``|`` is between them.

    Args:
        value: The value; an empty text has no labels.
        place: The beginning of the message.

    Raises:
        DatasetError: It is none of these, or a label is neither a text nor a whole number, or empty.
    """
    if isinstance(value, str):
        try:
            value = (
                parse_json(value)
                if value.lstrip().startswith("[")
                else value.split("|") * bool(value.strip())
            )
        except ValueError as error:
            raise DatasetError(f"{place}: labels: {error}") from error
    if not isinstance(value, list):
        raise DatasetError(f"{place}: labels is {shown(value)}, not a list")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, str | int) or not str(each).strip():
            raise DatasetError(f"{place}: the label {shown(each)} is neither a text nor a whole number")
    return tuple(dict.fromkeys(str(each).strip() for each in value))


def list_of(row: Row, name: str) -> list[Any]:
    """Returns a value that is a list, or that is the JSON of a list."""
    value = row.columns[name]
    with suppress(ValueError):
        value = parse_json(value) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise DatasetError(f"{row.place}: {name} is not a list; write it as in JSON")
    return value


def vector_of(row: Row, values: list[Any]) -> NDArray[np.float64]:
    """Returns the numbers of the column ``target``, float64."""
    try:
        if not (vector := numbers(values, "target")):
            raise ValueError("it is empty")
    except ValueError as error:
        raise DatasetError(f"{row.place}: target is not a list of finite numbers: {error}") from error
    return np.array(vector, np.float64)


def text_of(row: Row, name: str) -> str:
    """Returns the text in a column."""
    value = row.columns[name]
    if not isinstance(value, str):
        raise DatasetError(f"{row.place}: {name} is not text")
    if not is_unicode(value):
        raise DatasetError(f"{row.place}: {name} holds half of a surrogate pair, which is not a character")
    return value


def is_unicode(text: str) -> bool:
    """Returns whether a text has no half of a surrogate pair."""
    return text.isascii() or text.encode("utf-8", "ignore").decode() == text


def finite_of(row: Row, text: str) -> float:
    """Returns the finite number that a cell of a CSV spells."""
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise DatasetError(f'{row.place}: "{text}" is not a finite number')


def file_of(row: Row, text: str) -> str:
    """Returns the path of a file, relative to the folder of the table."""
    file = PurePosixPath(text.strip())
    if not file.name or file.is_absolute() or ".." in file.parts:
        raise DatasetError(
            f'{row.place}: "{text}" is not a path in the folder of the table, such as images/1.png'
        )
    return text.strip()
