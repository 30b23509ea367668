"""Objects of a detector's outputs: notations, geometry, suppression, masks, and outputs that are wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import ImageGeometry
from inferometer.agent.tasks.objects import (
    DetectionPostprocessor,
    InstancePostprocessor,
    overlaps,
    without_duplicates,
)
from inferometer.agent.tasks.predictions import (
    Detections,
    Instances,
    PredictedInputs,
    areas,
    decoded,
    encoded,
)
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.schema import ModelOutput

WHOLE = ImageGeometry(200, 100, 1.0, 1.0, 0.0, 0.0, 200, 100)
HALF = ImageGeometry(400, 200, 0.5, 0.5, 0.0, 0.0, 200, 100)
GLUON: dict[str, Any] = {"classes_layer": 0, "probabilities_layer": 1, "boxes_layer": 2}
BOX = (20.0, 10.0, 60.0, 50.0)


def found(
    tensors: dict[str, Any], geometry: ImageGeometry | None = WHOLE, **parameters: Any
) -> tuple[Detections, list[bool]]:
    arrays = {name: np.asarray(value, np.float32) for name, value in tensors.items()}
    size = len(next(iter(arrays.values())))
    output = ModelOutput.model_validate({"type": "object_detection", "parameters": parameters})
    predictions, good = DetectionPostprocessor(output, 1)(
        arrays, PredictedInputs(size, [geometry] * size if geometry else ())
    )
    predictions.check()
    return predictions, good.tolist()


def gluon(*rows: tuple[Any, float, float]) -> dict[str, Any]:
    """Boxes with their score and class of one image."""
    return {
        "ids": [[[row[2]] for row in rows]],
        "scores": [[[row[1]] for row in rows]],
        "boxes": [[row[0] for row in rows]],
    }


@pytest.mark.parametrize(
    ("parameters", "box"),
    [
        ({}, BOX),
        ({"box_format": "yxyx"}, (10, 20, 50, 60)),
        ({"box_format": "xywh"}, (20, 10, 40, 40)),
        ({"box_format": "cxcywh"}, (40, 30, 40, 40)),
        ({"box_format": "cxcywh", "box_units": "relative"}, (0.2, 0.3, 0.2, 0.4)),
        ({"box_units": "relative"}, (0.1, 0.1, 0.3, 0.5)),
        # MLModelScope's notation: with the size that pixels refer to, without it, and with another order
        ({"scale_width": 100, "scale_height": 50, "xmin_index": 0, "ymin_index": 1, "xmax_index": 2,
          "ymax_index": 3}, (10, 5, 30, 25)),
        ({"xmin_index": 0, "ymin_index": 1, "xmax_index": 2, "ymax_index": 3}, (0.1, 0.1, 0.3, 0.5)),
        ({"xmin_index": 1}, (0.1, 0.1, 0.5, 0.3)),
    ],
)  # fmt: skip
def test_every_notation_of_a_box_is_read(parameters: dict[str, Any], box: tuple[float, ...]) -> None:
    predictions, good = found(gluon((box, 0.9, 1)), **GLUON, **parameters)
    assert good == [True]
    assert predictions.boxes.tolist() == [pytest.approx(BOX)]
    assert predictions.classes.tolist() == [1]
    assert predictions.scores.tolist() == [pytest.approx(0.9)]


def test_tensorflow_names_mean_its_notation() -> None:
    tensors = {
        "detection_boxes": [[(0.1, 0.1, 0.5, 0.3), (0, 0, 1, 1)]],
        "detection_classes": [[1, 1]],
        "detection_scores": [[0.9, 0.8]],
        "num_detections": [1],
    }
    predictions, _ = found(
        tensors,
        boxes_layer="detection_boxes",
        classes_layer="detection_classes",
        probabilities_layer="detection_scores",
        count_layer="num_detections",
        class_offset=1,
        labels=["cat"],
    )
    assert predictions.boxes.tolist() == [pytest.approx(BOX)]
    assert predictions.classes.tolist() == [0]


@pytest.mark.parametrize("transposed", [False, True])
def test_scores_of_each_class_are_candidates_of_their_own(transposed: bool) -> None:
    scores = np.array([[[0.1, 0.7, 0.2], [0.95, 0.03, 0.02], [0.1, 0.3, 0.6], [0, 0, 0]]])
    boxes = [[(0.1, 0.1, 0.3, 0.5), (0, 0, 1, 1), (0.1, 0.1, 0.31, 0.5), (0, 0, 0, 0)]]
    tensors = {"scores": scores.transpose(0, 2, 1) if transposed else scores, "boxes": boxes}
    # MLModelScope's models for PyTorch: scores, boxes, and the background first
    predictions, _ = found(tensors, background_index=0, score_threshold=0.15)
    assert predictions.scores.tolist() == pytest.approx([0.7, 0.6, 0.3, 0.2])
    assert predictions.classes.tolist() == [1, 2, 1, 2]
    one_each, _ = found(
        tensors, class_offset=1, score_threshold=0.15, iou_threshold=0.5, labels=["cat", "dog"]
    )
    assert one_each.scores.tolist() == pytest.approx([0.7, 0.6])
    assert one_each.classes.tolist() == [0, 1]
    softmax, _ = found(tensors, class_offset=1, max_detections=1, probabilities_transform="softmax")
    powers = np.exp([0.1, 0.7, 0.2])
    assert softmax.scores.tolist() == pytest.approx([powers[1] / powers.sum()])


def test_padding_and_boxes_without_an_area_in_the_image_are_left_out() -> None:
    rows = [
        (BOX, 0.5, 0),
        ((-1, -1, -1, -1), -1, -1),
        (BOX, 0.0, 0),
        (BOX, 0.9, -1),
        ((30, 30, 30, 60), 0.8, 0),  # no width
        ((210, 10, 250, 50), 0.8, 0),  # right of the image
        ((60, 10, 20, 50), 0.8, 0),  # ends before it begins
        ((150, 50, 900, 900), 0.7, 1),
    ]
    predictions, good = found(gluon(*rows), **GLUON)
    assert good == [True]
    assert predictions.scores.tolist() == pytest.approx([0.7, 0.5])
    assert predictions.boxes.tolist() == [[150, 50, 200, 100], list(BOX)]
    nothing, good = found(gluon(rows[1]), **GLUON)
    assert (len(nothing), nothing.counts.tolist(), nothing.boxes.shape, good) == (1, [0], (0, 4), [True])


@pytest.mark.parametrize("layer", ["ids", "scores", "boxes"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_fails_its_image_alone(layer: str, value: float) -> None:
    tensors = {name: np.repeat(each, 2, axis=0) for name, each in gluon((BOX, 0.9, 1)).items()}
    tensors[layer] = tensors[layer].astype(np.float32)
    tensors[layer][0, 0, 0] = value
    predictions, good = found(tensors, **GLUON)
    assert good == [False, True]
    assert predictions.counts.tolist() == [1]


@pytest.mark.parametrize(
    ("tensors", "parameters", "said"),
    [
        (
            gluon((BOX, 0.9, 7)),
            {**GLUON, "labels": ["cat", "dog"]},
            "found class 7; its manifest has 2 labels",
        ),
        (gluon((BOX, 0.9, 0.5)), GLUON, "a class is 0.5; classes are whole numbers"),
        (gluon((BOX, 0.9, 1)), {**GLUON, "boxes_layer": 5}, "no output number 5; it has 3"),
        (
            gluon((BOX, 0.9, 1)),
            {**GLUON, "boxes_layer": "box"},
            'no output "box"; it has: ids, scores, boxes',
        ),
        (gluon((BOX, 0.9, 1)), {**GLUON, "boxes_layer": 0, "classes_layer": 2}, "boxes are N × k × 4"),
        (gluon((BOX, 0.9, 1)), {**GLUON, "xmin_index": 0}, "add box_units: pixels to output.parameters"),
        (gluon(((0.1, 0.1, 0.5, 0.5), 0.9, 1)), GLUON, "add box_units: relative to output.parameters"),
        ({"s": [[[0.1, 0.2]]], "b": [[BOX]]}, {"labels": ["a", "b", "c"]}, "2 scores per box"),
        ({**gluon((BOX, 0.9, 1)), "n": [2]}, {**GLUON, "count_layer": "n"}, "counts outside of 0…1"),
    ],
)
def test_outputs_that_contradict_the_manifest_are_refused(
    tensors: dict[str, Any], parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(PredictionError) as caught:
        found(tensors, **parameters)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        (
            "object_detection",
            {"boxes_layer": 0},
            "field output.parameters.boxes_layer: 0 is the probabilities_layer",
        ),
        (
            "object_detection",
            {**GLUON, "probabilities_transform": "softmax"},
            "softmax needs a score for each",
        ),
        ("object_detection", {"probabilities_transform": "sigmoid"}, "sigmoid is only for classifications"),
        ("instance_segmentation", GLUON, "field output.parameters.masks_layer: is missing"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    kind: str, parameters: dict[str, Any], said: str
) -> None:
    output = ModelOutput.model_validate({"type": kind, "parameters": parameters})
    with pytest.raises(ManifestError, match=said):
        POSTPROCESSORS.find(kind)(output, 0)


def test_without_an_image_boxes_stay_as_they_are() -> None:
    predictions, _ = found(gluon(((0.1, 0.2, 0.3, 0.4), 0.9, 1)), None, **GLUON)
    assert predictions.boxes.tolist() == [pytest.approx([0.1, 0.2, 0.3, 0.4])]


def test_a_model_of_one_image_may_leave_out_the_batch() -> None:
    # as torchvision's and ONNX's Faster R-CNN
    output = ModelOutput.model_validate(
        {
            "type": "object_detection",
            "parameters": {"boxes_layer": 0, "classes_layer": 1, "probabilities_layer": 2},
        }
    )
    tensors = {"boxes": np.array([BOX, BOX]), "labels": np.array([1, 2]), "scores": np.array([0.5, 0.9])}
    predictions, _ = DetectionPostprocessor(output, 0)(tensors, PredictedInputs(1, [HALF]))
    assert predictions.classes.tolist() == [2, 1]
    assert predictions.boxes.tolist() == [[2 * side for side in BOX]] * 2


_SIDE = st.integers(16, 2000)


@given(
    _SIDE, _SIDE, st.floats(0.1, 4), st.floats(0.1, 4), st.floats(-50, 50), st.floats(-50, 50),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)  # fmt: skip
def test_boxes_come_back_to_the_pixels_that_they_were_made_of(
    width: int, height: int, across: float, down: float, left: float, top: float, places: list[float]
) -> None:
    geometry = ImageGeometry(width, height, across, down, left, top, 224, 224)
    box = np.sort(np.array(places).reshape(2, 2), axis=0).ravel() * np.array([width, height] * 2)
    in_input = box * np.array([across, down] * 2) - np.array([left, top] * 2)
    assert geometry.to_image(in_input[np.newaxis])[0] == pytest.approx(box, abs=1e-6)
    beyond = geometry.to_image(np.array([[-1e6, -1e6, 1e6, 1e6]]))[0]
    assert beyond.tolist() == [0, 0, width, height]


_BOXES = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 20), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2)
    ),
    max_size=25,
)


@given(_BOXES, st.floats(0, 1), st.integers(1, 30))
def test_suppression_is_that_of_two_loops(rows: list[tuple[int, ...]], threshold: float, most: int) -> None:
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h, _ in rows], np.float64).reshape(-1, 4)
    classes = np.array([row[4] for row in rows], np.int64)
    kept: list[int] = []
    for place in range(len(boxes)):
        same = [other for other in kept if classes[other] == classes[place]]
        if all(overlaps(boxes[other], boxes[place : place + 1])[0] <= threshold for other in same):
            kept.append(place)
    assert list(without_duplicates(boxes, classes, threshold, most)) == kept[:most]


def test_an_overlap_is_the_share_of_the_union() -> None:
    others = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [10, 0, 20, 10]], np.float64)
    assert overlaps(others[0], others).tolist() == pytest.approx([1, 1 / 3, 0])


def instances(masks: Any, geometry: ImageGeometry | None, boxes: Any = (BOX,), **more: Any) -> Instances:
    output = ModelOutput.model_validate(
        {"type": "instance_segmentation", "parameters": {**GLUON, "masks_layer": 3, **more}}
    )
    tensors = {name: np.asarray(value) for name, value in gluon(*((box, 0.9, 1) for box in boxes)).items()}
    tensors["masks"] = np.asarray(masks, np.float32)
    found, good = InstancePostprocessor(output, 0)(
        tensors, PredictedInputs(1, [geometry] if geometry else ())
    )
    found.check()
    assert good.tolist() == [not np.isnan(tensors["masks"]).any()]
    return found


def only_mask(found: Instances) -> NDArray[np.bool_]:
    height, width = found.sizes[0].tolist()
    return decoded(found.run_lengths()[0], height, width)


def test_a_mask_of_a_box_is_pasted_into_the_image() -> None:
    # the left half of the box, which is at 40…120 × 20…100 pixels of an image twice the size of the input
    mask = np.zeros((1, 1, 40, 40))
    mask[..., :20] = 1
    pasted = only_mask(instances(mask, HALF))
    assert pasted.shape == (200, 400)
    wanted = np.zeros((200, 400), np.bool_)
    wanted[20:100, 40:80] = True
    # bilinear interpolation reaches 0.5 between the cells; only the corners fall below, as in Mask R-CNN
    assert (pasted ^ wanted).sum() <= 4


def test_a_mask_of_a_box_that_reaches_beyond_the_image_is_cut_and_not_squeezed() -> None:
    mask = np.zeros((1, 1, 20, 20))
    mask[..., 10:] = 1  # the right half of a box whose left half lies outside
    pasted = only_mask(instances(mask, WHOLE, [(-40, 0, 40, 80)]))
    wanted = np.zeros((100, 200), np.bool_)
    wanted[:80, :40] = True
    assert (pasted ^ wanted).sum() <= 4


def test_a_mask_of_the_input_is_resized_with_the_image() -> None:
    cropped = ImageGeometry(300, 200, 1.0, 1.0, 50.0, 0.0, 200, 200)
    mask = np.zeros((1, 1, 200, 200))
    mask[0, 0, :100] = 1
    pasted = only_mask(instances(mask, cropped, mask_frame="input"))
    wanted = np.zeros((200, 300), np.bool_)
    wanted[:100, 50:250] = True  # nothing is known of what was cropped
    assert (pasted == wanted).all()


def test_masks_that_do_not_fit_are_refused_or_fail() -> None:
    with pytest.raises(PredictionError, match="masks are N × k × height × width"):
        instances(np.zeros((3, 4)), WHOLE)
    with pytest.raises(PredictionError, match="1 masks for more boxes"):
        instances(np.zeros((1, 1, 4, 4)), WHOLE, [BOX, BOX])
    assert len(instances(np.full((1, 1, 4, 4), np.nan), WHOLE)) == 0
    alone = instances(np.ones((1, 1, 3, 4)), None)
    assert (alone.sizes.tolist(), areas(alone.run_lengths(), 3, 4)) == ([[3, 4]], [12])


def test_rows_of_instances_have_their_own_masks() -> None:
    masks = [
        encoded(np.eye(3, dtype=np.bool_)),
        encoded(np.ones((3, 3), np.bool_)),
        encoded(np.zeros((3, 3), np.bool_)),
    ]
    together = Instances(
        np.array([1, 0, 2]),
        np.zeros((3, 4), np.float32),
        np.array([0.9, 0.8, 0.7], np.float32),
        np.array([0, 1, 2]),
        np.full((3, 2), 3),
        np.array([len(mask) for mask in masks]),
        np.frombuffer(b"".join(masks), np.uint8),
    )
    assert [together.row(place).run_lengths() for place in range(3)] == [masks[:1], [], masks[1:]]
    assert together.row(2).detections.scores.tolist() == pytest.approx([0.8, 0.7])
    assert Instances.of_columns(together.columns()).run_lengths() == masks
    with pytest.raises(ValueError, match="do not fit"):
        Instances.of_columns({**together.columns(), "masks": np.zeros(1, np.uint8)})


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 99))
def test_run_lengths_are_those_of_pycocotools(height: int, width: int, share: float, seed: int) -> None:
    from pycocotools import mask as coco_mask

    mask = np.random.default_rng(seed).random((height, width)) < share
    content = encoded(mask)
    assert content == coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    assert (decoded(content, height, width) == mask).all()
    assert areas([content], height, width) == [mask.sum()]


@pytest.mark.parametrize("content", [b"", b"\xff", b"P", b"4" * 9, b"oooooooooooooooooooo"])
def test_damaged_run_lengths_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="run length"):
        decoded(content, 2, 3)
