"""The interface of a task's metric, its result, and the registry of metrics.

A result consists of scores with intervals: Wilson's for shares, and bootstrap intervals over the samples for
other figures. ``agent.tasks`` creates the predictions for metrics.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Predictions
from inferometer.agent.tasks.registry import TaskRegistry
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.intervals import ScoreInterval as ScoreInterval
from inferometer.evaluators.intervals import ratio_interval, wilson_interval
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

T = TypeVar("T")
_DECIMALS = 4
_LARGE = 1e15  # from about here on, float64 has no decimals


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of a task.

    Attributes:
        name: The name in reports, such as ``AP50``; the same in every evaluation of the task.
        value: The figure; None if it is undefined, such as a recall without any object.
        interval: Its 95 % interval, by bootstrap over the samples or as the task defines it; None if there
            is none.
        unit: The unit, such as ``dB``; empty for a share, 0…1, or a plain number.
        is_count: Whether it counts something, such as classes, and is therefore shown as a whole number.
    """

    name: str
    value: float | None
    interval: ScoreInterval | None = None
    unit: str = ""
    is_count: bool = False

    @property
    def decimals(self) -> int:
        """The number of digits that are shown after the decimal point."""
        return 0 if self.is_count else _DECIMALS

    def text(self, value: float) -> str:
        """Formats this figure, or an end of its interval, for people; large ones with a power of ten."""
        return f"{value:.{self.decimals}f}" if abs(value) < _LARGE else f"{value:.{_DECIMALS}e}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The performance of a model in its task, over only the samples that were evaluated.

    Attributes:
        task: The ``output.type``.
        definition: The definition of the figures, with its version, such as ``COCO AP (pycocotools 2.0.11)``.
        samples: The number of samples that have a truth and a prediction.
        scores: The figures, the most important one first.
        details: The data for pictures, such as a confusion matrix; plain JSON.
    """

    task: str
    definition: str
    samples: int
    scores: Sequence[Score]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Score | None:
        """The most important score that is known; None if there is none."""
        return next((each for each in self.scores if each.value is not None), None)

    def score(self, name: str) -> float | None:
        """Returns the score with a name; None if there is none."""
        return next((each.value for each in self.scores if each.name == name), None)


def mean_score(
    name: str,
    values: NDArray[np.float64],
    unit: str = "",
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Score:
    """Returns the mean over samples with its interval; it is undefined if there are no samples.

    Args:
        name: The name of the score.
        values: float64, samples.
        unit: The unit of the values.
        least: The lower bound of means.
        most: The upper bound of means.
    """
    if not len(values):
        return Score(name, None, None, unit)
    interval = ratio_interval(values[:, np.newaxis], np.ones((len(values), 1)))
    return score_within(name, float(values.mean()), interval, least=least, most=most, unit=unit)


def share_score(name: str, hits: NDArray[np.bool_]) -> Score:
    """Returns the share of the samples that are hits, with Wilson's interval; undefined if there are none."""
    return counted_score(name, int(np.count_nonzero(hits)), len(hits))


def counted_score(name: str, hits: int, samples: int) -> Score:
    """Returns the score of ``share_score`` from the numbers of hits and samples."""
    return Score(name, hits / samples if samples else None, wilson_interval(hits, samples))


def truth_of(sample: Sample, kind: type[T], missing: str) -> T | None:
    """Returns the truth of a sample, which is read if necessary; None if there is none.

    Raises:
        DatasetError: It cannot be read, or is of another kind; in that case the message is ``missing``.
    """
    truth = sample.read_truth()
    if truth is None or isinstance(truth, kind):
        return truth
    raise DatasetError(missing)


MOST_DRAWN_COUNTS = 2**21
"""The maximum count of numbers, samples × classes, for the intervals of F1, precision and recall."""
MOST_COUNTS = 2**24
"""The maximum count of numbers, 128 MiB, for the interval of ratios; beyond it, there is no interval."""


def ratio_score(name: str, value: float, parts: NDArray[np.float64], wholes: NDArray[np.float64]) -> Score:
    """Returns a score 0…1 that is a mean of ratios over the samples, with its ``ratio_interval``."""
    return score_within(name, value, ratio_interval(parts, wholes), least=0.0, most=1.0)


def score_within(
    name: str,
    value: float,
    interval: ScoreInterval | None,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "",
) -> Score:
    """Returns a score with an interval that contains it, both limited to ``least``…``most``."""
    value = min(max(value, least), most)
    if interval is not None:
        interval = ScoreInterval(max(least, min(interval.low, value)), min(most, max(interval.high, value)))
    return Score(name, value, interval, unit)


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts:
    """The inputs of each class, int64 of shape (classes,); or float64, samples × classes, for single inputs.

    Attributes:
        hits: The inputs for which the class is true and predicted.
        true: The inputs for which it is true.
        predicted: The inputs for which it is predicted.
    """

    hits: NDArray[Any]
    true: NDArray[Any]
    predicted: NDArray[Any]

    @classmethod
    def of_each(cls, true: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> ClassCounts:
        """Returns the counts of single samples, each bool, samples × classes."""
        return cls(*(each.astype(np.float64) for each in (true & predicted, true, predicted)))

    def ratios(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Returns the part and the whole of F1, precision and recall, by name."""
        both = self.true + self.predicted
        return {
            "F1": (2 * self.hits, both),
            "precision": (self.hits, self.predicted),
            "recall": (self.hits, self.true),
        }

    def figures(self) -> dict[str, NDArray[np.float64]]:
        """Returns F1, precision and recall of each class, by name; 0 / 0 is 0, as in scikit-learn."""
        return {
            name: np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
            for name, (part, whole) in self.ratios().items()
        }

    def details(self) -> dict[str, list[Any]]:
        """Returns the counts and the figures of each class, as plain lists."""
        columns = {"true": self.true, "predicted": self.predicted, **self.figures()}
        return {name: values.tolist() for name, values in columns.items()}

    def macro_score(
        self, figure: str, each: ClassCounts | None, counts: NDArray[np.int64] | None = None, name: str = ""
    ) -> Score:
        """Returns the mean of one of the ``figures`` over the classes.

        Args:
            figure: The name of the figure.
            each: The samples, for intervals; None for no intervals.
            counts: The number of equal samples that each of these represents; None means one.
            name: The name of the score; empty for that of the figure.
        """
        value, interval = float(self.figures()[figure].mean()), None
        if each is not None:
            part, whole = each.ratios()[figure]
            if interval := ratio_interval(part, whole, counts=counts):
                share = float(whole.any(axis=0).mean())  # the interval is of the classes that are defined
                interval = ScoreInterval(interval.low * share, interval.high * share)
        return score_within(name or figure, value, interval, least=0.0, most=1.0)


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """A sample whose prediction cannot be scored, and the reason in one line."""

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
            DatasetError: It does not fit, for example because the model does not know its class.
        """

    @abstractmethod
    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Adds the prediction for one sample; a sample without a truth is not counted.

        Args:
            sample: The sample.
            prediction: Predictions of one row.

        Raises:
            DatasetError: The truth cannot be read, or does not fit the model.
            PredictionError: The prediction cannot be scored against this truth, for example because it is a
                map of another size. With either error, the sample counts as failed.
        """

    def add_batch(self, samples: Sequence[Sample], predictions: Predictions) -> Sequence[ScoringFailure]:
        """Adds the predictions for several samples; returns a failure for each that ``add`` refuses.

        Args:
            samples: The samples.
            predictions: Predictions with one row for each sample.
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
    "instance_segmentation": "inferometer.evaluators.tasks.object_detection:InstanceMetric",
    "semantic_segmentation": "inferometer.evaluators.tasks.images:SemanticSegmentationMetric",
    "image_enhancement": "inferometer.evaluators.tasks.images:ImageEnhancementMetric",
    "multilabel_classification": "inferometer.evaluators.tasks.vectors:MultilabelMetric",
    "regression": "inferometer.evaluators.tasks.vectors:RegressionMetric",
    "embedding": "inferometer.evaluators.tasks.vectors:EmbeddingMetric",
    "question_answering": "inferometer.evaluators.tasks.classification:QuestionAnsweringMetric",
    "text_classification": "inferometer.evaluators.tasks.classification:TextClassificationMetric",
}
METRICS: TaskRegistry[type[TaskMetric]] = TaskRegistry(
    "output.type", "metric", "inferometer.metrics", _BUILTIN
)
"""The metric for each ``output.type``; each of the program's own tasks has a line in the table."""
