"""Class maps come from scores and from class numbers, in the size of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import ImageGeometry
from inferometer.agent.tasks.predictions import NO_CLASS, UNSEEN, ClassMaps, PredictedInputs
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput

SEEDS = st.integers(0, 2**32 - 1)


def maps_of(
    tensors: dict[str, NDArray[Any]],
    *geometries: ImageGeometry | None,
    kind: str = "semantic_segmentation",
    **parameters: Any,
) -> tuple[ClassMaps, list[bool]]:
    output = ModelOutput.model_validate({"type": kind, "parameters": parameters})
    size = len(next(iter(tensors.values())))
    found, good = POSTPROCESSORS.find(output.type)(output, 0)(tensors, PredictedInputs(size, geometries))
    assert isinstance(found, ClassMaps)
    found.check()
    return found, good.tolist()


def resized(width: int, height: int, input_width: int, input_height: int) -> ImageGeometry:
    """The geometry of an image that is resized as a whole."""
    return ImageGeometry(
        width, height, input_width / width, input_height / height, 0, 0, input_width, input_height
    )


SCORES = np.array([[[[1, 5], [2, 2]], [[5, 5], [1, 3]], [[0, 1], [9, 3]]]], np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_the_highest_score_wins_and_of_equal_ones_the_first(dtype: type) -> None:
    found, good = maps_of({"a": SCORES.astype(dtype)})
    assert good == [True]
    assert found.map(0).tolist() == [[1, 0], [2, 1]]


def test_scores_with_the_channels_last_mean_the_same() -> None:
    found, _ = maps_of({"a": SCORES.transpose(0, 2, 3, 1)}, layout="HWC")
    assert found.map(0).tolist() == [[1, 0], [2, 1]]


@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_class_numbers_are_taken_as_they_are(shape: tuple[int, ...], dtype: type) -> None:
    numbers = np.arange(12).reshape(shape).astype(dtype)
    found, good = maps_of({"SemanticPredictions": numbers}, masks_layer="SemanticPredictions")
    assert good == [True, True]
    assert found.map(1).tolist() == [[6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize("wrong", [-1, 3, 0.5, np.nan, np.inf])
def test_a_row_with_numbers_of_no_class_fails_alone(wrong: float) -> None:
    numbers = np.zeros((3, 2, 2), np.float32)
    numbers[1, 0, 1] = wrong
    numbers[2] = 2
    found, good = maps_of({"a": numbers}, labels=["a", "b", "c"])
    assert good == [True, False, True]
    assert found.map(1).tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_with_scores_that_are_not_finite_fails_alone(wrong: float) -> None:
    scores = np.repeat(SCORES, 2, axis=0)
    scores[0, 2, 1, 1] = wrong
    found, good = maps_of({"a": scores}, resized(4, 4, 2, 2), resized(2, 2, 2, 2))
    assert good == [False, True]
    assert found.sizes.tolist() == [[2, 2]]


def test_all_rows_may_fail() -> None:
    found, good = maps_of({"a": np.full_like(SCORES, np.nan)})
    assert (len(found), good) == (0, [False])


def test_one_channel_of_scores_is_compared_with_the_threshold() -> None:
    scores = np.array([[[[0.2, 0.5], [0.6, 0.9]]]], np.float32)
    for each in (scores, scores[:, 0]):
        found, _ = maps_of({"a": each}, masks_threshold=0.5)
        assert found.map(0).tolist() == [[0, 0], [1, 1]]


def test_an_offset_makes_the_models_background_no_class_and_leaves_unseen_pixels() -> None:
    cropped = ImageGeometry(4, 2, 1, 1, 1, 0, 2, 2)
    found, _ = maps_of({"a": SCORES}, cropped, class_offset=1, labels=["a", "b"])
    assert found.map(0).tolist() == [[UNSEEN, 0, NO_CLASS, UNSEEN], [UNSEEN, 1, 0, UNSEEN]]


def test_maps_have_the_size_of_each_image() -> None:
    found, _ = maps_of({"a": np.repeat(SCORES, 2, axis=0)}, resized(4, 2, 64, 64), resized(1, 4, 64, 64))
    assert found.map(0).tolist() == [[1, 1, 0, 0], [2, 2, 1, 1]]
    assert found.map(1).tolist() == [[0], [0], [1], [1]]


def test_padding_is_not_part_of_the_image() -> None:
    numbers = np.array([[[9, 9, 9, 9], [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]]], np.int64)
    found, _ = maps_of({"a": numbers}, ImageGeometry(4, 2, 1, 1, 0, -1, 4, 4))
    assert found.map(0).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_bilinear_scores_move_the_border_between_classes() -> None:
    scores = np.array([[[[3.0, 0.0]], [[0.0, 1.0]]]], np.float32)
    geometry = resized(8, 1, 2, 1)
    nearest, _ = maps_of({"a": scores}, geometry)
    bilinear, _ = maps_of({"a": scores}, geometry, masks_interpolation="bilinear")
    assert nearest.map(0).tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    # class 0 leads until three quarters of the way between the centres, which are 2 and 6
    assert bilinear.map(0).tolist() == [[0, 0, 0, 0, 0, 1, 1, 1]]


@given(SEEDS, st.tuples(*[st.integers(1, 9)] * 6))
def test_bilinear_scores_are_those_of_a_naive_interpolation(seed: int, sides: tuple[int, ...]) -> None:
    height, width, input_height, input_width, out_height, out_width = sides
    scores = np.random.default_rng(seed).normal(size=(1, 3, out_height, out_width)).astype(np.float32)
    geometry = resized(width, height, input_width, input_height)
    found, _ = maps_of({"a": scores}, geometry, masks_interpolation="bilinear")

    def along(pixel: int, pixels: int, size: int) -> tuple[int, int, float]:
        place = min(max((pixel + 0.5) * size / pixels - 0.5, 0), size - 1)
        return int(place), min(int(place) + 1, size - 1), place - int(place)

    for y in range(height):
        for x in range(width):
            up, down, v = along(y, height, out_height)
            left, right, h = along(x, width, out_width)
            s = scores[0].astype(np.float64)
            upper = s[:, up, left] * (1 - h) + s[:, up, right] * h
            lower = s[:, down, left] * (1 - h) + s[:, down, right] * h
            mixed = upper * (1 - v) + lower * v
            assert mixed[found.map(0)[y, x]] >= mixed.max() - 1e-5


@given(SEEDS, st.tuples(*[st.integers(1, 12)] * 6), st.integers(-3, 3), st.integers(-3, 3))
def test_the_nearest_class_is_that_of_a_naive_loop(
    seed: int, sides: tuple[int, ...], left: int, top: int
) -> None:
    height, width, input_height, input_width, out_height, out_width = sides
    numbers = np.random.default_rng(seed).integers(0, 9, (1, out_height, out_width))
    geometry = ImageGeometry(width, height, 0.5, 2.0, left, top, input_width, input_height)
    found, _ = maps_of({"a": numbers}, geometry)
    for y in range(height):
        for x in range(width):
            u, v = (x + 0.5) * 0.5 - left, (y + 0.5) * 2.0 - top
            seen = 0 <= u < input_width and 0 <= v < input_height
            column, row = int(u * out_width / input_width), int(v * out_height / input_height)
            assert found.map(0)[y, x] == (numbers[0, row, column] if seen else UNSEEN)


@pytest.mark.parametrize(
    ("tensors", "parameters", "said"),
    [
        ({"a": np.zeros((1, 3))}, {}, "output a has shape [1, 3]; a segmentation is N × classes"),
        ({"a": SCORES}, {"labels": ["a"]}, "has 3 classes; the manifest has 1 labels"),
        ({"a": SCORES, "b": SCORES}, {"masks_layer": "c"}, 'no output "c"; it has: a, b'),
        ({"a": SCORES}, {"masks_layer": 1}, "no output number 1; it has 1"),
        ({"a": SCORES.astype(str)}, {}, "element type <U32"),
        ({"a": SCORES[:, :, 0]}, {"layout": "HWC", "labels": ["a"]}, ""),
    ],
)
def test_an_output_that_does_not_fit_is_refused_in_one_line(
    tensors: dict[str, NDArray[Any]], parameters: dict[str, Any], said: str
) -> None:
    if not said:
        assert maps_of(tensors, **parameters)[1] == [False]
        return
    with pytest.raises(PredictionError) as caught:
        maps_of(tensors, **parameters)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("names", [("output0", "output1"), ("anything",)])
def test_the_originals_name_of_an_output_without_one_means_the_first(names: tuple[str, ...]) -> None:
    tensors = dict.fromkeys(names, SCORES)
    found, _ = maps_of(
        tensors, kind="semanticsegment", masks_layer="SemanticPredictions", element_type="int64"
    )
    assert found.map(0).tolist() == [[1, 0], [2, 1]]
