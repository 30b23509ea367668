"""Predictions in tables and arrays: labels, answers, numbers and vectors."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Texts, Values
from inferometer.evaluators.accuracy import ClassIndex, decimal
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.jobs.scoring.prediction_files import PredictionFile
from inferometer.evaluators.jobs.scoring.rows import read_rows, scalars
from inferometer.manifests.errors import DatasetError, PredictionError, one_line, printable

_TOP = 5
_NO_CLASS = -1
_NPZ = ".npz"
_ARRAYS = ("vectors", "values", "embeddings")


class _Table(PredictionFile):
    """Predictions that are read at once, by the samples' ids."""

    _found: Mapping[str, Any]

    def keys(self) -> Collection[str]:
        """The ids of the samples."""
        return self._found.keys()


class TextLabelsFile(_Table):
    """The class of each sample, by its name or number."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        numbered = dataset.labels_are_indices
        super().__init__(path, dataset, labels or (() if numbered else sorted(dataset.labels())))
        if not self.labels and not numbered:
            raise DatasetError(f"dataset {dataset.identity.name}: its samples have no labels")
        index = ClassIndex(self.labels)
        rows = read_rows(path, "label")
        self._found = {
            key: self._class_of(index, key, value, given=bool(labels)) for key, value in rows.items()
        }

    def _class_of(self, index: ClassIndex, key: str, value: object, *, given: bool) -> int:
        name = value if isinstance(value, str) else str(value)
        try:
            return index.find(name)
        except DatasetError as error:
            number = decimal(name)
            if number is not None and number < len(index) and given:
                return number
            whose = (
                "labels that are given" if given else "dataset's classes; give those of the model as labels"
            )
            raise DatasetError(
                f'{self.path}: "{printable(key)}": label "{printable(name)}" is none of the {whose}'
            ) from error

    def read(self, sample: Sample) -> Classifications | None:
        """Returns the class of a sample."""
        found = self._found.get(sample.id)
        if found is None:
            return None
        places = np.full((1, max(1, min(_TOP, len(self.labels)))), _NO_CLASS, np.int64)
        places[0, 0] = found
        return Classifications(places, np.zeros(places.shape, np.float32))


class LabelsFile(TextLabelsFile):
    """The best class of each image, which tells top-1 alone."""

    scores: ClassVar[frozenset[str] | None] = frozenset({"top-1"})


class AnswersFile(_Table):
    """The answer to each question."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        self._found = read_rows(path, "answer")
        wrong = next((key for key, value in self._found.items() if not isinstance(value, str)), None)
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
        self._found = {key: self._numbers(key, value) for key, value in rows.items()}

    def _numbers(self, key: str, value: Any) -> NDArray[np.float64]:
        try:
            found = np.array([float(number) for number in scalars(value)], np.float64)
        except (TypeError, ValueError) as error:
            raise DatasetError(f'{self.path}: "{printable(key)}": {one_line(error)}') from error
        if not found.size:
            raise DatasetError(f'{self.path}: "{printable(key)}": has no numbers')
        return found

    def read(self, sample: Sample) -> Values | None:
        """Returns the numbers of a sample."""
        found = self._found.get(sample.id)
        if found is None:
            return None
        with np.errstate(over="ignore"):
            values = np.asarray(found, np.float32)
        if not np.isfinite(values).all():
            raise PredictionError("a number of the prediction is not finite")
        return Values(values[np.newaxis])


def _vectors(path: Path, dataset: Dataset) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path}: is no .npz of arrays: {one_line(error)}") from error
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
    return dict(zip(names, vectors, strict=True))
