"""The metrics of vectors of numbers: regression, embeddings, and classification with several labels.

For regression, they measure the distance of numbers from their targets, and the correlation with them; for
embeddings, they measure the similarity to reference vectors and the retrieval among nearest neighbours; for
several classes, they measure the ranking of the inputs by each class, and the decisions at a threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Classifications, Predictions, Values
from inferometer.evaluators.datasets.base import ClassNames, Objects, Sample, TargetValues
from inferometer.evaluators.score_intervals import (
    RESAMPLES,
    ScoreInterval,
    bootstrap_intervals,
    ratio_interval,
)
from inferometer.evaluators.tasks.metric import (
    MOST_DRAWN_COUNTS,
    ClassCounts,
    ClassIndex,
    Score,
    TaskMetric,
    TaskResult,
    mean_score,
    ratio_score,
    score_within,
    share_score,
    truth_of,
)
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

DEFINITION = "MAE, RMSE, R², MAPE and the correlations of each number, mean over the numbers, version 1"
_MOST_DRAWN = 10**8
"""The maximum number of values that the draws of a bootstrap contain together."""
_LEAST_DRAWS = 200

_Numbers = NDArray[np.float64]


class RegressionMetric(TaskMetric):
    """Compares N × k numbers with their targets.

    The mean absolute error, the root of the mean squared error and the coefficient of determination are
    computed for each of the k numbers over the samples; a score is their mean, as in scikit-learn with
    ``multioutput="uniform_average"``, as is the mean absolute percentage error, a share. The correlations are
    those of ``scipy.stats``. R² is undefined for targets that are all the same, and a correlation also for
    such predictions: undefined values are left out of the mean, which is None if all are undefined.
    """

    task = "regression"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._predicted: list[_Numbers] = []
        self._targets: list[_Numbers] = []

    def add(self, sample: Sample, prediction: Predictions) -> None:
        truth = truth_of(sample, TargetValues, "has no targets, which a regression is scored against")
        if truth is None:
            return
        if not isinstance(prediction, Values) or len(prediction) != 1:
            raise PredictionError("the prediction has no numbers")
        values = prediction.values[0].astype(np.float64)
        if values.shape != truth.values.shape:
            raise PredictionError(
                f"{len(values)} numbers were predicted; the dataset has {truth.values.size} targets"
            )
        if self._targets and len(self._targets[0]) != len(truth.values):
            raise DatasetError(f"has {len(truth.values)} targets; others have {len(self._targets[0])}")
        with np.errstate(over="ignore"):
            if not np.isfinite(values - truth.values).all():
                raise PredictionError("a number differs from its target by more than float64 holds")
        self._predicted.append(values)
        self._targets.append(truth.values)

    @np.errstate(over="ignore")
    def result(self) -> TaskResult | None:
        """Returns the scores; None if no input with targets was predicted."""
        if not self._targets:
            return None
        predicted, targets = np.stack(self._predicted), np.stack(self._targets)
        figures = {
            "MAE": _absolute(predicted, targets),
            "RMSE": _root_of_squares(predicted, targets),
            "R2": _determination(predicted, targets),
            "MAPE": _relative(predicted, targets).mean(axis=0),
            "Pearson": _correlation(predicted, targets),
            "Spearman": _correlation(_ranks(_places(predicted)), _ranks(_places(targets))),
        }
        details = {n: [float(v) if np.isfinite(v) else None for v in each] for n, each in figures.items()}
        intervals = {**_intervals(predicted, targets), **_correlation_intervals(predicted, targets)}
        intervals["MAPE"] = ratio_interval(_relative(predicted, targets), np.ones_like(targets))
        least, scores = {"R2": -np.inf, "Pearson": -1.0, "Spearman": -1.0}, []
        for name, each in figures.items():
            value = _mean(each)
            if not np.isfinite(value):
                scores.append(Score(name, None))
            else:
                most = 1.0 if name in least else np.inf
                scores.append(
                    score_within(name, value, intervals[name], least=least.get(name, 0.0), most=most)
                )
        labels = self.manifest.output.parameters.labels
        return TaskResult(
            self.task, DEFINITION, len(targets), scores, {"values": list(labels), "scores": details}
        )


@np.errstate(over="ignore", invalid="ignore")
def _intervals(predicted: _Numbers, targets: _Numbers) -> dict[str, ScoreInterval | None]:
    """Returns the intervals of the scores over other samples of the same kind."""
    errors, ones = np.abs(predicted - targets), np.ones_like(targets)
    spread = np.where(np.ptp(targets, axis=0) > 0, np.square(targets - targets.mean(axis=0)), 0.0)
    missed = ratio_interval(np.square(errors), spread)
    return {
        "MAE": ratio_interval(errors, ones),
        "RMSE": ratio_interval(np.square(errors), ones, power=0.5),
        "R2": None if missed is None else ScoreInterval(1.0 - missed.high, 1.0 - missed.low),
    }


@np.errstate(over="ignore")
def _absolute(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    errors, exponents = _scaled(predicted - targets)
    means: _Numbers = np.ldexp(np.abs(errors).mean(axis=0), exponents)
    return means


@np.errstate(over="ignore")
def _root_of_squares(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    errors, exponents = _scaled(predicted - targets)
    roots: _Numbers = np.ldexp(np.sqrt(np.square(errors).mean(axis=0)), exponents)
    return roots


@np.errstate(over="ignore")
def _determination(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    """Returns R² of each number, ``1 - Σ(y - ŷ)² / Σ(y - ȳ)²``; NaN if the targets are all the same.

    A value below the range of float64 is -inf.
    """
    errors, of_errors = _scaled(predicted - targets)
    scaled, of_targets = _scaled(targets)
    deviations, of_deviations = _scaled(scaled - scaled.mean(axis=0))
    varied = targets.max(axis=0) > targets.min(axis=0)
    spread = np.square(deviations).sum(axis=0)
    missed = np.divide(
        np.square(errors).sum(axis=0), spread, out=np.full(len(spread), np.nan), where=varied & (spread > 0)
    )
    shares: _Numbers = 1.0 - np.ldexp(missed, 2 * (of_errors - of_targets - of_deviations))
    return shares


def _relative(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    """Returns ``|y - ŷ| / max(|y|, ε)``, with the ε of float64, as in scikit-learn."""
    errors: _Numbers = np.abs(predicted - targets) / np.maximum(np.abs(targets), np.finfo(np.float64).eps)
    return errors


def _correlation(one: _Numbers, other: _Numbers) -> _Numbers:
    """Returns Pearson's r of each number; NaN if one side is always the same."""
    a, b = (_scaled(scaled - scaled.mean(axis=0))[0] for scaled in (_scaled(one)[0], _scaled(other)[0]))
    varied = (one.max(axis=0) > one.min(axis=0)) & (other.max(axis=0) > other.min(axis=0))
    spread = np.sqrt(np.square(a).sum(axis=0) * np.square(b).sum(axis=0))
    return np.divide((a * b).sum(axis=0), spread, out=np.full(len(spread), np.nan), where=varied)


def _places(values: _Numbers) -> NDArray[np.int64]:
    """Returns the place of each value among the different values of its column, int64, samples × k."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)


def _ranks(places: NDArray[np.int64]) -> _Numbers:
    """Returns the rank of each value in its column; equal values share the mean of their ranks."""
    counts = [np.bincount(column) for column in places.T]
    means = [each.cumsum() - (each - 1) / 2 for each in counts]
    return np.stack([of_one[column] for of_one, column in zip(means, places.T, strict=True)], axis=1)


def _correlation_intervals(predicted: _Numbers, targets: _Numbers) -> dict[str, ScoreInterval | None]:
    """Returns the bootstrap intervals of the correlations; for very many values, from fewer draws or none."""
    ranks = _places(predicted), _places(targets)

    def correlations(drawn: NDArray[np.int64]) -> tuple[float, float]:
        by_rank = _correlation(*(_ranks(each[drawn]) for each in ranks))
        return _mean(_correlation(predicted[drawn], targets[drawn])), _mean(by_rank)

    draws = min(RESAMPLES, _MOST_DRAWN // targets.size)
    found = bootstrap_intervals(correlations, len(targets), 2, draws if draws >= _LEAST_DRAWS else 0)
    return dict(zip(("Pearson", "Spearman"), found, strict=True))


def _scaled(values: _Numbers) -> tuple[_Numbers, NDArray[np.int32]]:
    """Divides each column by a power of two, which is exact, so that no sum and no square overflows.

    Returns:
        float64, samples × k, within ±2; and int32, k: the exponents of the powers.
    """
    exponents: NDArray[np.int32] = np.frexp(np.abs(values).max(axis=0))[1] - 1
    return values / np.ldexp(1.0, exponents), exponents


def _mean(each: _Numbers) -> float:
    """Returns the mean of the defined values; NaN if there are none, and -inf if any of them is -inf."""
    defined = each[~np.isnan(each)]
    return float((defined / len(defined)).sum()) if len(defined) else np.nan


RECALL_RANKS = (1, 5, 10)
"""The numbers of neighbours for which the recall is computed."""
_BLOCK_ELEMENTS = 2**21
"""The maximum number of similarities in memory at once: 16 MiB of float64."""
_DECIMALS = 6
"""Similarities are rounded, so that equal vectors tie regardless of the order of summation."""


class EmbeddingMetric(TaskMetric):
    """Cosine similarity to reference vectors, recall at 1, 5 and 10, MRR and mAP of retrieval.

    The similarity is the mean over the samples with a ``TargetValues``. The recall at k is the share of the
    labelled samples that have one of their own label among their k nearest neighbours by cosine, where the
    neighbours are the other labelled samples of the evaluation (Jégou et al., "Product Quantization for
    Nearest Neighbor Search", 2011; by class as in Oh Song et al., "Deep Metric Learning via Lifted Structured
    Feature Embedding", 2016). A sample with a unique label is a neighbour, but not a query. Of
    neighbours with the same similarity, to six decimals, the one that was added first is nearer. MRR is the
    mean reciprocal rank of the nearest neighbour with the same label. mAP is the mean over the queries of the
    average precision over all neighbours, where those with the same similarity count together; see
    ``Ranking``.

    A vector of zeros has no direction, and is not accepted as a prediction.
    """

    task: ClassVar[str] = "embedding"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._similarities: list[float] = []
        self._vectors: list[NDArray[np.floating[Any]]] = []
        self._labels: list[str] = []
        self._samples = 0

    def check(self, sample: Sample) -> None:
        """Checks that a truth that is in memory is a vector; see ``TaskMetric``."""
        if sample.truth is not None and not callable(sample.truth):
            _reference(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        if not isinstance(prediction, Values) or len(prediction) != 1:
            raise PredictionError("its prediction is not one embedding")
        vector = prediction.values[0]
        direction = _direction(vector)
        if direction is None:
            raise PredictionError("its embedding has no direction: it is zeros, or not finite")
        reference = _reference(sample)
        if reference is None and sample.label is None:
            return
        if reference is not None and len(reference) != len(vector):
            raise DatasetError(f"its reference has {len(reference)} values; the model gives {len(vector)}")
        if self._vectors and len(self._vectors[0]) != len(vector):
            raise PredictionError(
                f"its embedding has {len(vector)} values; others have {len(self._vectors[0])}"
            )
        self._samples += 1
        if reference is not None:
            self._similarities.append(float(direction @ reference))
        if sample.label is not None:
            self._vectors.append(direction.astype(vector.dtype))
            self._labels.append(sample.label)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no sample with a reference or a label was predicted."""
        if not self._samples:
            return None
        details: Mapping[str, Any] = {}
        similarities = np.asarray(self._similarities, np.float64)
        scores = [mean_score("cosine similarity", similarities, least=-1.0, most=1.0)]
        ranks, precisions = np.empty(0, np.int64), np.empty(0)
        if self._labels:
            ranks, precisions = _retrieved(np.stack(self._vectors), self._labels)
            details = {"labelled_samples": len(self._labels), "queries": len(ranks)}
        scores += [share_score(f"recall@{k}", ranks < k) for k in RECALL_RANKS]
        scores.append(mean_score("MRR", 1 / (ranks + 1), least=0.0, most=1.0))
        scores.append(mean_score("mAP", precisions, least=0.0, most=1.0))
        if not len(similarities):
            scores.append(scores.pop(0))
        return TaskResult(
            self.task,
            "cosine similarity to the reference; recall@k, MRR and mAP among the other samples, by label",
            self._samples,
            scores,
            details,
        )


class Ranking:
    """The ranking of items by their scores, some of which are relevant.

    Args:
        scores: float64, items.
        relevant: bool, items.
    """

    def __init__(self, scores: _Numbers, relevant: NDArray[np.bool_]) -> None:
        hits = np.flatnonzero(relevant)
        self._hits = hits[np.argsort(scores[hits])]
        ordered = scores[self._hits]
        self._passed = np.searchsorted(ordered, scores, side="right")
        """How many of the relevant items each item scores at least as much as."""
        self._first = np.searchsorted(ordered, ordered, side="left")

    def average_precision(self, weights: _Numbers | None = None) -> float:
        """Returns the mean precision at the relevant items, as in scikit-learn; 0 if there are none.

        Items with equal scores are retrieved together.

        Args:
            weights: How often each item counts, float64; None means once.
        """
        above = np.bincount(self._passed, weights, len(self._hits) + 1)[:0:-1].cumsum()[::-1]
        own = np.ones(len(self._hits)) if weights is None else weights[self._hits]
        right, total = own[::-1].cumsum()[::-1][self._first], own.sum()
        shares = np.divide(right, above, out=np.zeros(len(right)), where=above > 0)
        return float(own @ shares / total) if total else 0.0


def _retrieved(
    vectors: NDArray[np.floating[Any]], labels: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns for each query how many neighbours are nearer than the nearest with its label, and its AP.

    Memory is bounded: similarities are computed in blocks of samples.

    Args:
        vectors: float32 or float64, samples × k, each of length 1.
        labels: One for each sample.

    Returns:
        int64 and float64: a rank, from 0, and an average precision for each sample that shares its label with
        another one, in sample order.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    classes = np.asarray([numbers[label] for label in labels], np.int64)
    asked = np.flatnonzero(np.bincount(classes)[classes] > 1)
    double = vectors.astype(np.float64)
    ranks, precisions = np.empty(len(asked), np.int64), np.empty(len(asked))
    rows = max(1, _BLOCK_ELEMENTS // len(labels))
    for start in range(0, len(asked), rows):
        block = asked[start : start + rows]
        similarities = np.round(double[block] @ double.T, _DECIMALS)
        similarities[np.arange(len(block)), block] = -np.inf
        same = classes[block, np.newaxis] == classes
        nearest = np.where(same, similarities, -np.inf).argmax(axis=1)
        best = similarities[np.arange(len(block)), nearest, np.newaxis]
        before = np.arange(len(labels)) < nearest[:, np.newaxis]
        ranks[start : start + rows] = ((similarities > best) | ((similarities == best) & before)).sum(axis=1)
        same[np.arange(len(block)), block] = False
        precisions[start : start + rows] = [
            Ranking(*each).average_precision() for each in zip(similarities, same, strict=True)
        ]
    return ranks, precisions


def _direction(vector: NDArray[Any]) -> NDArray[np.float64] | None:
    """Returns a vector of length 1, float64, k; None if it is all zeros or not finite."""
    largest = float(np.abs(vector).max()) if vector.size else 0.0
    if not largest or not np.isfinite(largest):
        return None
    exponent = np.frexp(largest)[1] - 1  # exact, and no square overflows
    scaled = vector.astype(np.float64) / np.ldexp(1.0, exponent)
    direction: NDArray[np.float64] = scaled / np.linalg.norm(scaled)
    return direction


def _reference(sample: Sample) -> NDArray[np.float64] | None:
    """Returns the direction of a sample's reference vector; None if it has none."""
    missing = f"input {sample.id}: has no reference vector, which embeddings are scored by"
    if (truth := truth_of(sample, TargetValues, missing)) is None:
        return None
    direction = _direction(truth.values) if truth.values.ndim == 1 else None
    if direction is None:
        raise DatasetError(
            f"input {sample.id}: its reference is not a vector of finite numbers with a direction"
        )
    return direction


class MultilabelMetric(TaskMetric):
    """Mean average precision, F1, subset accuracy and Hamming loss of inputs with any number of classes.

    All are those of scikit-learn, over all of the model's classes: a class that no input has counts with an
    average precision of 0, and one that is neither true nor predicted with an F1 of 0. A class is predicted
    if its probability is at least ``label_threshold``.

    The truth consists of names, of the classes of the objects in an image, or of a 0 or 1 for each class. A
    class is matched by the rules of ``ClassIndex``; a whole number that no label has is the index of a class.
    """

    task: ClassVar[str] = "multilabel_classification"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._labels = manifest.output.parameters.labels
        self._index = ClassIndex(self._labels)
        self._threshold = manifest.output.parameters.label_threshold
        self._probabilities: list[NDArray[np.floating[Any]]] = []
        self._true: list[NDArray[np.bool_]] = []

    def check(self, sample: Sample) -> None:
        """Checks that the model has the classes of a truth that is in memory; see ``TaskMetric``."""
        if not callable(sample.truth):
            self._classes_of(sample)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        if not isinstance(prediction, Classifications) or len(prediction) != 1:
            raise PredictionError("its prediction is not a classification of one input")
        [indices], [given] = prediction.indices, prediction.probabilities
        classes = len(self._probabilities[0]) if self._probabilities else len(self._labels) or len(indices)
        if not np.array_equal(np.sort(indices), np.arange(classes)):
            raise PredictionError(f"its prediction does not have the probabilities of all {classes} classes")
        if (found := self._classes_of(sample)) is None:
            return
        if any(place >= classes for place in found):
            raise DatasetError(f"its class {max(found)} is none of the model's {classes} classes")
        probabilities, true = np.empty_like(given), np.zeros(classes, np.bool_)
        probabilities[indices], true[list(found)] = given, True
        self._probabilities.append(probabilities)
        self._true.append(true)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no input with classes was predicted."""
        if not self._true:
            return None
        true, probabilities = np.stack(self._true), np.stack(self._probabilities)
        predicted = probabilities >= self._threshold
        counts = ClassCounts(*(each.sum(axis=0) for each in (true & predicted, true, predicted)))
        each = ClassCounts.of_each(true, predicted) if true.size <= MOST_DRAWN_COUNTS else None
        rankings = [Ranking(*of_class) for of_class in zip(probabilities.T, true.T, strict=True)]
        precisions = np.array([ranking.average_precision() for ranking in rankings])
        part, whole = (2.0 * (true & predicted)).sum(axis=1), (true.sum(axis=1) + predicted.sum(axis=1))
        micro = float(part.sum() / whole.sum()) if whole.any() else 0.0
        scores = [
            _mean_precision(rankings, precisions, len(true)),
            ratio_score("micro F1", micro, part[:, np.newaxis], whole[:, np.newaxis].astype(np.float64)),
            counts.macro_score("F1", each, name="macro F1"),
            share_score("subset accuracy", (true == predicted).all(axis=1)),
            mean_score("Hamming loss", (true != predicted).mean(axis=1), least=0.0, most=1.0),
        ]
        details = {
            "labels": list(self._labels) or [str(place) for place in range(len(rankings))],
            **counts.details(),
            "AP": precisions.tolist(),
        }
        definition = f"mAP; F1, subset accuracy and Hamming loss from {self._threshold:g} on, version 1"
        return TaskResult(self.task, definition, len(true), scores, {"per_class": details})

    def _classes_of(self, sample: Sample) -> set[int] | None:
        """Returns the indices of the right classes; None if the sample has no truth."""
        truth = sample.read_truth()
        if isinstance(truth, ClassNames | Objects):
            names = truth.names if isinstance(truth, ClassNames) else truth.classes
            return {self._index.find_or_index(name) for name in names}
        if isinstance(truth, TargetValues) and np.isin(truth.values, (0, 1)).all():
            places = np.flatnonzero(truth.values).tolist()
            if truth.names:
                return {self._index.find_or_index(truth.names[place]) for place in places}
            return set(places)
        if truth is None:
            index = self._index.of(sample)
            return None if index is None else {index}
        raise DatasetError(f"input {sample.id}: has no list of labels, which {self.task} is scored against")


def _mean_precision(rankings: list[Ranking], precisions: _Numbers, samples: int) -> Score:
    """Returns the mean of average precisions with its bootstrap interval; see ``_MOST_DRAWN``."""
    value, draws = float(precisions.mean()), min(RESAMPLES, _MOST_DRAWN // (samples * len(rankings)))

    def drawn(places: NDArray[np.int64]) -> tuple[float]:
        weights = np.bincount(places, minlength=samples).astype(np.float64)
        return (float(np.mean([ranking.average_precision(weights) for ranking in rankings])),)

    [interval] = bootstrap_intervals(drawn, samples, 1, draws if draws >= _LEAST_DRAWS else 0, (value,))
    return score_within("mAP", value, interval, least=0.0, most=1.0)
