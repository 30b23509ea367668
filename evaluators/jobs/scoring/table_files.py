"""Predictions in tables and arrays: labels, answers, numbers and vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Texts, Values
from inferometer.evaluators.datasets.arrays import opened_arrays, read_array
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.files.json_text import shown
from inferometer.evaluators.jobs.scoring.prediction_files import PredictionFile
from inferometer.evaluators.jobs.scoring.rows import read_rows
from inferometer.evaluators.kinds.batches.accuracy import ClassIndex, decimal
from inferometer.manifests.errors import DatasetError, PredictionError, printable

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
