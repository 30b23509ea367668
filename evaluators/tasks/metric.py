"""The interface of a task's metric, its result, and the registry of metrics.

``agent.tasks`` makes the predictions that metrics take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from inferometer.agent.tasks.predictions import Predictions
from inferometer.agent.tasks.registry import TaskRegistry
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.tasks.scores import Score as Score
from inferometer.evaluators.tasks.scores import ScoreInterval as ScoreInterval
from inferometer.evaluators.tasks.scores import TaskResult as TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """A sample whose prediction cannot be scored, and why, in one line."""

    input_id: str
    message: str


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
                another size. With either, the sample counts as failed.
        """

    def add_batch(self, samples: Sequence[Sample], predictions: Predictions) -> Sequence[ScoringFailure]:
        """Takes the predictions of several samples; those that ``add`` refuses are in the result.

        Args:
            samples: The samples.
            predictions: Predictions of a row for each of them.
        """
        failures = []
        for place, sample in enumerate(samples):
            try:
                self.add(sample, predictions.row(place))
            except (DatasetError, PredictionError) as error:
                failures.append(ScoringFailure(sample.id, str(error)))
        return failures

    @abstractmethod
    def result(self) -> TaskResult | None:
        """Returns the scores; None if no sample with a truth was predicted."""


_BUILTIN: Mapping[str, str] = {
    "classification": "inferometer.evaluators.tasks.classification:ClassificationMetric",
    "object_detection": "inferometer.evaluators.tasks.object_detection:DetectionMetric",
    "instance_segmentation": "inferometer.evaluators.tasks.instance_segmentation:InstanceMetric",
    "semantic_segmentation": "inferometer.evaluators.tasks.semantic_segmentation:SemanticSegmentationMetric",
    "image_enhancement": "inferometer.evaluators.tasks.image_enhancement:ImageEnhancementMetric",
    "regression": "inferometer.evaluators.tasks.regression:RegressionMetric",
    "embedding": "inferometer.evaluators.tasks.embedding:EmbeddingMetric",
    "question_answering": "inferometer.evaluators.tasks.question_answering:QuestionAnsweringMetric",
    "text_classification": "inferometer.evaluators.tasks.text_classification:TextClassificationMetric",
}
METRICS: TaskRegistry[type[TaskMetric]] = TaskRegistry(
    "output.type", "metric", "inferometer.metrics", _BUILTIN
)
"""The metric of each ``output.type``: a line of the table for each of the program's own tasks."""
