"""The rows of files with texts: JSON lines, CSV, and SQuAD's JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inferometer.manifests.errors import DatasetError, one_line

MAX_FILE_BYTES = 1024 * 1024 * 1024
"""The most bytes of a file, which is in memory as a whole."""
TAB_SUFFIX = ".tsv"


class Row(NamedTuple):
    """One row of a file.

    Attributes:
        place: Where it is, for messages: the path, and the number of the line where it begins.
        number: The number of this line, or of the question.
        columns: The values by the names of the columns; those of a CSV are texts.
    """

    place: str
    number: int
    columns: Mapping[str, Any]


def read_json_lines(path: Path) -> Iterator[Row]:
    """Yields the objects of a file with one in each line; empty lines are skipped.

    Raises:
        DatasetError: The file cannot be read, or a line is no JSON object; the message has its number.
    """
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DatasetError(f"{place}: is not UTF-8 at byte {error.start}") from error
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{place}: is no JSON: {one_line(error)}") from error
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
            raise DatasetError(f"{path}: line {number}: is no CSV: {one_line(error)}") from error
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
        content = json.loads(_content(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: is no JSON: {one_line(error)}") from error
    number = 0
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    impossible = question.get("is_impossible", False)
                    answers = [] if impossible else [answer["text"] for answer in question["answers"]]
                    columns = {
                        "id": question["id"],
                        "question": question["question"],
                        "context": paragraph["context"],
                        "answers": answers,
                    }
                    number += 1
                    yield Row(f"{path}: question {number}", number, columns)
    except (LookupError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: is not in SQuAD's format, after {number} questions: {one_line(error)}"
        ) from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DatasetError(f"{path}: is larger than {MAX_FILE_BYTES} bytes; split it")
    return content.removeprefix(b"\xef\xbb\xbf")
