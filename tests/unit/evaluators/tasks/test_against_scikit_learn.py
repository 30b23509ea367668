"""Scores of random cases, with ties and absent classes, against scikit-learn and SciPy, run beside."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.agent.tasks.predictions import Classifications, Values
from inferometer.evaluators.datasets.base import ClassNames, Sample, TargetValues
from inferometer.evaluators.score_intervals import LEAST_SAMPLES, ScoreInterval
from inferometer.evaluators.tasks import vectors
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from tests.unit.evaluators.tasks.metric_cases import metric_of, sample_of, scored

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


def ranked(probabilities: NDArray[Any]) -> Classifications:
    """All classes of each input, the most probable first, as postprocessing ranks them."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    return Classifications(order, np.take_along_axis(probabilities, order, axis=1))


def class_error(right: NDArray[Any], probability: NDArray[Any]) -> float:
    """The calibration error of one class by scikit-learn's ``calibration_curve``."""
    shares, means = calibration_curve(right, probability, n_bins=15)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, 16)[1:-1], probability))
    return float((np.abs(shares - means) * counts[counts > 0]).sum() / len(right))


@pytest.mark.parametrize("task", ["classification", "text_classification"])
@pytest.mark.parametrize("seed", CASES)
def test_classification(seed: int, task: str) -> None:
    random = np.random.default_rng(seed)
    samples, classes = int(random.integers(1, 60)), int(random.integers(2, 7))
    names = [f"c{place}" for place in range(classes)]
    probabilities = random.dirichlet(np.full(classes, 0.3), samples)
    probabilities[random.random(samples) < 0.1] = np.eye(classes)[0]  # certain, and often wrong
    if seed % 2:
        probabilities = probabilities.astype(np.float32)
    true = random.integers(0, classes, samples)  # some classes are in neither, or in one only
    metric, found = metric_of(task, labels=names), ranked(probabilities)
    inputs = [labelled(place, names[index]) for place, index in enumerate(true)]
    assert not metric.add_batch(inputs, found)
    result, predicted = result_of(metric), probabilities.argmax(axis=1)

    assert result.scores[0].value == pytest.approx(reference.accuracy_score(true, predicted))
    everything = {"labels": range(classes)}
    loss = reference.log_loss(true, probabilities, **everything)
    assert result.score("log loss") == pytest.approx(loss, rel=1e-5)
    brier = reference.brier_score_loss(
        true, probabilities if classes > 2 else probabilities[:, 1], **everything
    )
    assert result.score("Brier") == pytest.approx(brier, rel=1e-5, abs=1e-7)
    precision, recall, f1, count = reference.precision_recall_fscore_support(true, predicted)
    each, present = result.details["per_class"], np.union1d(true, predicted)
    assert [result.score(name) for name in ("precision", "recall", "F1")] == pytest.approx(
        [precision.mean(), recall.mean(), f1.mean()]
    )
    assert each["labels"] == [names[place] for place in present]
    assert each["precision"] == pytest.approx(precision)
    assert each["recall"] == pytest.approx(recall)
    assert each["F1"] == pytest.approx(f1)
    assert each["true"] == count.tolist()
    assert each["ECE"] == pytest.approx(
        [class_error(true == place, probabilities[:, place]) for place in present], abs=1e-6
    )
    matrix = result.details["confusion_matrix"]
    assert matrix["labels"] == names
    assert matrix["rows"] == reference.confusion_matrix(true, predicted, **everything).tolist()


@pytest.mark.parametrize("kept", [2, 3])
def test_without_all_probabilities_there_is_no_loss(kept: int) -> None:
    metric, found = metric_of("text_classification", labels=["a", "b", "c"]), ranked(np.eye(3) * 0.4 + 0.2)
    metric.add_batch(
        [labelled(place, "a") for place in range(3)], Classifications(found.indices, found.probabilities)
    )
    few = Classifications(found.indices[:, :kept], found.probabilities[:, :kept])
    metric.add_batch([labelled(place, "b") for place in range(3)], few)
    result = result_of(metric)
    assert result.score("ECE") is not None
    assert (result.score("Brier") is None) is (kept < 3)
    assert ("ECE" in result.details["per_class"]) is (kept == 3)


def test_outputs_that_no_label_has_leave_the_loss_undefined() -> None:
    metric = metric_of("classification", labels=["a", "b"], probabilities_transform="softmax")
    found = ranked(np.array([[0.3, 0.2, 0.5]]))
    best = Classifications(found.indices[:, :2], found.probabilities[:, :2])  # of three, the last and a
    metric.add_batch([labelled(0, "a")], best)
    result = result_of(metric)
    assert result.score("ECE") == pytest.approx(0.5)
    assert result.score("log loss") is None


def test_a_class_without_an_index_is_wrong_and_not_in_the_matrix() -> None:
    metric = metric_of("classification", labels=["a", "b"])
    metric.add_batch([labelled(0, "a")], Classifications(np.array([[-1, 0]]), np.array([[0.9, 0.1]])))
    result = result_of(metric)
    assert (result.scores[0].value, "confusion_matrix" in result.details) == (0.0, False)


def test_a_hundred_classes_have_a_matrix_and_more_only_figures() -> None:
    for classes in (100, 101):
        metric = metric_of("classification", labels=[f"c{place}" for place in range(classes)])
        metric.add_batch([labelled(place, "c7") for place in range(3)], ranked(np.eye(classes)[:3]))
        details = result_of(metric).details
        assert details["per_class"]["labels"] == ["c0", "c1", "c2", "c7"]
        assert ("confusion_matrix" in details) is (classes == 100)


def test_macro_scores_have_intervals_from_pairs_that_occur_often() -> None:
    random = np.random.default_rng(3)
    true = random.integers(0, 3, 4 * LEAST_SAMPLES)
    metric = metric_of("classification", labels=["a", "b", "c", "never right", "never"])
    probabilities = random.dirichlet(np.ones(5), len(true)) * (1, 1, 1, 0.5, 0)
    probabilities[np.arange(len(true)), true] += 0.3
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    metric.add_batch(
        [labelled(place, "abc"[index]) for place, index in enumerate(true)], ranked(probabilities)
    )
    result = result_of(metric)
    for name in ("log loss", "Brier", "F1", "precision", "recall"):
        [found] = [each for each in result.scores if each.name == name]
        assert found.interval is not None
        assert found.value is not None
        assert found.interval.low < found.value < found.interval.high < 1.1 * found.value


@pytest.mark.parametrize("seed", CASES)
def test_multilabel_classification(seed: int) -> None:
    random = np.random.default_rng(seed)
    samples, classes = int(random.integers(1, 40)), int(random.integers(1, 6))
    true = random.random((samples, classes)) < random.random(classes) * 0.8  # some classes are absent
    probabilities = np.round(random.random((samples, classes)), int(random.integers(1, 4)))  # with ties
    if seed % 20 == 0:  # nothing is right, and nothing predicted
        true[:], probabilities = False, probabilities / 3
    names = tuple(f"c{place}" for place in range(classes))
    metric, rows = metric_of("multilabel_classification", labels=names), ranked(probabilities)
    for place, row in enumerate(true):
        # as names, as an indicator of each class, or of each class by name in another order
        truth: Any = ClassNames(tuple(name for name, there in zip(names, row, strict=True) if there))
        if place % 3:
            truth = (
                TargetValues(row.astype(float))
                if place % 3 == 1
                else TargetValues(row[::-1] * 1.0, names[::-1])
            )
        metric.check(sample_of(truth))
        metric.add(sample_of(truth), rows.row(place))
    result, predicted = result_of(metric), probabilities >= 0.5
    wanted = {
        "mAP": reference.average_precision_score(true, probabilities, average="macro"),
        "micro F1": reference.f1_score(true, predicted, average="micro") if classes > 1 else None,
        "macro F1": reference.f1_score(true, predicted, average="macro") if classes > 1 else None,
        "subset accuracy": reference.accuracy_score(true, predicted),
        "Hamming loss": reference.hamming_loss(true, predicted),
    }
    for name, value in wanted.items():
        assert value is None or result.score(name) == pytest.approx(value), name
    precision, recall, f1, count = reference.precision_recall_fscore_support(
        np.column_stack([true, true]), np.column_stack([predicted, predicted])
    )
    each = result.details["per_class"]
    for name, values in (("precision", precision), ("recall", recall), ("F1", f1), ("true", count)):
        assert each[name] == pytest.approx(values[:classes]), name


@pytest.mark.parametrize("seed", CASES)
def test_the_precision_of_drawn_inputs_is_that_of_each_as_often(seed: int) -> None:
    random = np.random.default_rng(seed)
    samples = int(random.integers(1, 40))
    scores, relevant = np.round(random.random(samples), 1), random.random(samples) < 0.4
    times = random.integers(0, 4, samples)
    found = vectors.Ranking(scores, relevant).average_precision(times.astype(float))
    drawn = relevant.repeat(times), scores.repeat(times)
    assert found == pytest.approx(reference.average_precision_score(*drawn) if len(drawn[0]) else 0.0)


def test_several_labels_have_intervals_and_wrong_ones_are_refused() -> None:
    random = np.random.default_rng(1)
    true = random.random((LEAST_SAMPLES, 3)) < 0.4
    probabilities = np.clip(true * 0.4 + random.random(true.shape) * 0.6, 0, 1)
    metric, rows = metric_of("multilabel_classification", labels=["a", "b", "c"]), ranked(probabilities)
    for place, row in enumerate(true):
        metric.add(sample_of(TargetValues(row * 1.0)), rows.row(place))
    for score in result_of(metric).scores:
        assert score.interval is not None
        assert score.value is not None
        assert score.interval.low < score.value < score.interval.high
    for truth, message in (
        (ClassNames(("d",)), 'class "d" is none of the 3 classes'),
        (TargetValues(np.array([1.0, 0, 0, 1])), "its class 3 is none of the model's 3 classes"),
        (TargetValues(np.array([0.5, 0, 0])), "has no list of labels"),
    ):
        with pytest.raises(DatasetError, match=message):
            metric.add(sample_of(truth), rows.row(0))
    with pytest.raises(PredictionError, match="does not have the probabilities of all 3 classes"):
        metric.add(
            sample_of(ClassNames(())), Classifications(np.array([[0, 1]]), np.ones((1, 2), np.float32))
        )
    metric.add(labelled(0, "b"), rows.row(0))
    assert result_of(metric).samples == LEAST_SAMPLES + 1


def interval_of(result: TaskResult, name: str) -> ScoreInterval | None:
    return next(each.interval for each in result.scores if each.name == name)


@pytest.mark.parametrize(("draws", "shown"), [(200, True), (199, False)])
def test_very_many_values_have_no_bootstrap_interval(
    draws: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "_MOST_DRAWN", draws * LEAST_SAMPLES * 2)
    monkeypatch.setattr(vectors, "MOST_DRAWN_COUNTS", 2 * LEAST_SAMPLES - (not shown))
    random = np.random.default_rng(0)
    values = random.random((LEAST_SAMPLES, 2))
    true, rows = values + random.normal(size=values.shape) > 0.5, ranked(values)
    numbers, labels = metric_of("regression"), metric_of("multilabel_classification", labels=["a", "b"])
    for place, row in enumerate(true):
        numbers.add(sample_of(TargetValues(row * 1.0)), Values(values[place][np.newaxis]))
        labels.add(sample_of(TargetValues(row * 1.0)), rows.row(place))
    of_numbers, of_labels = result_of(numbers), result_of(labels)
    for result, name in (
        *((of_numbers, name) for name in ("Pearson", "Spearman")),
        *((of_labels, name) for name in ("mAP", "macro F1")),
    ):
        assert (interval_of(result, name) is not None) is shown, name
    assert None not in (interval_of(of_numbers, "MAE"), interval_of(of_labels, "micro F1"))


def test_correlations_have_intervals_around_them_and_none_from_few() -> None:
    random = np.random.default_rng(0)
    targets = random.normal(size=(LEAST_SAMPLES, 2))
    predicted = (targets + random.normal(size=targets.shape)) ** 5  # which changes no rank
    pairs = [(TargetValues(t), Values(p[None])) for t, p in zip(targets, predicted, strict=True)]
    for name in ("Pearson", "Spearman", "MAPE"):
        few, many = (scored(metric_of("regression"), *chosen) for chosen in (pairs[1:], pairs))
        interval, value = interval_of(many, name), many.score(name)
        assert interval is not None
        assert value is not None
        assert interval.low < value < interval.high
        assert all(each.interval is None for each in few.scores)


@pytest.mark.parametrize("sides", [1, -1])
def test_a_correlation_with_a_constant_is_undefined_also_where_its_mean_is_rounded(sides: int) -> None:
    pairs = [(0.1, 1.0), (0.1, 2.0), (0.1, 3.0)]
    given = [(TargetValues(np.array([a])), Values(np.array([[b]]))) for a, b in (e[::sides] for e in pairs)]
    result = scored(metric_of("regression"), *given)
    assert (result.score("Pearson"), result.score("Spearman")) == (None, None)


def test_a_target_of_zero_is_infinitely_far_only_beyond_float64() -> None:
    def mape(target: float, predicted: float) -> float | None:
        truth = TargetValues(np.array([target]))
        return scored(metric_of("regression"), (truth, Values(np.array([[predicted]])))).score("MAPE")

    assert mape(0.0, 1.0) == pytest.approx(1 / np.finfo(np.float64).eps)
    assert mape(0.0, 1e300) is None
