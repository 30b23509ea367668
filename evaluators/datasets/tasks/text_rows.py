"""The rows of files with texts: JSON lines, CSV, and SQuAD's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inferometer.evaluators.datasets.files.json_text import parse_json, shown
from inferometer.manifests.errors import DatasetError

MAX_FILE_BYTES = 1024 * 1024 * 1024
"""The most bytes of a file, which is in memory as a whole."""
TAB_SUFFIX = ".tsv"
TEXT_COLUMNS = frozenset({"text", "sentence", "question", "context", "sentence1", "sentence2"})
"""The columns with texts."""
CSV_RULES = (
    f"a quote is closed at the end of its value, and a value has at most {csv.field_size_limit()} characters"
)


class Row(NamedTuple):
    """One row of a file.

    Attributes:
        place: The place for messages: the path, and the number of its first line.
        number: The number of this line, or of the question.
        columns: The values by the names of the columns; those of a CSV are texts.
    """

    place: str
    number: int
    columns: Mapping[str, Any]


def read_json_lines(path: Path) -> Iterator[Row]:
    """Yields the objects of a file with one in each line; empty lines are skipped.

    Raises:
        DatasetError: The file cannot be read, or a line is not an object; the message has its number.
    """
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from error
        if not isinstance(value, dict):
            raise DatasetError(f'{place}: is no JSON object; give one in each line, such as {{"text": "…"}}')
        yield Row(place, number, value)


def read_csv(path: Path) -> Iterator[Row]:
    """Yields the rows of a CSV with a header; those of a ``.tsv`` are separated by tabs.

    Raises:
        DatasetError: The file cannot be read, has no header, or a row has another number of values than it;
            the message has the number of the line.
    """
    content = _content(path)
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
            raise DatasetError(f"{path}: line {number}: is no CSV; {CSV_RULES}") from error
        if values is None:
            return
        if not values:
            continue
        if header is None:
            header = [name.strip() for name in values]
            continue
        if len(values) != len(header):
            raise DatasetError(
                f"{path}: line {number}: has {len(values)} values; the header has {len(header)} columns"
            )
        yield Row(f"{path}: line {number}", number, dict(zip(header, values, strict=True)))


def read_squad(path: Path) -> Iterator[Row]:
    """Yields the questions of a file in the format of SQuAD 1.1 or 2.0, as rows with these columns.

    ``id``, ``question``, ``context`` and ``answers``, a list that is empty for an impossible question.

    Raises:
        DatasetError: The file cannot be read, or is not of this format.
    """
    try:
        content = parse_json(_content(path))
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    number = 0
    for article in _list(path, number, content, "data"):
        for paragraph in _list(path, number, article, "paragraphs"):
            for question in _list(path, number, paragraph, "qas"):
                number += 1
                place, id_ = f"{path}: question {number}", _value(path, number, question, "id")
                impossible = question.get("is_impossible", False)
                if not isinstance(impossible, bool):
                    found = shown(impossible)
                    raise DatasetError(f"{place}: is_impossible is {found}; allowed: true or false")
                answers = [] if impossible else _list(path, number, question, "answers")
                columns = {
                    "id": id_,
                    "question": _value(path, number, question, "question"),
                    "context": _value(path, number, paragraph, "context"),
                    "answers": [_value(path, number, answer, "text") for answer in answers],
                }
                yield Row(place, number, columns)


def _value(path: Path, number: int, part: Any, name: str) -> Any:
    """Returns a value of a part of SQuAD's JSON, in which ``number`` questions have begun."""
    if not isinstance(part, dict) or name not in part:
        raise DatasetError(f"{path}: is not in SQuAD's format: a part has no {name}, at question {number}")
    return part[name]


def _list(path: Path, number: int, part: Any, name: str) -> list[Any]:
    found = _value(path, number, part, name)
    if not isinstance(found, list):
        raise DatasetError(
            f"{path}: is not in SQuAD's format: {name} is {shown(found)} and no list, at question {number}"
        )
    return found


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DatasetError(f"{path}: is larger than {MAX_FILE_BYTES} bytes; split it")
    return content.removeprefix(b"\xef\xbb\xbf")
