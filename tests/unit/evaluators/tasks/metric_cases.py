"""Samples, predictions and metrics of the tests of metrics."""

from __future__ import annotations

from typing import Any

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.tasks.predictions import Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.tasks.metric import METRICS, TaskMetric, TaskResult
from inferometer.manifests.schema import ModelManifest


def metric_of(task: str, **parameters: Any) -> TaskMetric:
    """The metric of a model with these output parameters."""
    manifest = ModelManifest.model_validate(
        {
            "name": "Net",
            "framework": {"name": "PyTorch"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": task, "parameters": parameters},
            "model": {"graph_path": "net.pt"},
        }
    )
    return METRICS.find(manifest.output.type)(manifest)


def sample_of(truth: Any) -> Sample:
    """A sample, of which only the truth is looked at."""
    return Sample("1.png", EncodedImage(b""), truth=truth)


def scored(metric: TaskMetric, *pairs: tuple[Any, Predictions]) -> TaskResult:
    """The result over truths with their predictions."""
    for truth, prediction in pairs:
        metric.check(sample_of(truth))
        metric.add(sample_of(truth), prediction)
    result = metric.result()
    assert result is not None
    return result
