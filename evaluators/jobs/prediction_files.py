"""Predictions of another tool: the interface of a file or folder of them, and those of images and objects.

Folders of images hold masks of classes, or enhanced images. COCO results JSON holds the objects found in
the images of a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from inferometer.agent.tasks.predictions import ClassMaps, Images, Predictions
from inferometer.evaluators.datasets.base import Dataset, Objects, Sample
from inferometer.evaluators.datasets.coco import CocoResults, read_results
from inferometer.evaluators.datasets.files import is_image, walk
from inferometer.evaluators.datasets.masks import read_mask, read_target
from inferometer.manifests.errors import DatasetError, PredictionError, printable, suggestion


class PredictionFile(ABC):
    """The predictions of a dataset's samples, by their ids.

    Args:
        path: The file or the folder.
        dataset: The whole dataset.
        labels: The names of the classes in the order of their numbers; empty takes the dataset's.

    Attributes:
        labels: The names of the classes, in the order that the predictions count them.
        scores: The scores that such predictions determine; None means all of the task.

    Raises:
        DatasetError: It cannot be read, or is damaged; the message names the entry.
    """

    scores: ClassVar[frozenset[str] | None] = None

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        self.path = path
        self.labels = tuple(labels)

    def key(self, sample: Sample) -> str:
        """Returns what the predictions of a sample are found by; the default is its id."""
        return sample.id

    @abstractmethod
    def keys(self) -> Collection[str]:
        """Returns the keys of the samples that it has predictions of."""

    @abstractmethod
    def read(self, sample: Sample) -> Predictions | None:
        """Returns the predictions of one row; None if it has none of this sample.

        Raises:
            PredictionError: They cannot be scored, such as a number that is not finite.
            DatasetError: A file of them cannot be read.
        """

    def check(self, dataset: Dataset) -> None:
        """Raises DatasetError if it has predictions of a sample that the dataset lacks."""
        unknown = set(self.keys())
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
    """Images whose paths are those of the dataset's images, up to the suffix."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        self._files: dict[str, Path] = {}
        if not path.is_dir():
            raise DatasetError(f"{path}: is no folder; predicted images are one file for each image")
        for file in _images(path):
            stem = _stem(file.relative_to(path).as_posix())
            if stem in self._files:
                raise DatasetError(f"{file}: has the name of {self._files[stem].name}; one file is allowed")
            self._files[stem] = file
        if not self._files:
            raise DatasetError(f"{path}: holds no images")

    def key(self, sample: Sample) -> str:
        """Returns the path of a sample without its suffix."""
        return _stem(sample.id)

    def keys(self) -> Collection[str]:
        """Returns the paths of the files without their suffixes."""
        return self._files.keys()

    def read(self, sample: Sample) -> Predictions | None:
        """Returns the image of a sample, which is read now."""
        file = self._files.get(self.key(sample))
        if file is None:
            return None
        try:
            return self._read(file)
        except DatasetError as error:
            raise PredictionError(str(error)) from error

    def _read(self, file: Path) -> Predictions:
        raise NotImplementedError


class MaskFiles(_Folder):
    """PNG files whose pixels are the numbers of the dataset's classes; 255 is none of them."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        named = next((getattr(sample.truth, "classes", ()) for sample in dataset), ())
        super().__init__(path, dataset, labels or named)

    def _read(self, file: Path) -> ClassMaps:
        found = read_mask(file, self.labels).pixels
        return ClassMaps(np.array([found.shape], np.int64), found.ravel())


class EnhancedFiles(_Folder):
    """Enhanced images in any supported image format."""

    def _read(self, file: Path) -> Images:
        pixels = read_target(file).pixels.astype(np.float64) / 255
        return Images(pixels[np.newaxis])


def _images(folder: Path) -> list[Path]:
    return [Path(place, name) for place, _, names in walk(folder) for name in sorted(names) if is_image(name)]


def _stem(path: str) -> str:
    return PurePosixPath(path).with_suffix("").as_posix()


class ObjectsFile(PredictionFile):
    """COCO results JSON. An image without a result has a prediction: that nothing is in it.

    ``category_id`` is a number of the dataset's categories, or, where it has no numbers, as VOC's, the name
    of a class.
    """

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        categories = _categories(dataset)
        super().__init__(path, dataset, tuple(categories.values()))
        if labels and set(labels) != set(self.labels):
            raise DatasetError(
                f"{path}: COCO's results name the dataset's categories by their number; leave out labels"
            )
        self._found: Mapping[str, CocoResults] = read_results(path, categories, self.labels)

    def keys(self) -> Collection[str]:
        """Returns the ids of the images with results."""
        return self._found.keys()

    def read(self, sample: Sample) -> CocoResults:
        """Returns the objects in an image."""
        return self._found.get(sample.id, CocoResults(()))


class MasksOfObjectsFile(ObjectsFile):
    """COCO results JSON with masks; as in pycocotools, one of a ``bbox`` alone is its rectangle."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        results = [each for found in self._found.values() for each in found.objects]
        if results and all(each.mask is None for each in results):
            raise DatasetError(
                f"{path}: its results have no segmentation; score boxes with --task=object_detection"
            )


def _categories(dataset: Dataset) -> Mapping[Any, str]:
    """Returns the names of a dataset's classes by what results call them."""
    numbered: Mapping[Any, str] | None = getattr(dataset, "categories", None)
    if numbered is not None:
        return numbered
    names: dict[str, str] = {}
    for sample in dataset:
        truth = sample.read_truth()
        if isinstance(truth, Objects):
            names |= {name: name for name in truth.classes}
    return names
