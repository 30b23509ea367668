"""Accuracy and F1 of texts' classes, against scikit-learn and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from inferometer.agent.preprocessing.inputs import Text
from inferometer.agent.tasks.predictions import Classifications, Texts
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.tasks.classification import TextClassificationMetric
from inferometer.evaluators.tasks.metric import TaskResult
from inferometer.manifests.errors import ConfigurationError, DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

Make = Callable[..., ModelManifest]


def predicted(index: int) -> Classifications:
    return Classifications(np.array([[index]], np.int64), np.array([[0.9]], np.float32))


def text(number: int, label: str | None) -> Sample:
    return Sample(str(number), Text("words"), label)


def scored(manifest: ModelManifest, true: Sequence[str], found: Sequence[int]) -> TaskResult:
    metric = TextClassificationMetric(manifest)
    for number, (label, index) in enumerate(zip(true, found, strict=True)):
        metric.add(text(number, label), predicted(index))
    result = metric.result()
    assert result is not None
    return result


def test_accuracy_and_macro_f1_are_those_of_scikit_learn(model_with: Make) -> None:
    labels = ("a", "b", "c", "d", "e")  # of which e is in neither
    random = np.random.default_rng(4)
    true, found = random.integers(0, 4, 240), random.integers(0, 4, 240)
    result = scored(model_with(labels=labels), [labels[i] for i in true], found.tolist())
    assert result.score("accuracy") == pytest.approx(accuracy_score(true, found))
    assert result.score("F1") == pytest.approx(f1_score(true, found, average="macro"))
    assert result.samples == 240
    matrix = result.details["confusion_matrix"]
    assert matrix["labels"] == list(labels)
    assert matrix["rows"] == confusion_matrix(true, found, labels=range(5)).tolist()
    for score in result.scores[:4]:
        assert score.interval is not None
        assert score.value is not None
        assert score.interval.low < score.value < score.interval.high


def test_f1_of_two_labels_is_that_of_the_positive_one_if_it_is_named(model_with: Make) -> None:
    # tp 2, fp 1, fn 1 of "good": 4 / (4 + 1 + 1)
    true, found = ["good", "good", "good", "bad", "bad", "bad"], [1, 1, 0, 1, 0, 0]
    named = scored(model_with(labels=("bad", "good"), positive_label="good"), true, found)
    assert named.score("F1") == pytest.approx(4 / 6)
    assert "good" in named.definition
    # of "bad" it is tp 2, fp 1, fn 1 too; with one good text less, both differ
    macro = scored(model_with(labels=("bad", "good")), true[1:], found[1:])
    assert macro.score("F1") == pytest.approx((2 / 4 + 4 / 6) / 2)


def test_f1_is_not_defined_where_the_positive_class_is_nowhere(model_with: Make) -> None:
    result = scored(model_with(labels=("bad", "good"), positive_label="good"), ["bad", "bad"], [0, 0])
    assert result.score("accuracy") == 1
    assert result.score("F1") is None


@pytest.mark.parametrize("labels", [("bad", "good"), ("bad", "fair", "good")])
def test_a_positive_label_is_one_of_two(model_with: Make, labels: tuple[str, ...]) -> None:
    name = "great" if len(labels) == 2 else "good"
    with pytest.raises(ConfigurationError, match=f'positive_label: found "{name}"; allowed: one of two'):
        TextClassificationMetric(model_with(labels=labels, positive_label=name))


def test_a_whole_number_is_an_index_only_where_no_label_is_a_number(model_with: Make) -> None:
    assert scored(model_with(labels=("bad", "good")), ["0", "1"], [0, 1]).score("accuracy") == 1
    stars = model_with(labels=("1", "2", "3"))
    assert scored(stars, ["1", "3"], [0, 2]).score("accuracy") == 1
    with pytest.raises(DatasetError, match="class 2 is no index of the model's 2 classes"):
        TextClassificationMetric(model_with(labels=("bad", "good"))).check(text(1, "2"))


def test_what_cannot_be_scored_is_named(model_with: Make) -> None:
    metric = TextClassificationMetric(model_with(labels=("bad", "good")))
    with pytest.raises(DatasetError, match='class "ugly" is none of the 2 classes of the model'):
        metric.check(text(1, "ugly"))
    with pytest.raises(PredictionError, match="its prediction is not a classification"):
        metric.add(text(3, "bad"), Texts.of(["bad"]))
    metric.add(text(4, None), predicted(0))
    assert metric.result() is None
