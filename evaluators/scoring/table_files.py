"""Predictions of another tool in tables and arrays: labels, answers, numbers and vectors.

A row of a table has an id and a label, an answer or numbers for each sample.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Texts, Values
from inferometer.evaluators.datasets.arrays import opened_arrays, read_array
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.files import parse_json, shown
from inferometer.evaluators.datasets.tables import CSV_RULES
from inferometer.evaluators.scoring.prediction_files import PredictionFile
from inferometer.evaluators.tasks.accuracy import ClassIndex, decimal
from inferometer.manifests.errors import DatasetError, PredictionError, printable

_ID = "id"
_LINES = (".jsonl", ".ndjson")
ACCEPTED = "a .csv with a column id, a .jsonl of objects with an id, or a .json of {id: prediction}"


def read_rows(path: Path, column: str, *, several: bool = False) -> Mapping[str, Any]:
    """Reads what is predicted for each sample, by its id, as it stands in the file.

    Args:
        path: A ``.csv`` whose first line names the columns, ``.jsonl`` with an object on each line, or
            ``.json`` with such objects in a list, or with an object of predictions by their ids.
        column: The column with the prediction.
        several: Whether a prediction is numbers: those of all columns but the id in a ``.csv``, and a list
            ``values`` elsewhere. They are given as a list of float64, also of one.

    Raises:
        DatasetError: The file cannot be read, or an entry lacks an id or a prediction, or has an id of
            another.
    """
    suffix = path.suffix.casefold()
    readers = {".csv": _of_csv, ".json": _of_json} | dict.fromkeys(_LINES, _of_lines)
    if suffix not in readers:
        raise DatasetError(f"{path}: is none of the predictions that can be read; accepted: {ACCEPTED}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found: dict[str, Any] = {}
            for place, name, value in readers[suffix](file, column, several):
                if name in found:
                    raise ValueError(f'{place}: "{printable(name)}" was predicted before')
                found[name] = _numbers(value, place) if several else value
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not UTF-8 at byte {error.start}") from error
    except csv.Error as error:
        raise DatasetError(f"{path}: is no CSV; {CSV_RULES}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not found:
        raise DatasetError(f"{path}: holds no predictions")
    return found


_Found = Iterator[tuple[str, str, Any]]


def _of_csv(file: Any, column: str, several: bool) -> _Found:
    rows = csv.reader(file, strict=True)
    header = [name.strip().casefold() for name in next(rows, [])]
    if _ID not in header or len(header) < 2 or (column not in header and not several):
        wanted = f"{_ID} and numbers" if several else f"{_ID} and {column}"
        raise ValueError(f"line 1 names no columns {wanted}")
    for cells in rows:
        if not cells:
            continue
        if len(cells) != len(header):
            raise ValueError(f"line {rows.line_num} has {len(cells)} columns; the first names {len(header)}")
        row = dict(zip(header, cells, strict=True))
        name = row.pop(_ID).strip()
        place = f"line {rows.line_num}"
        value = [_parsed_number(text, place) for text in row.values()] if several else row[column]
        yield place, _id_of(name, place), value


def _of_lines(file: Any, column: str, several: bool) -> _Found:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _of_object(_parsed(line, f"line {number}: "), f"line {number}", column, several)


def _of_json(file: Any, column: str, several: bool) -> _Found:
    content = _parsed(file.read())
    if isinstance(content, dict):
        yield from ((f'"{printable(name)}"', name, value) for name, value in content.items())
    elif isinstance(content, list):
        for number, entry in enumerate(content):
            yield _of_object(entry, f"entry {number}", column, several)
    else:
        raise ValueError("is neither an object of predictions by their ids, nor a list of objects")


def _parsed(text: str, place: str = "") -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error


def _of_object(entry: Any, place: str, column: str, several: bool) -> tuple[str, str, Any]:
    name = "values" if several else column
    if not isinstance(entry, dict) or _ID not in entry or name not in entry:
        raise ValueError(f"{place} is no object with {_ID} and {name}")
    return place, _id_of(entry[_ID], place), entry[name]


def _id_of(given: object, place: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ValueError(f"{place}: its id is neither a text nor a whole number")
    return str(given)


def _parsed_number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'{place}: "{printable(text)}" is no number') from None


def _numbers(given: Any, place: str) -> list[float]:
    """Returns the numbers of a prediction, a list or a single one; too large ones are infinite."""
    found = given if isinstance(given, list) else [given]
    if not found:
        raise ValueError(f"{place}: has no numbers")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{place}: {shown(each)} is no number")
    return [_as_float(each) for each in found]


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of JSON
        return math.inf


_TOP = 5
_NO_CLASS = -1
_NPZ = ".npz"
_ARRAYS = ("vectors", "values", "embeddings")


class _Table(PredictionFile):
    """Predictions that are read at once, by the samples' ids."""

    _found: Mapping[str, Any]

    def keys(self) -> Collection[str]:
        """Returns the ids of the samples."""
        return self._found.keys()


class TextLabelsFile(_Table):
    """The class of each sample, by its name or number."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        numbered = dataset.labels_are_indices
        super().__init__(path, dataset, labels or (() if numbered else sorted(dataset.labels())))
        if not self.labels and not numbered:
            raise DatasetError(f"dataset {dataset.identity.name}: its samples have no labels")
        self._index, self._given = ClassIndex(self.labels), bool(labels)
        names = (*self.labels, *(() if numbered else dataset.labels()))
        self._names = {name.casefold().strip() for name in names}
        self._found = {key: self._class_of(key, value) for key, value in read_rows(path, "label").items()}

    def _class_of(self, key: str, value: object) -> int:
        """Returns the place of a class, which is called as a label is, or as a class of the dataset."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            found = f"label is {shown(value)}, and neither a text nor a whole number"
            raise DatasetError(f'{self.path}: "{printable(key)}": {found}')
        name = str(value)
        # a part of a name, which a class of the dataset may be of a label, is no name here
        if not self.labels or name.casefold().strip() in self._names:
            with suppress(DatasetError):
                return self._index.find(name)
        number = decimal(name)
        if number is not None and number < len(self._index) and self._given:
            return number
        whose = (
            "labels that are given" if self._given else "dataset's classes; give those of the model as labels"
        )
        raise DatasetError(
            f'{self.path}: "{printable(key)}": label "{printable(name)}" is none of the {whose}'
        )

    def read(self, sample: Sample) -> Classifications | None:
        """Returns the class of a sample."""
        found = self._found.get(sample.id)
        if found is None:
            return None
        places = np.full((1, max(1, min(_TOP, len(self.labels)))), _NO_CLASS, np.int64)
        places[0, 0] = found
        return Classifications(places, np.zeros(places.shape, np.float32))


class LabelsFile(TextLabelsFile):
    """The best class of each image, which determines top-1 only."""

    scores: ClassVar[frozenset[str] | None] = frozenset({"top-1"})


class AnswersFile(_Table):
    """The answer to each question."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        self._found = read_rows(path, "answer")
        wrong = next((key for key, value in self._found.items() if not _is_text(value)), None)
        if wrong is not None:
            raise DatasetError(f'{path}: "{printable(wrong)}": its answer is no text')

    def read(self, sample: Sample) -> Texts | None:
        """Returns the answer to a question."""
        found = self._found.get(sample.id)
        return None if found is None else Texts.of([found])


class NumbersFile(_Table):
    """Numbers of each sample: in a table, or in an ``.npz`` as samples × k.

    An ``.npz`` has the array ``vectors`` (or ``values``, ``embeddings``, or its only one) and, unless it is
    in the dataset's order, ``ids``.
    """

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        if path.suffix.casefold() == _NPZ:
            self._found = _vectors(path, dataset)
            return
        rows = read_rows(path, "values", several=True)
        self._found = {key: np.array(value, np.float64) for key, value in rows.items()}

    def read(self, sample: Sample) -> Values | None:
        """Returns the numbers of a sample."""
        found = self._found.get(sample.id)
        if found is None:
            return None
        if not np.isfinite(found).all():
            raise PredictionError("a number of the prediction is not finite")
        return Values(found[np.newaxis])


def _is_text(value: object) -> bool:
    """Returns whether a value is a text; half of a surrogate pair is no character."""
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode("utf-8")


def _vectors(path: Path, dataset: Dataset) -> Mapping[str, NDArray[np.float64]]:
    with opened_arrays(path) as content:
        arrays = {name: read_array(content, name) for name in content.files}
    ids = arrays.pop("ids", None)
    chosen = [arrays[name] for name in _ARRAYS if name in arrays] or list(arrays.values())
    if len(chosen) != 1:
        raise DatasetError(f"{path}: holds {len(chosen)} arrays; name the one of the predictions vectors")
    vectors = chosen[0].reshape(-1, 1) if chosen[0].ndim == 1 else chosen[0]
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        raise DatasetError(
            f"{path}: vectors are {vectors.dtype} of shape {list(vectors.shape)}; accepted: numbers, N × k"
        )
    names = [sample.id for sample in dataset] if ids is None else [str(name) for name in ids.ravel()]
    if len(names) != len(vectors) or len(set(names)) < len(names):
        whose = f"dataset {dataset.identity.name} has" if ids is None else "ids names"
        raise DatasetError(f"{path}: has {len(vectors)} vectors; {whose} {len(set(names))} samples")
    with np.errstate(over="ignore"):  # a number beyond float64 is infinite, which fails its sample
        return dict(zip(names, vectors.astype(np.float64), strict=True))
