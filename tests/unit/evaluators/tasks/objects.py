"""Truths, samples and manifests of detectors for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import EncodedImage, ImageGeometry
from inferometer.agent.tasks.predictions import encoded
from inferometer.evaluators.datasets.base import Objects, RunLengths, Sample
from inferometer.manifests.schema import ModelManifest

FULL_SIZE = ImageGeometry(400, 300, 1.0, 1.0, 0.0, 0.0, 400, 300)


def detector(kind: str = "object_detection", **parameters: Any) -> ModelManifest:
    """A detector with GluonCV's outputs."""
    given = {"classes_layer": 0, "probabilities_layer": 1, "boxes_layer": 2, "labels": ["cat", "dog"]}
    return ModelManifest.model_validate(
        {
            "name": "Detector",
            "framework": {"name": "ONNXRuntime"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 300, 400]}}],
            "output": {"type": kind, "parameters": {**given, **parameters}},
            "model": {"graph_path": "model.onnx"},
        }
    )


def instance_segmenter(**parameters: Any) -> ModelManifest:
    """The same with masks of the boxes."""
    return detector("instance_segmentation", masks_layer=3, **parameters)


def objects(
    *rows: tuple[Any, ...],
    size: tuple[int, int] = (300, 400),
    masks: Sequence[NDArray[np.bool_]] | None = None,
) -> Objects:
    """A truth of boxes as xyxy, each with its class; a third entry makes it a crowd."""
    boxes = np.array([row[0] for row in rows], np.float64).reshape(-1, 4)
    boxes[:, 2:] -= boxes[:, :2]
    return Objects(
        *size,
        boxes,
        tuple(row[1] for row in rows),
        boxes[:, 2] * boxes[:, 3],
        np.array([len(row) > 2 for row in rows], np.bool_),
        None if masks is None else tuple(RunLengths(*size, encoded(mask)) for mask in masks),
    )


def sample(truth: Objects, name: str = "1") -> Sample:
    """A sample with a truth."""
    return Sample(name, EncodedImage(b""), truth=truth)
