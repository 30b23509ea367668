"""Datasets in files of rows: texts in JSON lines, CSV and SQuAD's JSON, and tables for regression.

A table for regression names image files, and the numbers that a model should predict for each.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np

from inferometer.agent.preprocessing.inputs import Text
from inferometer.evaluators.datasets.base import (
    AcceptedAnswers,
    LoadedDataset,
    Sample,
    StoredDataset,
    TargetValues,
    Truth,
)
from inferometer.evaluators.datasets.files import (
    numbers,
    parse_json,
    printable_name,
    read_image,
    read_whole,
    reading,
    shown,
)
from inferometer.manifests.errors import DatasetError, printable

_MAX_FILE_BYTES = 1024 * 1024 * 1024
"""The maximum size of a file in bytes; the whole file is read into memory."""
_TAB_SUFFIX = ".tsv"
_TEXT_COLUMNS = frozenset({"text", "sentence", "question", "context", "sentence1", "sentence2"})
"""The columns that contain texts."""
CSV_RULES = (
    f"a quote is closed at the end of its value, and a value has at most {csv.field_size_limit()} characters"
)


class _TextRow(NamedTuple):
    """One row of a file.

    Attributes:
        place: The position for messages: the path, and the number of the row's first line.
        number: The number of that line, or of the question.
        columns: The values by column name; those from a CSV are texts.
    """

    place: str
    number: int
    columns: Mapping[str, Any]


def _read_json_lines(path: Path) -> Iterator[_TextRow]:
    """Yields the objects of a file that has one per line; empty lines are skipped."""
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from error
        if not isinstance(value, dict):
            raise DatasetError(f'{place}: is not a JSON object; give one per line, such as {{"text": "…"}}')
        yield _TextRow(place, number, value)


def _read_csv(path: Path) -> Iterator[_TextRow]:
    """Yields the rows of a CSV with a header; values in a ``.tsv`` are separated by tabs."""
    content = _content(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"{path}: line {number}: is not UTF-8") from error
    delimiter = "\t" if path.suffix.casefold() == _TAB_SUFFIX else ","
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
            header = [name.strip() for name in values]
            continue
        if len(values) != len(header):
            raise DatasetError(
                f"{path}: line {number}: has {len(values)} values; the header has {len(header)} columns"
            )
        yield _TextRow(f"{path}: line {number}", number, dict(zip(header, values, strict=True)))


def _read_squad(path: Path) -> Iterator[_TextRow]:
    """Yields the questions of a file in the format of SQuAD 1.1 or 2.0, as rows.

    The columns: ``id``, ``question``, ``context`` and ``answers``, a list, empty for an impossible question.
    """
    try:
        content = parse_json(_content(path))
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    number = 1
    for article in _list(f"{path}: before question 1", content, "data"):
        for paragraph in _list(f"{path}: before question {number}", article, "paragraphs"):
            for question in _list(f"{path}: before question {number}", paragraph, "qas"):
                place = f"{path}: question {number}"
                id_ = _value(place, question, "id")
                impossible = question.get("is_impossible", False)
                if not isinstance(impossible, bool):
                    found = shown(impossible)
                    raise DatasetError(f"{place}: is_impossible is {found}; allowed: true or false")
                answers = [] if impossible else _list(place, question, "answers")
                columns = {
                    "id": id_,
                    "question": _value(place, question, "question"),
                    "context": _value(place, paragraph, "context"),
                    "answers": [_value(place, answer, "text") for answer in answers],
                }
                yield _TextRow(place, number, columns)
                number += 1


def _value(place: str, part: Any, name: str) -> Any:
    """Returns a value from a part of SQuAD's JSON."""
    if not isinstance(part, dict) or name not in part:
        raise DatasetError(f"{place}: is not in SQuAD's format: {name} is missing")
    return part[name]


def _list(place: str, part: Any, name: str) -> list[Any]:
    found = _value(place, part, name)
    if not isinstance(found, list):
        raise DatasetError(f"{place}: is not in SQuAD's format: {name} is {shown(found)}, not a list")
    return found


def _content(path: Path) -> bytes:
    with reading(path):
        content = read_whole(path, _MAX_FILE_BYTES, "; split it")
    return content.removeprefix(b"\xef\xbb\xbf")


_TEXTS = ("text", "sentence")
_PAIRS = (("question", "context"), ("sentence1", "sentence2"))
_SHOWN = 5


class TextDataset(LoadedDataset):
    """Texts or pairs of texts in memory, each with a label, accepted answers or a reference vector.

    The columns are ``text`` or ``sentence``, with an optional ``pair``; or ``question`` and ``context``; or
    ``sentence1`` and ``sentence2``. Optional columns are ``id``, by default the number of the line;
    ``label``, a text or a whole number; ``answers``, a list, or ``answer``, one text; and ``target``, a list
    of numbers. In a CSV, lists are written as in JSON. Other columns are ignored.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file cannot be read, has no rows, or a row is not as above; the message gives its
            line number.
    """

    _rows: ClassVar[staticmethod[[Path], Iterator[_TextRow]]]
    """Yields the rows of a file; raises DatasetError if they cannot be read."""

    def _open(self, path: Path) -> int:
        self._samples = tuple(map(_sample, self._rows(path)))
        if not self._samples:
            raise DatasetError(f"{path}: holds no texts")
        _refuse_equal_ids(path, self._samples)
        return len(self._samples)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its text is in memory."""
        return self._samples[index]


class JsonLinesDataset(TextDataset):
    """Texts in JSON lines; see ``TextDataset``."""

    backend = "jsonl"
    _rows = staticmethod(_read_json_lines)


class CsvDataset(TextDataset):
    """Texts in a CSV, or tab-separated in a ``.tsv``; see ``TextDataset``."""

    backend = "csv"
    _rows = staticmethod(_read_csv)


class SquadDataset(TextDataset):
    """The questions in SQuAD's JSON, with their contexts and accepted answers."""

    backend = "squad"
    _rows = staticmethod(_read_squad)


def _refuse_equal_ids(path: Path, samples: tuple[Sample, ...]) -> None:
    known: set[str] = set()
    for sample in samples:
        if sample.id in known:
            raise DatasetError(f"{path}: two rows have the id {printable(sample.id)}; ids must differ")
        known.add(sample.id)


def _sample(row: _TextRow) -> Sample:
    text = _text(row)
    id_ = row.columns.get("id", row.number)
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise DatasetError(f"{row.place}: id is neither a text nor a whole number")
    label = _label(row)
    return Sample(str(id_), text, label, truth=_truth(row))


def _text(row: _TextRow) -> Text:
    """Returns the text or the pair of a row; an empty text is accepted here, and fails when preprocessed."""
    columns = row.columns
    for first, second in _PAIRS:
        if first in columns and second in columns:
            return Text(_of(row, first), _of(row, second))
    named = [name for name in _TEXTS if name in columns]
    if len(named) != 1:
        found = ", ".join(printable(str(name)) for name in list(columns)[:_SHOWN]) or "none"
        raise DatasetError(
            f'{row.place}: needs exactly one of the columns "text" and "sentence", or both of "question" and '
            f'"context", or of "sentence1" and "sentence2"; it has: {found}'
        )
    return Text(_of(row, named[0]), _of(row, "pair") if columns.get("pair") is not None else None)


def _of(row: _TextRow, name: str) -> str:
    value = row.columns[name]
    if not isinstance(value, str):
        raise DatasetError(f"{row.place}: {name} is not text")
    if not _is_unicode(value):
        raise DatasetError(f"{row.place}: {name} holds half of a surrogate pair, which is not a character")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _label(row: _TextRow) -> str | None:
    value = row.columns.get("label")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{row.place}: label is neither a text nor a whole number")
    if not str(value).strip():
        raise DatasetError(f"{row.place}: label is empty")
    return str(value)


def _truth(row: _TextRow) -> Truth | None:
    columns = row.columns
    found = [name for name in ("answers", "answer", "target") if columns.get(name) is not None]
    if not found:
        return None
    if len(found) > 1:
        raise DatasetError(f"{row.place}: has {' and '.join(found)}; only one of them can be scored")
    if found[0] == "target":
        return TargetValues(_vector(row, _list_of(row, "target")))
    if found[0] == "answer":
        return AcceptedAnswers((_of(row, "answer"),))
    answers = columns["answers"]
    # as an object in Hugging Face's version of SQuAD
    answers = answers.get("text") if isinstance(answers, Mapping) else _list_of(row, "answers")
    if not isinstance(answers, list) or not all(
        isinstance(each, str) and _is_unicode(each) for each in answers
    ):
        raise DatasetError(f"{row.place}: answers is not a list of texts")
    return AcceptedAnswers(tuple(answers))


def _list_of(row: _TextRow, name: str) -> list[Any]:
    """Returns a value that is a list, or that is the JSON of a list."""
    value = row.columns[name]
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, list):
        raise DatasetError(f"{row.place}: {name} is not a list; write it as in JSON")
    return value


def _vector(row: _TextRow, values: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        vector = numbers(values, "target")
    except ValueError as error:
        raise DatasetError(f"{row.place}: target is not a list of finite numbers: {error}") from error
    if not vector:
        raise DatasetError(f"{row.place}: target is not a list of finite numbers: it is empty")
    return np.array(vector, np.float64)


SUFFIX = ".csv"
_FILE_COLUMN = "file"


class _Row(NamedTuple):
    file: str
    values: tuple[float, ...]


class ValuesTableDataset(StoredDataset):
    """A ``.csv`` of image files and numbers. Samples have the order of the lines.

    The first line names the columns; the first is ``file``, with paths relative to the table's folder, and
    the others are numbers, the targets. The file is in UTF-8, with commas between the columns.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file cannot be read, or a line is not as above.
    """

    backend = "values_csv"

    def _open(self, path: Path) -> int:
        self._folder = path.parent
        self._rows = _read(path)
        return len(self._rows)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is read later."""
        row = self._rows[index]
        truth = TargetValues(np.array(row.values, np.float64))
        return Sample(printable_name(row.file), partial(read_image, self._folder / row.file), truth=truth)

    def files(self) -> Iterator[Path]:
        """Returns the files of the images."""
        return (self._folder / row.file for row in self._rows)


def is_values_table(path: Path) -> bool:
    """Returns whether the first column of a ``.csv`` is ``file``, and no column has texts."""
    if path.suffix.casefold() != SUFFIX:
        return False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error):
        return False
    named = [name.strip().casefold() for name in header]
    return named[:1] == [_FILE_COLUMN] and len(named) > 1 and _TEXT_COLUMNS.isdisjoint(named)


def _read(path: Path) -> Sequence[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if [name.strip().casefold() for name in header[:1]] != [_FILE_COLUMN] or len(header) < 2:
                raise DatasetError(
                    f"{path}: line 1 names the columns {_FILE_COLUMN}, and one or more of numbers"
                )
            found = [_row(path, rows.line_num, cells, len(header)) for cells in rows if cells]
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not a table in UTF-8, at byte {error.start}") from error
    except csv.Error as error:
        raise DatasetError(f"{path}: line {rows.line_num}: is not CSV; {CSV_RULES}") from error
    if not found:
        raise DatasetError(f"{path}: has no line with a file and its numbers")
    return found


def _row(path: Path, line: int, cells: Sequence[str], columns: int) -> _Row:
    if len(cells) != columns:
        raise DatasetError(f"{path}: line {line} has {len(cells)} columns; the first line names {columns}")
    file = cells[0].strip()
    if not file or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
        raise DatasetError(
            f'{path}: line {line}: "{file}" is not a path in the folder of the table, such as images/1.png'
        )
    return _Row(file, tuple(_number(text, f"{path}: line {line}") for text in cells[1:]))


def _number(text: str, place: str) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise DatasetError(f'{place}: "{text}" is not a finite number')
