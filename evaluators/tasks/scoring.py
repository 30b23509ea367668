"""Scoring of predictions that another tool wrote, against a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.agent.tasks.predictions import Detections, Instances
from inferometer.evaluators.datasets.base import Dataset, Subset
from inferometer.evaluators.tasks.coco_results import read_results
from inferometer.evaluators.tasks.metric import METRICS
from inferometer.evaluators.tasks.scores import TaskResult
from inferometer.manifests.errors import DatasetError, printable
from inferometer.manifests.schema import ModelManifest


def score_results(path: Path, dataset: Dataset, task: str) -> TaskResult:
    """Scores COCO results JSON against all images of a dataset; one that is not in the file has no objects.

    Args:
        path: The file.
        dataset: A dataset in COCO's format, or a subset of one, whose images alone count.
        task: ``object_detection`` or ``instance_segmentation``.

    Raises:
        DatasetError: The file cannot be read, does not fit the dataset, or the dataset has no categories.
        FrameworkUnavailableError: pycocotools is not installed.
    """
    categories = categories_of(dataset)
    labels = list(categories.values())
    found = read_results(path, categories, labels)
    whole = dataset.whole if isinstance(dataset, Subset) else dataset
    known = {sample.id for sample in whole}
    if unknown := next((image for image in found if image not in known), None):
        raise DatasetError(
            f'{path}: image "{printable(unknown)}" is none of the dataset {dataset.identity.name}'
        )
    metric = METRICS.find(task)(_manifest(task, labels))
    for sample in dataset:
        metric.check(sample)
        truth: Any = sample.read_truth()
        empty = _nothing(task, truth.height, truth.width)
        metric.add(sample, found.get(sample.id, empty))
    result = metric.result()
    if result is None:
        raise DatasetError(f"dataset {dataset.identity.name} has no images to score")
    return result


def categories_of(dataset: Dataset) -> Mapping[Any, str]:
    """Returns the names of a dataset's classes by their number; raises DatasetError if it has none."""
    whole = dataset.whole if isinstance(dataset, Subset) else dataset
    categories: Mapping[Any, str] | None = getattr(whole, "categories", None)
    if categories is None:
        raise DatasetError(
            f"dataset {dataset.identity.name} has no numbers of its classes, which COCO results refer to; "
            "name a dataset in COCO's format"
        )
    return categories


def _nothing(task: str, height: int, width: int) -> Detections | Instances:
    nothing = Detections(
        np.zeros(1, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    )
    if task != "instance_segmentation":
        return nothing
    size, lengths = np.array([[height, width]], np.int64), np.zeros(0, np.int64)
    return Instances(
        nothing.counts, nothing.boxes, nothing.scores, nothing.classes, size, lengths, np.zeros(0, np.uint8)
    )


def _manifest(task: str, labels: list[str]) -> ModelManifest:
    """A manifest that stands for the model of the results, of which only the labels are known."""
    return ModelManifest.model_validate(
        {
            "name": "results",
            "framework": {"name": "results"},
            "inputs": [{"type": "tensor", "parameters": {"dimensions": [1], "input_layer": "image"}}],
            "output": {"type": task, "parameters": {"labels": labels}},
            "model": {"graph_path": "results"},
        }
    )
