"""Scores of random cases, with ties and absent classes, against scikit-learn and SciPy, run beside."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.agent.tasks.predictions import Values
from inferometer.evaluators.datasets.base import Sample, TargetValues
from inferometer.evaluators.intervals import LEAST_SAMPLES
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult
from tests.unit.evaluators.tasks.metric_cases import metric_of, scored

CASES = range(200)


def labelled(number: int, label: str) -> Sample:
    return Sample(str(number), Tensor(np.zeros(1)), label)


def result_of(metric: TaskMetric) -> TaskResult:
    result = metric.result()
    assert result is not None
    return result


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The references warn about constants, zero divisions and absent classes, as the cases have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("seed", CASES)
def test_regression(seed: int) -> None:
    random = np.random.default_rng(seed)
    samples, k = random.integers(2, 30), random.integers(1, 4)
    targets = random.integers(-3, 4, (samples, k)) / 2  # with ties, zeros and, now and then, a constant
    predicted = np.round(targets + random.normal(size=targets.shape), int(random.integers(0, 3)))
    result = scored(
        metric_of("regression"),
        *((TargetValues(t), Values(p[None])) for t, p in zip(targets, predicted, strict=True)),
    )
    assert result.score("MAPE") == pytest.approx(reference.mean_absolute_percentage_error(targets, predicted))
    for name, correlation in (("Pearson", stats.pearsonr), ("Spearman", stats.spearmanr)):
        each = np.array([correlation(p, t).statistic for p, t in zip(predicted.T, targets.T, strict=True)])
        assert result.details["scores"][name] == pytest.approx(
            [None if np.isnan(value) else value for value in each], abs=1e-12
        )
        mean = np.nanmean(each)
        assert result.score(name) == (None if np.isnan(mean) else pytest.approx(mean, abs=1e-12))


@pytest.mark.parametrize("seed", CASES)
def test_retrieval(seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-2, 3, (int(random.integers(3, 40)), int(random.integers(2, 5)))) + 0.5
    labels = random.integers(0, 5, len(vectors))
    metric = metric_of("embedding")
    for number, (vector, label) in enumerate(zip(vectors, labels, strict=True)):
        metric.add(labelled(number, str(label)), Values(vector[None]))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = np.round(unit @ unit.T, 6)
    precisions, reciprocals = [], []
    for place in range(len(vectors)):
        others = np.arange(len(vectors)) != place
        relevant, near = labels[others] == labels[place], similarities[place, others]
        if not relevant.any():
            continue
        precisions.append(reference.average_precision_score(relevant, near))
        # of the neighbours, the nearest relevant one counts; of equal ones, the first is nearer
        ordered = -np.argsort(np.argsort(-near, kind="stable"), kind="stable").astype(float)
        first = np.arange(len(near)) == np.flatnonzero(relevant)[ordered[relevant].argmax()]
        reciprocals.append(reference.label_ranking_average_precision_score([first], [ordered]))
    result = result_of(metric)
    assert result.score("mAP") == (pytest.approx(np.mean(precisions)) if precisions else None)
    assert result.score("MRR") == (pytest.approx(np.mean(reciprocals)) if reciprocals else None)


def test_correlations_have_intervals_around_them_and_none_from_few_or_too_many() -> None:
    random = np.random.default_rng(0)
    targets = random.normal(size=(LEAST_SAMPLES, 2))
    predicted = targets + random.normal(size=targets.shape)
    pairs = [(TargetValues(t), Values(p[None])) for t, p in zip(targets, predicted, strict=True)]
    for name in ("Pearson", "Spearman", "MAPE"):
        few, many = (scored(metric_of("regression"), *chosen) for chosen in (pairs[1:], pairs))
        [found] = [each for each in many.scores if each.name == name]
        assert found.interval is not None
        assert found.value is not None
        assert found.interval.low < found.value < found.interval.high
        assert all(each.interval is None for each in few.scores)


def test_a_target_of_zero_is_infinitely_far_only_beyond_float64() -> None:
    def mape(target: float, predicted: float) -> float | None:
        truth = TargetValues(np.array([target]))
        return scored(metric_of("regression"), (truth, Values(np.array([[predicted]])))).score("MAPE")

    assert mape(0.0, 1.0) == pytest.approx(1 / np.finfo(np.float64).eps)
    assert mape(0.0, 1e300) is None
