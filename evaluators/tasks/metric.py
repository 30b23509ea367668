"""The interface of a task's metric, its result, and the registry of metrics.

A result is scores with their intervals: Wilson's of shares, and by bootstrap over the samples of other
figures. ``agent.tasks`` makes the predictions that metrics take.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Predictions
from inferometer.agent.tasks.registry import TaskRegistry
from inferometer.evaluators.datasets.base import Sample
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

_DECIMALS = 4
_LARGE = 1e15  # from about here on, float64 has no decimals


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
        interval: Its 95 % interval, by bootstrap over the samples or as the task defines it; None where there
            is none.
        unit: Such as ``dB``; empty for a share, 0…1, or a plain number.
        is_count: Whether it counts something, such as classes, and is shown as a whole number.
    """

    name: str
    value: float | None
    interval: ScoreInterval | None = None
    unit: str = ""
    is_count: bool = False

    @property
    def decimals(self) -> int:
        """The digits after the decimal point that are shown."""
        return 0 if self.is_count else _DECIMALS

    def text(self, value: float) -> str:
        """Returns this figure, or an end of its interval, for people; large ones with a power of ten."""
        return f"{value:.{self.decimals}f}" if abs(value) < _LARGE else f"{value:.{_DECIMALS}e}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How well a model did its task, over the samples that were evaluated and no others.

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
        """The most important known score; None without any."""
        return next((each for each in self.scores if each.value is not None), None)

    def score(self, name: str) -> float | None:
        """Returns the figure of a name; None if there is none."""
        return next((each.value for each in self.scores if each.name == name), None)


RESAMPLES = 1000
LEAST_SAMPLES = 200
"""With fewer, intervals of 95 % cover less than 92 % where errors have a long tail, as simulations show."""
_SEED = 0
_PERCENTILES = (2.5, 97.5)
_PERCENTILES_OF_BIASED = (1.5, 98.5)
_LEAST_SHARE = 0.99
"""The share of the draws in which the figure must vary."""
_BLOCK_ELEMENTS = 2**15
"""The most numbers in memory at once: 256 KiB of float64, which stay in the cache."""
_Z = 1.959963984540054  # the 97.5th percentile of the normal distribution
_Numbers = NDArray[np.float64]


def bootstrap_interval(
    statistic: Callable[[NDArray[np.int64]], float], samples: int, resamples: int = RESAMPLES
) -> ScoreInterval | None:
    """Returns the 95 % percentile interval of a statistic over samples drawn with replacement.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. The seed is fixed, so
    that the same predictions have the same interval. It takes any statistic; for means and their ratios,
    ``ratio_interval`` covers more.

    Args:
        statistic: Returns the figure over the samples with these indices, int64, of which some occur several
            times; a figure that is not finite is left out.
        samples: The number of samples.
        resamples: How often to draw.

    Returns:
        The interval; None for fewer than ``LEAST_SAMPLES``, or where the statistic is rarely defined, or is
        the same in all draws.
    """
    drawn = bootstrap_intervals(lambda indices: (statistic(indices),), samples, 1, resamples)
    return drawn[0]


def bootstrap_intervals(
    statistics: Callable[[NDArray[np.int64]], Sequence[float]],
    samples: int,
    figures: int,
    resamples: int = RESAMPLES,
    around: Sequence[float] | None = None,
) -> list[ScoreInterval | None]:
    """Returns the intervals of several figures over the same draws; see ``bootstrap_interval``.

    Args:
        statistics: Returns the figures, in a fixed order.
        samples: The number of samples.
        figures: The number of figures.
        resamples: How often to draw.
        around: The figures over all samples, for figures that few samples bias: the means of the draws are
            off by that bias twice, and the ends are moved by as much. They then hold 97 % of the draws, which
            covers 92 to 97 % of average precisions in simulations.
    """
    if samples < LEAST_SAMPLES or not resamples:
        return [None] * figures
    random = np.random.default_rng(_SEED)
    drawn = np.array([statistics(random.integers(0, samples, samples)) for _ in range(resamples)])
    if around is not None:
        for figure, value in enumerate(around):
            if (finite := drawn[np.isfinite(drawn[:, figure]), figure]).size:
                drawn[:, figure] += 2 * (value - finite.mean())
    percentiles = _PERCENTILES if around is None else _PERCENTILES_OF_BIASED
    return [_percentiles(drawn[:, figure], percentiles) for figure in range(figures)]


@np.errstate(over="ignore", invalid="ignore")
def ratio_interval(parts: _Numbers, wholes: _Numbers, power: float = 1.0) -> ScoreInterval | None:
    """Returns the 95 % interval of the mean over columns of ``(Σ parts / Σ wholes) ** power`` over samples.

    It is the studentised bootstrap: what is drawn is the distance from the figure in units of its standard
    error, which follows from the influence of each sample. Source: Efron and Tibshirani, 1993, chapter 12.5;
    Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 2.4.

    Args:
        parts: float64, samples × columns.
        wholes: float64, of the same shape; a column whose sum is 0 is left out of the mean.
        power: 0.5 for roots of mean squares.

    Returns:
        The interval; None for fewer than ``LEAST_SAMPLES``, or where too many draws have no spread.
    """
    samples = len(parts)
    defined = wholes.sum(axis=0) > 0
    if samples < LEAST_SAMPLES or not defined.any():
        return None
    parts, wholes = parts[:, defined], wholes[:, defined]
    [value], [error] = _studied(np.ones((1, samples)), parts, wholes, power)
    rounding = abs(value) * np.finfo(np.float64).eps * samples
    if not error > rounding:
        return None
    random, distances = np.random.default_rng(_SEED), np.empty(0)
    block = max(1, _BLOCK_ELEMENTS // max(samples, parts.shape[1]))
    for start in range(0, RESAMPLES, block):
        draws = min(block, RESAMPLES - start)
        places = random.integers(0, samples, (draws, samples)) + samples * np.arange(draws)[:, np.newaxis]
        weights = np.bincount(places.ravel(), minlength=draws * samples).reshape(draws, samples)
        values, errors = _studied(weights.astype(np.float64), parts, wholes, power)
        varied = errors > rounding
        distances = np.append(distances, (values[varied] - value) / errors[varied])
    distances = distances[np.isfinite(distances)]
    if len(distances) < _LEAST_SHARE * RESAMPLES:
        return None
    low, high = np.percentile(distances, _PERCENTILES)
    return ScoreInterval(float(value - high * error), float(value - low * error))


def _studied(weights: _Numbers, parts: _Numbers, wholes: _Numbers, power: float) -> tuple[_Numbers, _Numbers]:
    """Returns the figure of each draw and its standard error; ``weights`` are draws × samples."""
    part, whole = weights @ parts, weights @ wholes  # draws × columns
    there = whole > 0
    ratios = np.divide(part, whole, out=np.zeros_like(part), where=there)
    columns = np.maximum(there.sum(axis=1, keepdims=True), 1)
    # d(ratio ** power) = power · ratio ** (power - 1) · (d(part) - ratio · d(whole)) / whole
    steep = there & ((ratios > 0) if power < 1 else True)
    slopes = np.power(ratios, power - 1, out=np.zeros_like(part), where=steep) * power
    by_part = np.divide(slopes, whole * columns, out=np.zeros_like(part), where=steep)
    influences = parts @ by_part.T - wholes @ (by_part * ratios).T  # samples × draws
    errors = np.sqrt((weights.T * influences**2).sum(axis=0))
    values: _Numbers = (ratios**power).sum(axis=1) / columns[:, 0]
    return values, errors


def mean_score(
    name: str, values: _Numbers, unit: str = "", *, least: float = -math.inf, most: float = math.inf
) -> Score:
    """Returns the mean over samples with its interval; it is not defined without samples.

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
    """Returns the share of the samples that are hits, with Wilson's interval; not defined without samples."""
    count = int(np.count_nonzero(hits))
    return Score(name, count / len(hits) if len(hits) else None, wilson_interval(count, len(hits)))


def score_within(
    name: str,
    value: float,
    interval: ScoreInterval | None,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "",
) -> Score:
    """Returns a score with an interval that has it inside, both from ``least`` to ``most``."""
    value = min(max(value, least), most)
    if interval is not None:
        interval = ScoreInterval(max(least, min(interval.low, value)), min(most, max(interval.high, value)))
    return Score(name, value, interval, unit)


def wilson_interval(hits: int, count: int) -> ScoreInterval | None:
    """Returns the 95 % interval of a share of ``count`` independent samples; None without any.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.
    """
    if not count:
        return None
    share, spread = hits / count, _Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return ScoreInterval(min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def _percentiles(drawn: _Numbers, percentiles: tuple[float, float]) -> ScoreInterval | None:
    finite = drawn[np.isfinite(drawn)]
    if len(finite) < len(drawn) / 2:
        return None
    low, high = np.percentile(finite, percentiles)
    return ScoreInterval(float(low), float(high)) if high > low else None


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
    "instance_segmentation": "inferometer.evaluators.tasks.object_detection:InstanceMetric",
    "semantic_segmentation": "inferometer.evaluators.tasks.images:SemanticSegmentationMetric",
    "image_enhancement": "inferometer.evaluators.tasks.images:ImageEnhancementMetric",
    "regression": "inferometer.evaluators.tasks.vectors:RegressionMetric",
    "embedding": "inferometer.evaluators.tasks.vectors:EmbeddingMetric",
    "question_answering": "inferometer.evaluators.tasks.text:QuestionAnsweringMetric",
    "text_classification": "inferometer.evaluators.tasks.text:TextClassificationMetric",
}
METRICS: TaskRegistry[type[TaskMetric]] = TaskRegistry(
    "output.type", "metric", "inferometer.metrics", _BUILTIN
)
"""The metric of each ``output.type``: a line of the table for each of the program's own tasks."""
