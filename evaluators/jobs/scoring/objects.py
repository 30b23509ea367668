"""COCO results JSON: the objects that another tool has found in the images of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.truths import Objects
from inferometer.evaluators.jobs.scoring.prediction_files import PredictionFile
from inferometer.evaluators.tasks.coco_results import CocoResults, read_results
from inferometer.manifests.errors import DatasetError


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
