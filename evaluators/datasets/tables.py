"""Datasets in files of rows: texts in JSON lines, CSV and SQuAD's JSON, and tables.

The rows of a table are the inputs of a model. A table for regression has image files instead, and the numbers
that a model should predict for each. A row that cannot be read raises DatasetError with its line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import NamedTensors, Payload, Tensor, Text, dtype_of, quoted
from inferometer.evaluators.datasets.base import (
    AcceptedAnswers,
    ClassNames,
    LoadedDataset,
    Sample,
    StoredDataset,
    TargetValues,
    Truth,
)
from inferometer.evaluators.datasets.files import (
    CSV_RULES,
    numbers,
    parse_json,
    read_image,
    read_whole,
    reading,
    shown,
)
from inferometer.manifests.errors import DatasetError, InputError, explained, printable, printable_name
from inferometer.manifests.inputs import TensorElementType, TensorSpec

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


_TEXT_COLUMNS = frozenset({"text", "sentence", "question", "context", "sentence1", "sentence2"})
"""The columns that contain texts."""


def _read_squad(path: Path) -> Iterator[Row]:
    """Yields the questions of a file in the format of SQuAD 1.1 or 2.0, as rows.

    The columns: ``id``, ``question``, ``context`` and ``answers``, a list, empty for an impossible question.
    """
    try:
        content = parse_json(content_of(path))
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
                yield Row(place, number, columns)
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


_TEXTS = ("text", "sentence")
_PAIRS = (("question", "context"), ("sentence1", "sentence2"))
_SHOWN = 5


class TextDataset(LoadedDataset):
    """Texts or pairs of texts in memory, each with a label, several, accepted answers or a reference vector.

    The columns are ``text`` or ``sentence``, with an optional ``pair``; or ``question`` and ``context``; or
    ``sentence1`` and ``sentence2``. Optional columns are ``id``, by default the number of the line;
    ``label``, a text or a whole number; ``labels``, any number of these; ``answers``, a list, or ``answer``,
    one text; and ``target``, a list of numbers. In a CSV, lists are written as in JSON, and labels also
    separated by ``|``. Other columns are ignored.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file cannot be read, has no rows, or a row is not as above; the message gives its
            line number.
    """

    _rows: ClassVar[staticmethod[[Path], Iterator[Row]]]
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
    _rows = staticmethod(read_json_lines)


class CsvDataset(TextDataset):
    """Texts in a CSV, or tab-separated in a ``.tsv``; see ``TextDataset``."""

    backend = "csv"
    _rows = staticmethod(read_csv)


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


def _sample(row: Row) -> Sample:
    return Sample(id_of(row), _text(row), label_of(row), truth=_truth(row))


def _text(row: Row) -> Text:
    """Returns the text or the pair of a row; an empty text is accepted here, and fails when preprocessed."""
    columns = row.columns
    for first, second in _PAIRS:
        if first in columns and second in columns:
            return Text(text_of(row, first), text_of(row, second))
    named = [name for name in _TEXTS if name in columns]
    if len(named) != 1:
        found = ", ".join(printable(str(name)) for name in list(columns)[:_SHOWN]) or "none"
        raise DatasetError(
            f'{row.place}: needs exactly one of the columns "text" and "sentence", or both of "question" and '
            f'"context", or of "sentence1" and "sentence2"; it has: {found}'
        )
    return Text(text_of(row, named[0]), text_of(row, "pair") if columns.get("pair") is not None else None)


def _truth(row: Row) -> Truth | None:
    columns = row.columns
    found = [name for name in ("answers", "answer", "target", "labels") if columns.get(name) is not None]
    if not found:
        return None
    if len(found) > 1:
        raise DatasetError(f"{row.place}: has {' and '.join(found)}; only one of them can be scored")
    if found[0] == "labels":
        return ClassNames(several_labels(columns["labels"], row.place))
    if found[0] == "target":
        return TargetValues(vector_of(row, list_of(row, "target")))
    if found[0] == "answer":
        return AcceptedAnswers((text_of(row, "answer"),))
    answers = columns["answers"]
    # as an object in Hugging Face's version of SQuAD
    answers = answers.get("text") if isinstance(answers, Mapping) else list_of(row, "answers")
    if not isinstance(answers, list) or not all(
        isinstance(each, str) and is_unicode(each) for each in answers
    ):
        raise DatasetError(f"{row.place}: answers is not a list of texts")
    return AcceptedAnswers(tuple(answers))


_FILE_COLUMN = "file"


class ValuesTableDataset(StoredDataset):
    """A ``.csv`` of image files and numbers or labels. Samples have the order of the lines.

    The first line names the columns; the first is ``file``, with paths relative to the table's folder, and
    the others are numbers, the targets, or there is only ``labels``, with the classes of the image as in
    ``several_labels``. The file is in UTF-8, with commas between the columns.

    The arguments are those of ``StoredDataset``.

    Raises:
        DatasetError: The file cannot be read, or a line is not as above.
    """

    backend = "values_csv"

    def _open(self, path: Path) -> int:
        self._folder = path.parent
        self._rows = tuple(map(_file_and_truth, read_csv(path)))
        if not self._rows:
            raise DatasetError(f"{path}: has no line with a file and its numbers")
        return len(self._rows)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is read later."""
        file, truth = self._rows[index]
        return Sample(printable_name(file), partial(read_image, self._folder / file), truth=truth)

    def files(self) -> Iterator[Path]:
        """Returns the files of the images."""
        return (self._folder / file for file, _ in self._rows)


def _file_and_truth(row: Row) -> tuple[str, TargetValues | ClassNames]:
    (first, file), *cells = row.columns.items()
    if first.casefold() != _FILE_COLUMN or not cells:
        raise DatasetError(f"{row.place}: the first column is {_FILE_COLUMN}, and one or more are numbers")
    names = tuple(name for name, _ in cells)
    if names == ("labels",):
        return file_of(row, file), ClassNames(several_labels(cells[0][1], row.place))
    return file_of(row, file), TargetValues(np.array([finite_of(row, text) for _, text in cells]), names)


ROW_SUFFIXES = (*JSON_SUFFIXES, ".csv", TAB_SUFFIX)
"""The suffixes of files of rows; ``format_of`` distinguishes their formats."""


def format_of(path: Path) -> str:
    """Returns the format of a file of rows, by the names in its first line; texts if it cannot be read."""
    suffix = path.suffix.casefold()
    texts, delimiter = "jsonl" if suffix in JSON_SUFFIXES else "csv", "\t" if suffix == TAB_SUFFIX else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            names = parse_json(file.readline()) if texts == "jsonl" else next(rows, [])
    except (OSError, ValueError, csv.Error):
        return texts
    named = [str(name).strip().casefold() for name in names] if isinstance(names, list | dict) else []
    if not named or not _TEXT_COLUMNS.isdisjoint(named):
        return texts
    return "values_csv" if named[0] == _FILE_COLUMN and len(named) > 1 and suffix == ".csv" else "table"


_NO_INPUTS = frozenset({"id", "label", "labels", "target"})


class TableDataset(LoadedDataset):
    """Rows of a model's inputs, in a CSV or in JSON lines.

    Each input has the column of its name: a number, a list of numbers as in JSON, a text if the model takes
    strings or, for an image, the path of its file, relative to the table's folder. If only one input has no
    such column, its elements are all other columns, in their order. ``id`` and ``label`` are those of
    ``TextDataset``; ``target`` is the number, or the list of numbers, that a regression should predict.

    The arguments are those of ``LoadedDataset``. Without ``tensors``, the columns are one tensor of float64.

    Raises:
        DatasetError: The file cannot be read, or a row does not fit the model; the message gives its line.
    """

    backend = "table"

    def _open(self, path: Path) -> int:
        is_json = path.suffix.casefold() in JSON_SUFFIXES
        rows = list((read_json_lines if is_json else read_csv)(path))
        if not rows:
            raise DatasetError(f"{path}: has no rows")
        self._tensors = self._tensors or (TensorSpec("", TensorElementType.FLOAT64, (None,)),)
        columns = _columns_of(rows[0], self._tensors)
        self._samples = tuple(self._sample(path.parent, row, columns) for row in rows)
        _refuse_equal_ids(path, self._samples)
        return len(self._samples)

    def _sample(self, folder: Path, row: Row, columns: Mapping[str, Sequence[str]]) -> Sample:
        inputs = {each.name: _elements(row, each, columns[each.name]) for each in self._tensors}
        in_memory = {name: each for name, each in inputs.items() if not isinstance(each, str)}
        data: Payload | Callable[[], Payload] = partial(_with_images, folder, inputs)
        if len(in_memory) == len(inputs):
            data = NamedTensors(in_memory) if len(inputs) > 1 else Tensor(*in_memory.values())
        target = row.columns.get("target")
        with suppress(ValueError):
            target = _parsed(target)
        values = target if isinstance(target, list) else [target]
        truth: Truth | None = None if target is None else TargetValues(vector_of(row, values))
        if (labels := row.columns.get("labels")) is not None:
            truth = ClassNames(several_labels(labels, row.place))
        return Sample(id_of(row), data, label_of(row), truth=truth)

    def sample(self, index: int) -> Sample:
        """Returns a sample; only the files of images are read later."""
        return self._samples[index]


def _columns_of(row: Row, tensors: Sequence[TensorSpec]) -> dict[str, list[str]]:
    """Returns the names of the columns with the elements of each of a model's inputs."""
    found = {each.name: [each.name] for each in tensors if each.name in row.columns}
    others = [name for name in row.columns if name not in found and name not in _NO_INPUTS]
    without = [each.name for each in tensors if each.name not in found]
    if len(without) > 1 or (without and not others):
        raise DatasetError(
            f"{row.place}: has no columns for the model's inputs {quoted(without)}; it has: "
            f'{printable(", ".join(row.columns))[:200]}. Texts are in a column "text"'
        )
    return found | dict.fromkeys(without, others)


def _elements(row: Row, tensor: TensorSpec, names: Sequence[str]) -> NDArray[Any] | str:
    """Returns the elements of an input in the dtype and shape of its tensor, or the path of an image."""
    cells, dtype = [row.columns.get(name) for name in names], dtype_of(tensor)
    with suppress(ValueError, TypeError, OverflowError):
        read = cells if dtype.hasobject else [_parsed(cell) for cell in cells]
        array = np.array(read if len(read) > 1 else read[0], object if dtype.hasobject else None)
        if array.ndim != len(tensor.dimensions):
            array = array.reshape(tensor.written)
        with np.errstate(all="ignore"):
            elements = array.astype(dtype)
        if dtype.hasobject:
            fits = all(isinstance(each, str) for each in array.flat)
        else:
            same = np.isfinite(array) == np.isfinite(elements) if dtype.kind == "f" else array == elements
            fits = array.dtype.kind in "biuf" and bool(np.all(same))
        if fits and tensor.takes(array.shape):
            return elements
    if len(tensor.dimensions) == 3 and len(cells) == 1 and isinstance(cells[0], str):
        return file_of(row, cells[0])
    found = printable(", ".join(f"{name} = {row.columns.get(name)}" for name in names))[:200]
    raise DatasetError(
        f'{row.place}: found {found}; the model\'s input "{tensor.name}" is {tensor.element_type.value} of '
        f"shape {list(tensor.written)}"
    )


def _parsed(cell: Any) -> Any:
    """Returns the number or the list that a cell of a CSV spells; raises ValueError if it spells neither."""
    for read in (int, float) if isinstance(cell, str) else ():
        with suppress(ValueError):
            return read(cell)
    return parse_json(cell.strip().lower()) if isinstance(cell, str) else cell


def _with_images(folder: Path, inputs: Mapping[str, NDArray[Any] | str]) -> NamedTensors:
    """Reads the files of images; an encoded image is its bytes, uint8."""
    arrays: dict[str, Any] = dict(inputs)
    for name, file in inputs.items():
        if isinstance(file, str):
            with explained(InputError, f"{folder / file}: cannot be read"):
                arrays[name] = np.frombuffer(read_image(folder / file).content, np.uint8)
    return NamedTensors(arrays)
