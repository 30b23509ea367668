"""The interface of a task's metric, its result, and the registry of metrics.

``agent.tasks`` makes the predictions that metrics take.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from inferometer.agent.tasks.predictions import Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.manifests.schema import ModelManifest


class ScoreInterval(NamedTuple):
    """The ends of a 95 % interval of a score."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of a task.

    Attributes:
        name: The name in reports, such as ``AP50``; the same in every evaluation of the task.
        value: The figure; None where it is not defined, as a recall without any object.
        interval: Its 95 % interval by bootstrap over the samples; None where there is none.
        unit: Such as ``dB``; empty for a share, 0…1, or a plain number.
    """

    name: str
    value: float | None
    interval: ScoreInterval | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How well a model did its task, over the samples that were evaluated and no others.

    Attributes:
        task: The ``output.type``.
        definition: What defines the figures, with its version, such as ``COCO AP (pycocotools 2.0.11)``.
        samples: The number of samples that have a truth and a prediction.
        scores: The figures, the most important one first.
        details: What pictures are drawn of, such as a confusion matrix; plain JSON.
    """

    task: str
    definition: str
    samples: int
    scores: Sequence[Score]
    details: Mapping[str, Any] = field(default_factory=dict)

    def score(self, name: str) -> float | None:
        """Returns the figure of a name; None if there is none."""
        return next((each.value for each in self.scores if each.name == name), None)


class TaskMetric(ABC):
    """Collects the predictions of one evaluation, and scores them. Not thread-safe.

    Args:
        manifest: The model.

    Attributes:
        task: The ``output.type``.
    """

    task: ClassVar[str]

    def __init__(self, manifest: ModelManifest) -> None:
        self.manifest = manifest

    def check(self, sample: Sample) -> None:  # noqa: B027 - many truths fit every model
        """Checks, before the model runs, that a sample's truth fits the model; reads no large data.

        Raises:
            DatasetError: It does not, such as a class that the model does not know.
        """

    @abstractmethod
    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the prediction of one sample; one without a truth is not counted.

        Args:
            sample: The sample.
            prediction: Predictions of one row.

        Raises:
            DatasetError: The truth cannot be read, or does not fit the model.
            PredictionError: The prediction cannot be scored against this truth, such as a map of
                another size. The sample then counts as failed.
        """

    @abstractmethod
    def result(self) -> TaskResult | None:
        """Returns the scores; None if no sample with a truth was predicted."""


METRICS: Mapping[str, str] = {
    "embedding": "inferometer.evaluators.tasks.embedding:EmbeddingMetric",
    "question_answering": "inferometer.evaluators.tasks.question_answering:QuestionAnsweringMetric",
    "text_classification": "inferometer.evaluators.tasks.text_classification:TextClassificationMetric",
}
"""``output.type`` and its ``TaskMetric`` as ``"module:Class"``."""


def load_metric(place: str) -> type[TaskMetric]:
    """Imports a metric."""
    module, _, name = place.partition(":")
    found: type[TaskMetric] = getattr(importlib.import_module(module), name)
    return found
