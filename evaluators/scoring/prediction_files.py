"""Predictions of another tool in files: the interface, and one class for each file format.

Folders of images hold class masks or enhanced images. COCO results JSON holds the objects found in the images
of a dataset. Tables and arrays hold labels, answers, numbers or vectors; each row has an id.
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, ClassMaps, Images, Predictions, Texts, Values
from inferometer.evaluators.datasets.arrays import opened_arrays, read_array
from inferometer.evaluators.datasets.base import Dataset, Objects, Sample
from inferometer.evaluators.datasets.coco import CocoResults, read_results
from inferometer.evaluators.datasets.files import is_image, parse_json, reading, shown, walk
from inferometer.evaluators.datasets.masks import read_mask, read_target
from inferometer.evaluators.datasets.tables import CSV_RULES
from inferometer.evaluators.tasks.accuracy import ClassIndex, decimal
from inferometer.manifests.errors import DatasetError, PredictionError, printable, suggestion


class PredictionFile(ABC):
    """The predictions of a dataset's samples, by their ids.

    Args:
        path: The file or the folder.
        dataset: The whole dataset.
        labels: The names of the classes in the order of their numbers; empty means the dataset's.

    Attributes:
        labels: The names of the classes, in the order of their indices in the predictions.
        scores: The scores that such predictions determine; None means all scores of the task.

    Raises:
        DatasetError: The file cannot be read, or is damaged; the message names the entry.
    """

    scores: ClassVar[frozenset[str] | None] = None
    _found: Mapping[str, Any]
    _missing: ClassVar[Any] = None
    """What stands for a sample that the file does not name; with None, such a sample cannot be scored."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        self.path = path
        self.labels = tuple(labels)

    def key(self, sample: Sample) -> str:
        """Returns the key of a sample's predictions; by default, the sample's id."""
        return sample.id

    def read(self, sample: Sample) -> Predictions:
        """Returns the predictions of a sample, one row.

        Raises:
            PredictionError: There are none, or they cannot be scored, for example because a number is not
                finite.
            DatasetError: A file of predictions cannot be read.
        """
        found = self._found.get(self.key(sample), self._missing)
        if found is None:
            raise PredictionError("has no prediction")
        return self._row(found)

    @abstractmethod
    def _row(self, found: Any) -> Predictions:
        """Converts what was found in the file for one sample; see ``read``."""

    def check(self, dataset: Dataset) -> None:
        """Raises DatasetError if there are predictions for a sample that the dataset lacks."""
        unknown = set(self._found)
        known = []
        for sample in dataset:
            known.append(key := self.key(sample))
            unknown.discard(key)
        if unknown:
            name = min(unknown)
            more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise DatasetError(
                f'{self.path}: predicts "{printable(name)}"{more}, which dataset {dataset.identity.name} '
                f"does not have; {suggestion(name, known)}"
            )


class _Folder(PredictionFile):
    """Images with the same paths as the dataset's images, except for the suffix; ``read`` opens them."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        if not path.is_dir():
            raise DatasetError(f"{path}: is not a folder; predicted images are one file for each image")
        files: dict[str, Path] = {}
        for file in _images(path):
            stem = _stem(file.relative_to(path).as_posix())
            if stem in files:
                raise DatasetError(f"{file}: has the name of {files[stem].name}; one file is allowed")
            files[stem] = file
        if not files:
            raise DatasetError(f"{path}: holds no images")
        self._found = files

    def key(self, sample: Sample) -> str:
        """Returns the path of a sample without its suffix."""
        return _stem(sample.id)


class MaskFiles(_Folder):
    """PNG files whose pixels are the numbers of the dataset's classes; 255 is not a class."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        named = next((getattr(sample.truth, "classes", ()) for sample in dataset), ())
        super().__init__(path, dataset, labels or named)

    def _row(self, found: Path) -> ClassMaps:
        pixels = read_mask(found, self.labels).pixels
        return ClassMaps(np.array([pixels.shape], np.int64), pixels.ravel())


class EnhancedFiles(_Folder):
    """Enhanced images in any supported image format."""

    def _row(self, found: Path) -> Images:
        pixels = read_target(found).pixels.astype(np.float64) / 255
        return Images(pixels[np.newaxis])


def _images(folder: Path) -> list[Path]:
    return [Path(place, name) for place, _, names in walk(folder) for name in sorted(names) if is_image(name)]


def _stem(path: str) -> str:
    return PurePosixPath(path).with_suffix("").as_posix()


class ObjectsFile(PredictionFile):
    """COCO results JSON. For an image without a result, the prediction is that it contains no objects.

    ``category_id`` is the number of one of the dataset's categories or, if they have no numbers, as in VOC,
    the name of a class.
    """

    _missing: ClassVar[Any] = CocoResults(())

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        categories = _categories(dataset)
        super().__init__(path, dataset, tuple(categories.values()))
        if labels and set(labels) != set(self.labels):
            raise DatasetError(
                f"{path}: COCO's results name the dataset's categories by their number; leave out labels"
            )
        self._found = read_results(path, categories, self.labels)

    def _row(self, found: CocoResults) -> CocoResults:
        return found


class MasksOfObjectsFile(ObjectsFile):
    """COCO results JSON with masks; as in pycocotools, the mask of a ``bbox`` alone is its rectangle."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        results = [each for found in self._found.values() for each in found.objects]
        if results and all(each.mask is None for each in results):
            raise DatasetError(
                f"{path}: its results have no segmentation; score boxes with --task=object_detection"
            )


def _categories(dataset: Dataset) -> Mapping[Any, str]:
    """Returns the names of a dataset's classes by the ids that results use."""
    numbered: Mapping[Any, str] | None = getattr(dataset, "categories", None)
    if numbered is not None:
        return numbered
    names: dict[str, str] = {}
    for sample in dataset:
        truth = sample.read_truth()
        if isinstance(truth, Objects):
            names |= {name: name for name in truth.classes}
    return names


_ID = "id"
_LINES = (".jsonl", ".ndjson")
ACCEPTED = "a .csv with a column id, a .jsonl of objects with an id, or a .json of {id: prediction}"


def read_rows(path: Path, column: str, *, several: bool = False) -> Mapping[str, Any]:
    """Reads the prediction of each sample, by its id, as written in the file.

    Args:
        path: A ``.csv`` whose first line names the columns, ``.jsonl`` with an object on each line, or
            ``.json`` with such objects in a list, or with an object of predictions by their ids.
        column: The column with the prediction.
        several: Whether a prediction consists of several numbers: all columns except the id in a ``.csv``,
            and a list ``values`` elsewhere. They are returned as a list of float64, even a single one.

    Raises:
        DatasetError: The file cannot be read, or an entry lacks an id or a prediction, or repeats the id of
            another.
    """
    suffix = path.suffix.casefold()
    readers = {".csv": _of_csv, ".json": _of_json} | dict.fromkeys(_LINES, _of_lines)
    if suffix not in readers:
        raise DatasetError(f"{path}: is not a file of predictions that can be read; accepted: {ACCEPTED}")
    try:
        with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
            found: dict[str, Any] = {}
            for place, name, value in readers[suffix](file, column, several):
                if name in found:
                    raise ValueError(f'{place}: "{printable(name)}" was predicted before')
                found[name] = _numbers(value, place) if several else value
    except csv.Error as error:
        raise DatasetError(f"{path}: is not CSV; {CSV_RULES}") from error
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
        raise ValueError(f"{place} is not an object with {_ID} and {name}")
    return place, _id_of(entry[_ID], place), entry[name]


def _id_of(given: object, place: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ValueError(f"{place}: its id is neither a text nor a whole number")
    return str(given)


def _parsed_number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'{place}: "{printable(text)}" is not a number') from None


def _numbers(given: Any, place: str) -> list[float]:
    """Returns the numbers of a prediction, a list or a single one; any that are too large become infinite."""
    found = given if isinstance(given, list) else [given]
    if not found:
        raise ValueError(f"{place}: has no numbers")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{place}: {shown(each)} is not a number")
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


class TextLabelsFile(PredictionFile):
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
        """Returns the index of a class, given by a label, by its name in the dataset, or by its number."""
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
        whose = "given labels" if self._given else "dataset's classes; give those of the model as labels"
        raise DatasetError(
            f'{self.path}: "{printable(key)}": label "{printable(name)}" is not one of the {whose}'
        )

    def _row(self, found: int) -> Classifications:
        places = np.full((1, max(1, min(_TOP, len(self.labels)))), _NO_CLASS, np.int64)
        places[0, 0] = found
        return Classifications(places, np.zeros(places.shape, np.float32))


class LabelsFile(TextLabelsFile):
    """The most probable class of each image, which determines only top-1."""

    scores: ClassVar[frozenset[str] | None] = frozenset({"top-1"})


class AnswersFile(PredictionFile):
    """The answer to each question."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        self._found = read_rows(path, "answer")
        wrong = next((key for key, value in self._found.items() if not _is_text(value)), None)
        if wrong is not None:
            raise DatasetError(f'{path}: "{printable(wrong)}": its answer is not text')

    def _row(self, found: str) -> Texts:
        return Texts.of([found])


class NumbersFile(PredictionFile):
    """Numbers of each sample: in a table, or in an ``.npz`` as samples × k.

    An ``.npz`` contains the array ``vectors`` (or ``values`` or ``embeddings``, or only one array) and,
    unless that is in the dataset's order, ``ids``.
    """

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        if path.suffix.casefold() == _NPZ:
            self._found = _vectors(path, dataset)
            return
        rows = read_rows(path, "values", several=True)
        self._found = {key: np.array(value, np.float64) for key, value in rows.items()}

    def _row(self, found: NDArray[np.float64]) -> Values:
        if not np.isfinite(found).all():
            raise PredictionError("a number of the prediction is not finite")
        return Values(found[np.newaxis])


def _is_text(value: object) -> bool:
    """Returns whether a value is a text, without unpaired surrogates."""
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode("utf-8")


def _vectors(path: Path, dataset: Dataset) -> Mapping[str, NDArray[np.float64]]:
    with opened_arrays(path) as content:
        arrays = {name: read_array(content, name) for name in content.files}
    ids = arrays.pop("ids", None)
    chosen = [arrays[name] for name in _ARRAYS if name in arrays] or list(arrays.values())
    if len(chosen) != 1:
        raise DatasetError(f"{path}: holds {len(chosen)} arrays; name the array of the predictions vectors")
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
