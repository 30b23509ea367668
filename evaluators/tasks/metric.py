"""The interface of a task's metric, its result, the registry of metrics, and the classes of samples.

A result consists of scores with intervals: Wilson's for shares, and bootstrap intervals over the samples for
other figures. ``agent.tasks`` creates the predictions for metrics. ``ClassIndex`` finds a dataset's classes
among those of a model, and ``predicted_samples`` finds the samples that have predictions.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import BatchResult
from inferometer.agent.tasks.predictions import Predictions
from inferometer.agent.tasks.registry import TaskRegistry
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.score_intervals import ScoreInterval as ScoreInterval
from inferometer.evaluators.score_intervals import ratio_interval, wilson_interval
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

    @property
    def first_text(self) -> str:
        """The most important score with the number of samples, for people."""
        score = self.first
        if score is None or score.value is None:
            return "has no score"
        unit = f" {score.unit}" if score.unit else ""
        return f"{score.name} {score.text(score.value)}{unit} over {self.samples} inputs"

    def score(self, name: str) -> float | None:
        """Returns the score with a name; None if there is none."""
        return next((each.value for each in self.scores if each.name == name), None)


def mean_score(
    name: str,
    values: NDArray[np.float64],
    unit: str = "",
    *,
    wholes: NDArray[np.float64] | None = None,
    least: float = -math.inf,
    most: float = math.inf,
) -> Score:
    """Returns the mean over samples with its interval; it is undefined if there are no samples.

    Args:
        name: The name of the score.
        values: float64, samples.
        unit: The unit of the values.
        wholes: float64, samples; the sum of the values is divided by that of these, instead of their number.
        least: The lower bound of means.
        most: The upper bound of means.
    """
    wholes = np.ones(len(values)) if wholes is None else wholes
    if not wholes.sum():
        return Score(name, None, None, unit)
    value = float(values.sum() / wholes.sum())
    interval = ratio_interval(values[:, np.newaxis], wholes[:, np.newaxis])
    return score_within(name, value, interval, least=least, most=most, unit=unit)


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
    "object_detection": "inferometer.evaluators.tasks.images:DetectionMetric",
    "instance_segmentation": "inferometer.evaluators.tasks.images:InstanceMetric",
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


_SHOWN_LABELS = 3
_MAX_INDEX_DIGITS = 9


class ClassIndex:
    """The index of a dataset's class among a model's labels.

    A class matches the label of the same name. If there is none, it matches the label of the same name with
    case ignored, or else the label whose first word it is, as in the lines of ImageNet's ``synset.txt``,
    "n01440764 tench, Tinca tinca". Without labels, the name of a class is its decimal index.

    Args:
        labels: The model's labels, in the order of its scores; may be empty.

    Its methods raise DatasetError if the model has no matching class, or several.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        names = [label.casefold().strip() for label in labels]
        first_words = [(name.split(maxsplit=1) or [""])[0] for name in names]
        self._by_rule = (_places(labels), _places(names), _places(first_words))
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def find(self, name: str) -> int:
        """Returns the index of the dataset's class ``name``."""
        index = self._known.get(name)
        if index is None:
            index = self._known[name] = self._look_up(name)
        return index

    def find_or_index(self, name: str) -> int:
        """Returns the index of the class ``name`` or, if it has none, the index of a class that it spells."""
        try:
            return self.find(name)
        except DatasetError:
            index = decimal(name)
            if index is None or index >= len(self):
                raise
            return index

    def of(self, sample: Sample) -> int | None:
        """Returns the index of the class of a sample; None if it has no label."""
        if sample.label is None:
            return None
        if not sample.label_is_index:
            return self.find(sample.label)
        index = decimal(sample.label)
        if index is None or (self._labels and index >= len(self._labels)):
            raise DatasetError(
                f"the dataset's class {sample.label} is no index of the model's {len(self._labels)} classes"
            )
        return index

    def _look_up(self, name: str) -> int:
        if not self._labels:
            return _index(name)
        folded = name.casefold().strip()
        for places, key in zip(self._by_rule, (name, folded, folded), strict=True):
            found = places.get(key, [])
            if len(found) > 1:
                several = ", ".join(
                    f"{_quoted(self._labels[place])} ({place})" for place in found[:_SHOWN_LABELS]
                )
                raise DatasetError(
                    f"the dataset's class {_quoted(name)} fits {len(found)} classes of the model: {several}"
                )
            if found:
                return found[0]
        examples = ", ".join(_quoted(label) for label in self._labels[:_SHOWN_LABELS])
        more = ", …" if len(self._labels) > _SHOWN_LABELS else ""
        raise DatasetError(
            f"the dataset's class {_quoted(name)} is none of the {len(self._labels)} classes of the model: "
            f"{examples}{more}"
        )


def predicted_samples(samples: Sequence[Sample], result: BatchResult) -> list[Sample]:
    """Returns the samples of a batch that have predictions, one for each row of the outputs.

    Raises:
        PredictionError: The result is not for these samples.
    """
    outputs = result.outputs
    if isinstance(outputs, Predictions) and len(outputs) != len(result.input_ids):
        raise PredictionError(f"{len(result.input_ids)} predicted inputs have {len(outputs)} outputs")
    found = []
    remaining = iter(samples)
    for input_id in result.input_ids:
        sample = next((sample for sample in remaining if sample.id == input_id), None)
        if sample is None:
            raise PredictionError(f"input {input_id}: has an output, but was not requested in this position")
        found.append(sample)
    return found


def _places(names: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def decimal(name: str) -> int | None:
    """Returns the index that a name spells in decimal; None if it is not a decimal number."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _MAX_INDEX_DIGITS else None


def _index(name: str) -> int:
    index = decimal(name)
    if index is None:
        raise DatasetError(
            f"the dataset's class \"{name}\" is not a class index, and the model's manifest gives no labels; "
            "add output.parameters.labels to it"
        )
    return index


def _quoted(text: str) -> str:
    """Returns the text in quotes, on one line."""
    return json.dumps(text, ensure_ascii=False)


def _as_index(dataset: str, classes: int, label: str) -> int:
    index = decimal(label)
    if index is None or index >= classes:
        raise DatasetError(
            f'{dataset}: has the class "{label}"; the model has {classes} classes, 0 to {classes - 1}'
        )
    return index


def _by_name(dataset: str, indices: Mapping[str, int], label: str) -> int:
    try:
        return indices[label]
    except KeyError:
        raise DatasetError(f'{dataset}: the class "{label}" was not among its classes') from None


def class_indices(dataset: Dataset, manifest_labels: Sequence[str], classes: int) -> Callable[[str], int]:
    """Returns a function, which can be pickled, that returns the index of a sample's label.

    If the format holds indices, they are used unchanged. Otherwise, if all labels match labels of the model
    by the rules of ``ClassIndex``, the indices are the model's; else, if all are whole numbers below
    ``classes``, they are indices; else the index is the position among the sorted labels, as in torchvision's
    ``ImageFolder``.

    Args:
        dataset: The dataset; unless its labels are indices, all of them are read.
        manifest_labels: The model's labels, in the order of its scores; may be empty.
        classes: The number of classes of the model.

    Returns:
        The function; it raises DatasetError for a label that the dataset did not have, or an index that the
        model lacks.

    Raises:
        DatasetError: The dataset has no labels, or more classes than the model.
    """
    name = dataset.identity.name
    if dataset.labels_are_indices:
        return partial(_as_index, name, classes)
    labels = sorted(dataset.labels())
    if not labels:
        raise DatasetError(f"{name}: has no labels; training requires a class for each sample")
    matched = _matched(labels, manifest_labels)
    if matched is not None and max(matched.values()) < classes:
        return partial(_by_name, name, matched)
    if all((index := decimal(label)) is not None and index < classes for label in labels):
        return partial(_as_index, name, classes)
    if len(labels) > classes:
        shown = ", ".join(labels[:_SHOWN_LABELS])
        raise DatasetError(f"{name}: has {len(labels)} classes ({shown}, …), and the model has {classes}")
    return partial(_by_name, name, {label: index for index, label in enumerate(labels)})


def _matched(labels: Sequence[str], manifest_labels: Sequence[str]) -> Mapping[str, int] | None:
    """Returns the index of each label among the model's; None unless they match one to one."""
    if not manifest_labels:
        return None
    index = ClassIndex(manifest_labels)
    try:
        found = {label: index.find(label) for label in labels}
    except DatasetError:
        return None
    return found if len(set(found.values())) == len(found) else None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The numbers of correctly classified inputs and of evaluated inputs.

    Attributes:
        top1: Inputs whose most probable class is their label.
        top5: Inputs whose label is among the five most probable classes, or among all of fewer classes; None
            if the model names only the best class.
        evaluated: Inputs with a label and a prediction; failed ones do not count.
    """

    top1: int
    top5: int | None
    evaluated: int

    @property
    def top1_share(self) -> float | None:
        """``top1`` as a fraction of the evaluated inputs, 0…1; None if there are none."""
        return self.top1 / self.evaluated if self.evaluated else None

    @property
    def top5_share(self) -> float | None:
        """``top5`` as a fraction of the evaluated inputs, 0…1; None if there are none, or it is unknown."""
        return None if self.top5 is None or not self.evaluated else self.top5 / self.evaluated
