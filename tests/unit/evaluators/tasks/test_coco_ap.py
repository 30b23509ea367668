"""COCO's AP on cases computed by hand, from the outputs of a model to the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from objects import FULL_SIZE, detector, instance_segmenter, objects, sample

from inferometer.agent.tasks.objects import DetectionPostprocessor
from inferometer.agent.tasks.predictions import PredictedInputs, Values
from inferometer.evaluators.datasets.base import Objects, Sample, TargetValues
from inferometer.evaluators.tasks import average_precision
from inferometer.evaluators.tasks.images import DetectionMetric
from inferometer.evaluators.tasks.metric import METRICS, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError

Box = tuple[float, float, float, float]
Found = tuple[Box, float, int]
"""A box as xyxy in pixels, its score and its class."""
A, B = (10.0, 10.0, 60.0, 60.0), (100.0, 100.0, 160.0, 160.0)
ELSEWHERE = (200.0, 200.0, 250.0, 250.0)


def outputs(found: Sequence[Sequence[Found]]) -> dict[str, NDArray[np.float32]]:
    """The outputs of a model like GluonCV's: ids, scores and boxes, with padding."""
    most = max([len(each) for each in found]) + 1
    ids, scores = np.full((2, len(found), most, 1), -1, np.float32)
    boxes = np.full((len(found), most, 4), -1, np.float32)
    for row, each in enumerate(found):
        for place, (box, score, category) in enumerate(each):
            ids[row, place], scores[row, place], boxes[row, place] = category, score, box
    return {"ids": ids, "scores": scores, "boxes": boxes}


def scored(truths: Sequence[Objects], found: Sequence[Sequence[Found]], **parameters: str) -> TaskResult:
    manifest = detector(**parameters)
    postprocess = DetectionPostprocessor(manifest.output, 10)
    geometries = [FULL_SIZE] * len(truths)
    predictions, good = postprocess(outputs(found), PredictedInputs(len(truths), geometries))
    assert good.all()
    metric = METRICS.find("object_detection")(manifest)
    for place, truth in enumerate(truths):
        each = sample(truth, str(place))
        metric.check(each)
        metric.add(each, predictions.row(place))
    result = metric.result()
    assert result is not None
    assert result.samples == len(truths)
    return result


def test_one_right_box_of_two_gives_51_of_101_points() -> None:
    # the recall of 0.5 is reached with a precision of 1, which is so at the recalls 0, 0.01 … 0.5
    result = scored([objects((A, "cat"), (B, "cat"))], [[(A, 0.9, 0)]])
    assert result.score("AP50") == pytest.approx(51 / 101)
    assert result.score("AP") == pytest.approx(51 / 101)
    assert result.score("AR100") == pytest.approx(0.5)
    assert result.details["classes"] == [
        {
            "name": "cat",
            "objects": 2,
            "predictions": 1,
            "AP": pytest.approx(51 / 101),
            "AP50": pytest.approx(51 / 101),
        }
    ]
    assert result.details["curve"]["precision"] == [*[pytest.approx(1.0)] * 51, *[0.0] * 50]


def test_a_false_box_in_an_empty_image_counts() -> None:
    # the false box comes first: at every recall the precision is 1 / 2
    truths = [objects((A, "cat")), objects()]
    assert scored(truths, [[(A, 0.8, 0)], [(A, 0.9, 0)]]).score("AP50") == pytest.approx(0.5)
    assert scored(truths, [[(A, 0.8, 0)], []]).score("AP") == pytest.approx(1.0)


@pytest.mark.parametrize(("definition", "figures"), [("coco", 12), ("voc", 2)])
def test_images_without_any_object_have_no_figure(definition: str, figures: int) -> None:
    result = scored([objects(), objects()], [[(A, 0.9, 0)], []], average_precision=definition)
    assert [score.value for score in result.scores] == [None] * figures
    assert result.details["classes"] == []


def test_a_crowd_is_neither_hit_nor_missed() -> None:
    truth = objects((A, "cat"), (B, "cat", "crowd"))
    # two boxes in the crowd are no errors, and the crowd is no object that is missed
    inside = (105.0, 105.0, 120.0, 120.0)
    assert scored([truth], [[(B, 0.9, 0), (inside, 0.85, 0), (A, 0.8, 0)]]).score("AP") == pytest.approx(1.0)
    only_crowd = scored([objects((B, "cat", "crowd"))] * 2, [[(B, 0.9, 0)]] * 2)
    assert only_crowd.score("AP") is None


def test_equal_scores_keep_the_order_of_the_images() -> None:
    # as in COCO's own code, which sorts stably: the right one of the first image comes first
    truths = [objects((A, "cat")), objects()]
    assert scored(truths, [[(A, 0.5, 0)], [(A, 0.5, 0)]]).score("AP50") == pytest.approx(1.0)
    assert scored(truths[::-1], [[(A, 0.5, 0)], [(A, 0.5, 0)]]).score("AP50") == pytest.approx(0.5)


def test_no_prediction_is_zero_and_not_undefined() -> None:
    result = scored([objects((A, "cat"))], [[]])
    assert (result.score("AP"), result.score("AP50"), result.score("AR100")) == (0.0, 0.0, 0.0)


def test_a_box_of_the_wrong_class_is_a_miss_for_both() -> None:
    result = scored([objects((A, "cat"), (B, "dog"))], [[(A, 0.9, 1), (B, 0.8, 1)]])
    # cat: nothing found. dog: the first of two is wrong, so 1 / 2 at each recall
    by_name = {each["name"]: each["AP50"] for each in result.details["classes"]}
    assert by_name == {"cat": 0.0, "dog": pytest.approx(0.5)}
    assert result.score("AP50") == pytest.approx(0.25)


def test_a_duplicate_counts_as_wrong() -> None:
    # right, duplicate, right: at recalls up to 0.5 the precision is 1, above 2 / 3
    truth = objects((A, "cat"), (B, "cat"))
    result = scored([truth], [[(A, 0.9, 0), (A, 0.8, 0), (B, 0.7, 0)]])
    assert result.score("AP50") == pytest.approx((51 + 50 * 2 / 3) / 101)


@pytest.mark.parametrize(("width", "thresholds"), [(50.0, 1), (75.0, 6), (95.0, 10), (74.0, 5), (49.0, 0)])
def test_an_overlap_equal_to_a_threshold_counts(width: float, thresholds: int) -> None:
    # a box of 100 × 10 pixels and one of its left part: the IoU is the share of the width
    result = scored([objects(((0, 0, 100, 10), "cat"))], [[((0, 0, width, 10), 0.9, 0)]])
    assert result.score("AP") == pytest.approx(thresholds / 10)
    assert result.score("AP50") == pytest.approx(1.0 if thresholds else 0.0)
    assert result.score("AP75") == pytest.approx(1.0 if thresholds > 5 else 0.0)


def test_areas_are_those_of_the_annotations() -> None:
    # boxes of 50 × 50, which would be medium; the area of the mask of one is small: below 32² pixels
    truth = objects((A, "cat"), (B, "cat"))
    small = replace(truth, areas=np.array([900.0, 3600.0]))
    result = scored([small], [[(A, 0.9, 0)]])
    assert result.score("AP_small") == pytest.approx(1.0)
    assert result.score("AP_medium") == 0.0
    assert result.score("AP_large") is None


def test_a_class_without_an_object_is_left_out_of_the_mean() -> None:
    result = scored([objects((A, "cat"))], [[(A, 0.9, 0), (B, 0.95, 1)]])
    assert result.score("AP") == pytest.approx(1.0)
    assert [each["name"] for each in result.details["classes"]] == ["cat"]


def test_more_than_100_boxes_of_an_image_are_cut_by_their_scores() -> None:
    many: list[Found] = [(ELSEWHERE, 0.9, 0)] * 100
    assert scored([objects((A, "cat"))], [[*many, (A, 0.5, 0)]]).score("AP50") == 0.0
    assert scored([objects((A, "cat"))], [[*many[1:], (A, 0.5, 0)]]).score("AP50") == pytest.approx(0.01)


def test_classes_are_matched_by_name_and_not_by_number() -> None:
    # the labels of a model with COCO's gaps: dog is its third
    manifest = detector(labels=["person", "unused", "Dog "])
    metric = DetectionMetric(manifest)
    truth = sample(objects((A, "dog")))
    metric.check(truth)
    predictions, _ = DetectionPostprocessor(manifest.output, 0)(
        outputs([[(A, 0.9, 2)]]), PredictedInputs(1, [FULL_SIZE])
    )
    metric.add(truth, predictions)
    result = metric.result()
    assert result is not None
    assert result.score("AP") == pytest.approx(1.0)
    with pytest.raises(DatasetError, match=r"zebra"):
        metric.check(sample(objects((A, "zebra"))))
    metric.check(sample(objects((A, "2"))))  # a dataset of numbers has indices
    with pytest.raises(DatasetError):
        metric.check(sample(objects((A, "3"))))


def test_what_cannot_be_compared_is_refused_in_one_line() -> None:
    metric = DetectionMetric(detector())
    assert metric.result() is None
    metric.add(Sample("1", lambda: None), Values(np.zeros((1, 2), np.float32)))  # type: ignore[arg-type]
    assert metric.result() is None  # without a truth, nothing counts
    with pytest.raises(PredictionError, match="values; object_detection scores objects"):
        metric.add(sample(objects()), Values(np.zeros((1, 2), np.float32)))
    with pytest.raises(DatasetError, match="has no objects, which object_detection is scored against"):
        metric.check(replace(sample(objects()), truth=TargetValues(np.zeros(2))))


def test_without_pycocotools_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    metric = DetectionMetric(detector())
    metric.check(Sample("1", lambda: None))  # type: ignore[arg-type]  # images alone need none
    with pytest.raises(Exception, match=r"pip install 'inferometer\[coco\]'"):
        metric.check(sample(objects()))


def test_masks_are_compared_and_not_boxes() -> None:
    # two halves of the same box, left and right
    manifest, metric = instance_segmenter(), METRICS.find("instance_segmentation")(instance_segmenter())
    left, right = np.zeros((2, 20, 20), np.bool_)
    left[:, :10], right[:, 10:] = True, True
    truth = sample(
        objects(((0, 0, 20, 20), "cat"), ((0, 0, 20, 20), "cat"), size=(20, 20), masks=[left, right])
    )
    from inferometer.agent.tasks.objects import InstancePostprocessor

    geometry = replace(FULL_SIZE, width=20, height=20, input_width=20, input_height=20)
    whole = np.array([[[0, 0, 20, 20], [0, 0, 20, 20]]], np.float32)
    tensors = {
        "ids": np.zeros((1, 2, 1), np.float32),
        "scores": np.array([[[0.9], [0.8]]], np.float32),
        "boxes": whole,
        "masks": np.stack([right, left])[np.newaxis].astype(np.float32),
    }
    predictions, good = InstancePostprocessor(manifest.output, 0)(tensors, PredictedInputs(1, [geometry]))
    assert good.all()
    metric.check(truth)
    metric.add(truth, predictions.row(0))
    result = metric.result()
    assert result is not None
    assert result.score("AP") == pytest.approx(1.0)
    with pytest.raises(
        PredictionError, match="masks have 20 × 20 pixels, but the image of the truth has 300"
    ):
        metric.add(sample(objects()), predictions.row(0))
    damaged = replace(predictions.row(0), masks=predictions.masks[::-1])
    with pytest.raises(PredictionError, match="a mask of the prediction is damaged: run length"):
        metric.add(truth, damaged)
    with pytest.raises(DatasetError, match="not all of its objects have a mask"):
        metric.check(sample(objects((A, "cat"))))


@pytest.mark.parametrize(("definition", "value"), [("coco", 51 / 101), ("voc", 0.5)], ids=["coco", "voc"])
def test_the_interval_comes_from_the_images(definition: str, value: float) -> None:
    truths, chosen = [objects((A, "cat"))] * 200, {"average_precision": definition}
    certain = scored(truths, [[(A, 0.9, 0)]] * 200, **chosen).scores[0]
    assert (certain.value, certain.interval) == (1.0, None)
    half = scored(truths, [[(A, 0.9, 0)], []] * 100, **chosen).scores[0]
    assert half.value == pytest.approx(value)
    assert half.interval is not None
    assert 0 < half.interval.low < value < half.interval.high < 1
    assert scored(truths[:1], [[(A, 0.9, 0)]], **chosen).scores[0].interval is None
    assert not any(math.isnan(end) for end in half.interval)
    # the share of the objects that are found varies so, and 97 % of the draws are enclosed
    assert half.interval.high - half.interval.low == pytest.approx(2 * 2.17 * (0.25 / 200) ** 0.5, rel=0.04)


@pytest.mark.parametrize(("definition", "effort"), [("coco", 1000), ("voc", 100)])
def test_more_detections_than_100_draws_can_count_have_no_interval(
    definition: str, effort: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for draws in (99, 100):
        monkeypatch.setattr(average_precision, "_BUDGET", draws * effort)
        truths, found = [objects((A, "cat"))] * 200, [[(A, 0.9, 0)], []] * 100
        first = scored(truths, found, average_precision=definition).scores[0]
        assert (first.interval is None) is (draws < 100)
