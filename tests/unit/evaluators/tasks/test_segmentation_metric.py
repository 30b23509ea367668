"""Intersection over union is counted over the dataset, by the classes that occur."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import metric_of, sample_of, scored
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import NO_CLASS, UNSEEN, ClassMaps, Values
from inferometer.evaluators.datasets.base import (
    IGNORED_CLASS,
    ClassMap,
    Objects,
    TargetValues,
    UnreadClassMap,
)
from inferometer.evaluators.tasks import images as semantic_segmentation
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError

TASK = "semantic_segmentation"


def truth_of(numbers: Any, *classes: str) -> ClassMap:
    return ClassMap(np.atleast_2d(np.asarray(numbers, np.int32)), classes)


def map_of(numbers: Any) -> ClassMaps:
    pixels = np.atleast_2d(np.asarray(numbers, np.int32))
    return ClassMaps(np.array([pixels.shape], np.int64), pixels.ravel())


def result_of(*pairs: tuple[Any, Any], classes: tuple[str, ...] = (), **parameters: Any) -> TaskResult:
    pairs_of_maps = [(truth_of(true, *classes), map_of(found)) for true, found in pairs]
    return scored(metric_of(TASK, **parameters), *pairs_of_maps)


def test_the_mean_is_over_the_dataset_and_not_over_images() -> None:
    result = result_of(([0, 0, 1, 1], [0, 0, 1, 1]), ([0, 2, 2, 1], [0, 2, 2, 2]))
    assert result.score("mean_IoU") == pytest.approx(7 / 9)
    assert round(result.score("mean_IoU") or 0, 4) == 0.7778
    assert result.score("pixel_accuracy") == 7 / 8
    assert result.score("classes") == 3
    assert result.samples == 2
    assert result.details["class_iou"] == pytest.approx([1, 2 / 3, 2 / 3])
    assert result.details["confusion_matrix"] == [[3, 0, 0, 0], [0, 2, 1, 0], [0, 0, 2, 0]]
    assert "confusion matrix" in result.definition
    json.dumps(result.details, allow_nan=False)


def test_a_class_that_occurs_nowhere_is_left_out_and_one_that_is_only_predicted_is_not() -> None:
    result = result_of(([0, 0, 0, 0], [0, 0, 0, 3]), labels=["a", "b", "c", "d", "e"])
    assert result.details["class_iou"] == [0.75, None, None, 0.0, None]
    assert result.score("mean_IoU") == 0.375
    assert result.score("classes") == 2


def test_ignored_and_unseen_pixels_do_not_count() -> None:
    result = result_of(([0, 1, IGNORED_CLASS, 1], [0, UNSEEN, 1, 1]))
    assert (result.score("mean_IoU"), result.score("pixel_accuracy")) == (1, 1)
    assert result.score("ignored") == 0.25
    assert result.score("unseen") == pytest.approx(1 / 3)
    assert result.details["counted_pixels"] == 2


def test_a_pixel_of_no_class_misses_the_true_one_and_is_taken_for_no_other() -> None:
    result = result_of(([0, 0, 1, 1], [0, NO_CLASS, 1, 1]), labels=["a", "b"])
    assert result.details["class_iou"] == [0.5, 1.0]
    assert result.details["confusion_matrix"] == [[1, 0, 1], [0, 2, 0]]


def test_a_map_that_is_ignored_as_a_whole_has_no_scores() -> None:
    result = result_of(([IGNORED_CLASS] * 4, [0] * 4))
    assert (result.score("mean_IoU"), result.score("pixel_accuracy")) == (None, None)
    assert (result.samples, result.score("classes")) == (1, 0)


def test_nothing_predicted_is_no_result() -> None:
    metric = metric_of(TASK)
    assert metric.result() is None
    metric.add(sample_of(None), map_of([0]))
    assert metric.result() is None


def test_classes_are_matched_by_name_and_others_of_the_model_are_errors() -> None:
    result = result_of(
        ([0, 0, 1, 1], [2, 0, 1, 1]), classes=("Cat", "dog"), labels=["sky", "dog", "cat", "sea"]
    )
    assert result.details["classes"] == ["Cat", "dog"]
    assert result.details["confusion_matrix"] == [[1, 0, 1], [0, 2, 0]]
    assert result.details["class_iou"] == [0.5, 1.0]


def test_a_model_without_labels_has_the_numbers_of_the_dataset() -> None:
    result = result_of(([0, 0, 1, 1], [0, 5, 1, 1]), classes=("cat", "dog"))
    assert result.details["confusion_matrix"] == [[1, 0, 1], [0, 2, 0]]


def test_what_the_model_lacks_is_said_before_it_runs() -> None:
    def unread() -> ClassMap:
        raise AssertionError("no map is read before the model runs")

    metric = metric_of(TASK, labels=["cat", "dog"])
    with pytest.raises(DatasetError, match='class "bird" is none of the 2 classes of the model'):
        metric.check(sample_of(UnreadClassMap(unread, ("cat", "bird"))))


def test_two_classes_of_the_dataset_may_not_be_one_of_the_model() -> None:
    with pytest.raises(DatasetError, match='"cat" and "CAT" match one label of the model'):
        metric_of(TASK, labels=["Cat"]).check(sample_of(truth_of([0], "cat", "CAT")))


def failed(metric: TaskMetric, truth: Any, prediction: Any) -> str:
    with pytest.raises((DatasetError, PredictionError)) as caught:
        metric.add(sample_of(truth), prediction)
    assert len(str(caught.value).splitlines()) == 1
    return f"{type(caught.value).__name__} {caught.value}"


@pytest.mark.parametrize(
    ("truth", "prediction", "said"),
    [
        (truth_of([0, 1]), map_of([[0], [1]]), "PredictionError the predicted map has 1 × 2 pixels, "),
        (truth_of([0, 3]), map_of([0, 1]), "DatasetError the mask has the class 3; the model has 2"),
        (truth_of([0, -7]), map_of([0, 1]), "DatasetError the mask has the class -7"),
        (truth_of([0, 1]), map_of([0, 2]), "PredictionError class 2 was predicted, which the model"),
        (truth_of([0, 1]), map_of([0, -3]), "PredictionError class -3 was predicted"),
        (TargetValues(np.zeros(1)), map_of([0, 1]), "DatasetError has no class map"),
        (truth_of([0]), Values(np.zeros((1, 1), np.float32)), "PredictionError the prediction is no"),
    ],
)
def test_what_cannot_be_counted_is_one_line_and_leaves_the_counts_as_they_were(
    truth: Any, prediction: Any, said: str
) -> None:
    metric = metric_of(TASK, labels=["a", "b"])
    metric.add(sample_of(truth_of([0, 1])), map_of([0, 1]))
    before = metric.result()
    assert failed(metric, truth, prediction).startswith(said)
    assert metric.result() == before


def test_without_any_names_there_are_as_many_classes_as_occur_within_a_bound() -> None:
    metric = metric_of(TASK)
    assert "at most 4096 classes" in failed(metric, truth_of([4096]), map_of([0]))
    assert "class 4096 was predicted" in failed(metric, truth_of([0]), map_of([4096]))
    metric.add(sample_of(truth_of([300])), map_of([NO_CLASS]))
    result = metric.result()
    assert result is not None
    assert "confusion_matrix" not in result.details
    assert len(result.details["class_iou"]) == 301


def naive(pairs: list[tuple[NDArray[np.int32], NDArray[np.int32]]]) -> tuple[float | None, float | None]:
    """Mean intersection over union and pixel accuracy, with sets of pixels."""
    true_sets: dict[int, set[tuple[int, int]]] = {}
    found_sets: dict[int, set[tuple[int, int]]] = {}
    for image, (true, found) in enumerate(pairs):
        for place, (a, b) in enumerate(zip(true.ravel().tolist(), found.ravel().tolist(), strict=True)):
            if a == IGNORED_CLASS or b == UNSEEN:
                continue
            true_sets.setdefault(a, set()).add((image, place))
            if b != NO_CLASS:
                found_sets.setdefault(b, set()).add((image, place))
    empty: set[tuple[int, int]] = set()
    both = [(true_sets.get(each, empty), found_sets.get(each, empty)) for each in {*true_sets, *found_sets}]
    total = sum(len(true) for true, _ in both)
    if not both:
        return None, None
    right = sum(len(true & found) for true, found in both)
    ious = [len(true & found) / len(true | found) for true, found in both]
    return float(np.mean(ious)), right / total


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
def test_the_scores_are_those_of_sets_of_pixels(seed: int, images: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 6, (images, 2))
    pairs = [
        (
            random.integers(-1, classes, size).astype(np.int32),
            random.integers(-2, classes, size).astype(np.int32),
        )
        for size in sizes
    ]
    result = result_of(*pairs)
    mean_iou, accuracy = naive(pairs)
    for name, expected in (("mean_IoU", mean_iou), ("pixel_accuracy", accuracy)):
        assert result.score(name) == (None if expected is None else pytest.approx(expected))


def test_the_interval_is_over_images_and_the_same_each_time() -> None:
    pairs = [([0, 0, 1, 1], [0, 0, 1, 1 - n % 2]) for n in range(200)]
    first, second = result_of(*pairs), result_of(*pairs)
    score = first.scores[0]
    assert score.interval is not None
    assert score.value is not None
    assert score.interval.low < score.value < score.interval.high
    assert second.scores[0] == score
    single = result_of(pairs[0]).scores[0]
    assert single.interval is None


def test_equal_images_have_no_interval() -> None:
    first, second, *_ = result_of(*[([0, 1, 1], [0, 0, 1])] * 200).scores
    assert (first.value, first.interval, second.interval) == (0.5, None, None)


def test_beyond_the_bound_of_memory_there_is_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantic_segmentation, "MOST_COUNTS", 200 * 3 * 2)
    most = [([0, 1], [0, 1]), ([0, 1], [0, 0])] * 100
    assert result_of(*most).scores[0].interval is not None
    more = result_of(*most, ([0, 1], [0, 0]))
    assert more.scores[0].interval is None
    assert more.score("mean_IoU") == pytest.approx((201 / 302 + 100 / 201) / 2)


def test_a_dataset_of_objects_is_refused_before_the_model_runs() -> None:
    objects = Objects(4, 4, np.zeros((1, 4)), ("cat",), np.zeros(1), np.zeros(1, np.bool_))
    with pytest.raises(DatasetError, match="has no class map, which semantic segmentation is scored"):
        metric_of(TASK, labels=["cat", "dog"]).check(sample_of(objects))
