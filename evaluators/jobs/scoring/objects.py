"""COCO results JSON: the objects that another tool has found in the images of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.agent.tasks.predictions import Detections, Instances
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.truths import Objects
from inferometer.evaluators.jobs.scoring.prediction_files import PredictionFile
from inferometer.evaluators.tasks.coco_results import read_results
from inferometer.manifests.errors import DatasetError, printable


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
        self._found: Mapping[str, Detections | Instances] = read_results(path, categories, self.labels)

    def keys(self) -> Collection[str]:
        """The ids of the images with results."""
        return [printable(key) for key in self._found]

    def read(self, sample: Sample) -> Detections | Instances:
        """Returns the objects in an image."""
        return self._found.get(sample.id) or _none_of_boxes()


class MasksOfObjectsFile(ObjectsFile):
    """COCO results JSON with a ``segmentation`` in each result."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        bare = next((key for key, found in self._found.items() if not isinstance(found, Instances)), None)
        if bare is not None:
            raise DatasetError(
                f"{path}: image {printable(bare)}: its results have no segmentation; score boxes with "
                "--task=object_detection"
            )

    def read(self, sample: Sample) -> Detections | Instances:
        """Returns the objects in an image."""
        return self._found.get(sample.id) or _none_of_masks(sample)


def _categories(dataset: Dataset) -> Mapping[Any, str]:
    """The names of a dataset's classes by what results call them."""
    numbered: Mapping[Any, str] | None = getattr(dataset, "categories", None)
    if numbered is not None:
        return numbered
    names: dict[str, str] = {}
    for sample in dataset:
        truth = sample.read_truth()
        if isinstance(truth, Objects):
            names |= {name: name for name in truth.classes}
    return names


def _none_of_boxes() -> Detections:
    nothing = np.zeros(0, np.float32)
    return Detections(np.zeros(1, np.int64), np.zeros((0, 4), np.float32), nothing, np.zeros(0, np.int64))


def _none_of_masks(sample: Sample) -> Instances:
    truth = sample.read_truth()
    size = (truth.height, truth.width) if isinstance(truth, Objects) else (0, 0)
    none = _none_of_boxes()
    return Instances(
        none.counts,
        none.boxes,
        none.scores,
        none.classes,
        np.array([size], np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.uint8),
    )
