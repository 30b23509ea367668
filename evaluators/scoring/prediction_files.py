"""Predictions of another tool in files: the interface, and one class for each file format.

Folders of images hold class masks or enhanced images. COCO results JSON holds the objects found in the images
of a dataset. Tables and arrays hold labels, answers, numbers or vectors; each row has an id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, ClassMaps, Images, Predictions, Texts, Values
from inferometer.evaluators.datasets.annotated_images import read_mask, read_target
from inferometer.evaluators.datasets.arrays import opened_arrays, read_array
from inferometer.evaluators.datasets.base import ClassNames, Dataset, Objects, Sample, TargetValues
from inferometer.evaluators.datasets.coco import CocoResults, read_results
from inferometer.evaluators.datasets.files import has_numbers, is_image, read_rows, shown, walk
from inferometer.evaluators.datasets.tables import several_labels
from inferometer.evaluators.tasks.metric import ClassIndex, decimal
from inferometer.manifests.errors import DatasetError, PredictionError, printable, suggestion


class PredictionFile(ABC):
    """The predictions of a dataset's samples, by their ids.

    Args:
        path: The file or the folder.
        dataset: The whole dataset.
        labels: The names of the classes in the order of their numbers; empty means the dataset's.

    Attributes:
        labels: The names of the classes, in the order of their indices in the predictions.
        unknown: The scores, and the figures of classes, that such predictions do not determine.

    Raises:
        DatasetError: The file cannot be read, or is damaged; the message names the entry.
    """

    unknown: ClassVar[frozenset[str]] = frozenset()
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


_TOP = 5
_NO_CLASS = -1
_NPZ = ".npz"
_ARRAYS = ("vectors", "values", "embeddings", "probabilities")


class TextLabelsFile(PredictionFile):
    """The class of each sample, by its name or number."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        numbered = dataset.labels_are_indices
        super().__init__(path, dataset, labels or (() if numbered else sorted(_classes_of(dataset))))
        if not self.labels and not numbered:
            raise DatasetError(f"dataset {dataset.identity.name}: its samples have no labels")
        self._index, self._given = ClassIndex(self.labels), bool(labels)
        names = (*self.labels, *(() if numbered else _classes_of(dataset)))
        self._names = {name.casefold().strip() for name in names}
        self._found = self._read()

    def _read(self) -> Mapping[str, Any]:
        return {key: self._class_of(key, value) for key, value in read_rows(self.path, "label").items()}

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

    def _row(self, found: Any) -> Classifications:
        places = np.full((1, max(1, min(_TOP, len(self.labels)))), _NO_CLASS, np.int64)
        places[0, 0] = found
        return Classifications(places, np.full(places.shape, np.nan, np.float32))


class LabelsFile(TextLabelsFile):
    """The most probable class of each image, which does not determine top-5."""

    unknown: ClassVar[frozenset[str]] = frozenset({"top-5"})


class LabelListsFile(TextLabelsFile):
    """All classes of each sample, by their names or numbers, which do not determine a ranking."""

    unknown: ClassVar[frozenset[str]] = frozenset({"mAP", "AP"})

    def _read(self) -> Mapping[str, Any]:
        rows = read_rows(self.path, "labels").items()
        return {
            key: [
                self._class_of(key, name)
                for name in several_labels(value, f'{self.path}: "{printable(key)}"')
            ]
            for key, value in rows
        }

    def _row(self, found: Any) -> Classifications:
        count = len(self.labels)
        return Classifications(
            np.arange(count)[np.newaxis], np.isin(np.arange(count), found)[np.newaxis] * np.float32(1)
        )


class ProbabilitiesFile(PredictionFile):
    """The probability of every class of each sample, or its score: in a table, or in an ``.npz``.

    The columns of a ``.csv``, and the keys of an object, are the names of the classes; a list, and an
    ``.npz`` as in ``NumbersFile``, has the order of the labels.
    """

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        if path.suffix.casefold() == _NPZ:
            rows: Mapping[str, Any] = _vectors(path, dataset)
        else:
            rows = read_rows(path, "probabilities", several=True)
        first = next(iter(rows.values()))
        if not labels:
            numbers = tuple(map(str, range(len(first))))
            in_order = not isinstance(first, dict) and dataset.labels_are_indices
            labels = tuple(first if isinstance(first, dict) else sorted(_classes_of(dataset)))
            labels = numbers if in_order or set(labels) <= set(numbers) else labels
        super().__init__(path, dataset, labels)
        places = {name.casefold().strip(): place for place, name in enumerate(self.labels)}
        self._found = {key: self._in_order(key, value, places) for key, value in rows.items()}

    def _in_order(self, key: str, found: Any, places: Mapping[str, int]) -> NDArray[np.float64]:
        if isinstance(found, dict):
            named = {places.get(name.casefold().strip(), -1): value for name, value in found.items()}
            found = [named[place] for place in sorted(named)] if -1 not in named else []
        if len(found) != len(self.labels):
            raise DatasetError(
                f'{self.path}: "{printable(key)}": does not have one probability for each of the '
                f"{len(self.labels)} classes; give the classes as labels"
            )
        return np.asarray(found, np.float64)

    def _row(self, found: NDArray[np.float64]) -> Classifications:
        if not np.isfinite(found).all():
            raise PredictionError("a probability is not finite")
        order = np.argsort(-found, kind="stable")[np.newaxis]
        return Classifications(order, found[order])


def probabilities_or(
    column: str, file: type[TextLabelsFile]
) -> Callable[[Path, Dataset, Sequence[str]], PredictionFile]:
    """Returns a function that opens probabilities or, as ``file``, predictions in the ``column``."""

    def opened(path: Path, dataset: Dataset, labels: Sequence[str]) -> PredictionFile:
        return (ProbabilitiesFile if has_numbers(path, column) else file)(path, dataset, labels)

    return opened


def _classes_of(dataset: Dataset) -> frozenset[str]:
    """Returns the names of the classes in a dataset's labels or, if it has none, in its truths."""
    truths = () if (found := dataset.labels()) else (sample.read_truth() for sample in dataset)
    for truth in truths:
        if isinstance(truth, Objects):
            return frozenset(_categories(dataset).values())
        if isinstance(truth, ClassNames | TargetValues):
            found |= set(truth.names)
    return found


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
        of_csv, found = path.suffix.casefold() == ".csv", {}
        for key, value in read_rows(path, "values", several=True).items():
            if isinstance(value, dict) and not of_csv:  # whose names may have another order in each row
                raise DatasetError(f'{path}: "{printable(key)}": its values are not a list of numbers')
            found[key] = np.array([*(value.values() if of_csv else value)], np.float64)
        self._found = found

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
