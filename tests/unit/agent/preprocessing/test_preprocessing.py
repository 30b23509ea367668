"""Preprocessing, compared with NumPy, Pillow or plain arithmetic on the same image."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from preprocessing_images import RED, encode, grey, noise, preprocessor, refusal

from inferometer.agent.preprocessing.inputs import Pixels, Tensor


def test_channels_come_first_in_chw_and_last_in_hwc() -> None:
    array = noise(4, 5, 3)
    first = preprocessor((3, 4, 5), layout="CHW")(Pixels(array))
    last = preprocessor((4, 5, 3), layout="HWC")(Pixels(array))
    assert first.shape == (3, 4, 5)
    assert last.shape == (4, 5, 3)
    np.testing.assert_array_equal(last, array)
    for channel in range(3):
        np.testing.assert_array_equal(first[channel], array[:, :, channel])
    assert first.flags.c_contiguous
    assert last.flags.c_contiguous


def test_bgr_turns_the_channels_round() -> None:
    red = encode(Image.new("RGB", (4, 4), RED))
    assert preprocessor(color_mode="RGB")(red)[:, 0, 0].tolist() == [200, 10, 60]
    assert preprocessor(color_mode="BGR")(red)[:, 0, 0].tolist() == [60, 10, 200]


def test_grey_is_the_luma_of_itu_r_601() -> None:
    red = encode(Image.new("RGB", (4, 4), RED))
    assert grey(4, 4)(red)[0, 0, 0] == round(0.299 * 200 + 0.587 * 10 + 0.114 * 60)


def test_a_grey_image_has_three_equal_channels_in_rgb() -> None:
    array = noise(4, 4)
    result = preprocessor()(Pixels(array))
    for channel in result:
        np.testing.assert_array_equal(channel, array)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_mean_and_scale_are_of_red_green_and_blue_in_any_colour_mode(layout: str) -> None:
    dimensions = (3, 4, 4) if layout == "CHW" else (4, 4, 3)
    mean, scale = [10.0, 20.0, 30.0], [2.0, 4.0, 8.0]
    process = preprocessor(dimensions, layout=layout, color_mode="BGR", mean=mean, scale=scale)
    result = process(encode(Image.new("RGB", (4, 4), RED)))
    pixel = result[:, 1, 2] if layout == "CHW" else result[1, 2]
    assert pixel.tolist() == [(60 - 30) / 8, (10 - 20) / 4, (200 - 10) / 2]


def test_one_mean_and_scale_count_for_all_channels() -> None:
    array = noise(4, 4, 3)
    result = preprocessor((4, 4, 3), layout="HWC", mean=127.5, scale=58.4)(Pixels(array))
    np.testing.assert_allclose(result, (array.astype(np.float64) - 127.5) / 58.4, rtol=1e-6)


@pytest.mark.parametrize("element_type", ["float32", "float16", "uint8"])
def test_the_result_has_the_element_type(element_type: str) -> None:
    array = noise(4, 4, 3)
    process = preprocessor((4, 4, 3), layout="HWC", element_type=element_type)
    result = process(Pixels(array))
    assert process.dtype == result.dtype == np.dtype(element_type)
    np.testing.assert_array_equal(result, array)


def test_float16_is_rounded_after_mean_and_scale() -> None:
    array = noise(4, 4, 3)
    result = preprocessor((4, 4, 3), layout="HWC", element_type="float16", mean=123.675, scale=58.395)(
        Pixels(array)
    )
    np.testing.assert_array_equal(
        result, ((array - np.float32(123.675)) / np.float32(58.395)).astype(np.float16)
    )


def bordered(inner: int, border: int) -> Image.Image:
    """A green square within a red border."""
    image = Image.new("RGB", (inner + 2 * border, inner + 2 * border), (255, 0, 0))
    image.paste((0, 255, 0), (border, border, border + inner, border + inner))
    return image


def test_the_centre_crop_removes_a_border() -> None:
    process = preprocessor((3, 224, 224), crop_ratio=0.875, interpolation="nearest")
    result = process(encode(bordered(224, 16)))
    np.testing.assert_array_equal(result[0], 0)
    np.testing.assert_array_equal(result[1], 255)


def test_without_a_crop_the_border_stays() -> None:
    process = preprocessor((3, 224, 224), crop_method="none", crop_ratio=0.875, interpolation="nearest")
    result = process(encode(bordered(224, 16)))
    assert result[:, 0, 0].tolist() == result[:, -1, -1].tolist() == [255, 0, 0]


def test_the_crop_at_the_top_left_keeps_the_border_there() -> None:
    process = preprocessor((3, 224, 224), crop_ratio=0.875, crop_method="topleft", interpolation="nearest")
    result = process(encode(bordered(224, 16)))
    assert result[:, 15, 100].tolist() == result[:, 100, 15].tolist() == [255, 0, 0]
    assert result[:, 16, 16].tolist() == result[:, -1, -1].tolist() == [0, 255, 0]


def test_an_aspect_ratio_that_is_kept_crops_the_longer_side() -> None:
    image = Image.new("RGB", (40, 10), (255, 0, 0))
    image.paste((0, 255, 0), (15, 0, 25, 10))  # the square in the middle
    kept = preprocessor((3, 10, 10), keep_aspect_ratio=True)(encode(image))
    np.testing.assert_array_equal(kept[0], 0)
    squeezed = preprocessor((3, 10, 10), keep_aspect_ratio=False)(encode(image))
    assert squeezed[0].max() == 255


def expected_by_torchvision(array: NDArray[np.uint8], side: int, target: int) -> NDArray[np.uint8]:
    """``Resize(side)`` and ``CenterCrop(target)`` as torchvision's source has them, on a Pillow image."""
    height, width = array.shape[:2]
    short, long = min(width, height), max(width, height)
    new_long = int(side * long / short)
    size = (side, new_long) if width <= height else (new_long, side)
    resized = np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BILINEAR))
    top = round((resized.shape[0] - target) / 2.0)
    left = round((resized.shape[1] - target) / 2.0)
    return resized[top : top + target, left : left + target]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(5, 90), st.integers(5, 90), st.sampled_from([(8, 1.0), (28, 0.875), (21, 0.75), (9, 0.875)])
)
def test_resize_and_crop_are_torchvisions(height: int, width: int, aim: tuple[int, float]) -> None:
    target, ratio = aim
    array = noise(height, width, 3)
    process = preprocessor((target, target, 3), layout="HWC", keep_aspect_ratio=True, crop_ratio=ratio)
    np.testing.assert_array_equal(
        process(Pixels(array)), expected_by_torchvision(array, round(target / ratio), target)
    )


@pytest.mark.parametrize(("height", "width"), [(333, 500), (500, 333), (256, 256), (375, 500), (10, 1000)])
def test_the_usual_256_to_224_is_torchvisions(height: int, width: int) -> None:
    array = noise(height, width, 3)
    process = preprocessor((224, 224, 3), layout="HWC", keep_aspect_ratio=True, crop_ratio=0.875)
    np.testing.assert_array_equal(process(Pixels(array)), expected_by_torchvision(array, 256, 224))


@pytest.mark.parametrize("keep", [True, False])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20), st.floats(0.2, 1.0))
@settings(max_examples=40, deadline=None)
def test_any_image_comes_to_the_dimensions(
    keep: bool, height: int, width: int, target_height: int, target_width: int, ratio: float
) -> None:
    process = grey(target_height, target_width, keep_aspect_ratio=keep, crop_ratio=ratio)
    array = np.full((height, width), 77, np.uint8)
    np.testing.assert_array_equal(process(Pixels(array)), np.full((1, target_height, target_width), 77))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_each_interpolation_is_pillows_of_that_name(interpolation: str) -> None:
    array = noise(13, 17)
    filters = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    wanted = Image.fromarray(array).resize((8, 8), Image.Resampling(filters[interpolation]))
    result = grey(8, 8, interpolation=interpolation, crop_method="none")(Pixels(array))
    np.testing.assert_array_equal(result[0], np.asarray(wanted))


def test_nearest_repeats_pixels_when_it_enlarges() -> None:
    array = np.array([[1, 2], [3, 4]], np.uint8)
    result = grey(4, 4, interpolation="nearest")(Pixels(array))
    np.testing.assert_array_equal(result[0], array.repeat(2, axis=0).repeat(2, axis=1))


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    array = noise(8, 8)
    np.testing.assert_array_equal(grey(8, 8, keep_aspect_ratio=True)(Pixels(array))[0], array)


@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 1), (6, 7, 3)])
def test_pixels_are_an_image_that_is_decoded_already(shape: tuple[int, ...]) -> None:
    array = noise(*shape)
    result = preprocessor((6, 7, 3), layout="HWC")(Pixels(array))
    np.testing.assert_array_equal(result, np.broadcast_to(array.reshape(6, 7, -1), (6, 7, 3)))


def test_pixels_may_be_any_view_of_memory() -> None:
    array = noise(7, 6, 3).transpose(1, 0, 2)[::-1]
    np.testing.assert_array_equal(preprocessor((6, 7, 3), layout="HWC")(Pixels(array)), array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4), np.float32),
        np.zeros((4, 4, 3), np.int64),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((), np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.parametrize("keep", [True, False])
def test_pixels_that_are_no_image_are_refused(array: NDArray[Any], keep: bool) -> None:
    refusal(preprocessor(keep_aspect_ratio=keep), Pixels(array))


def test_a_tensor_is_taken_as_it_is_without_mean_and_scale() -> None:
    array = np.random.default_rng(1).normal(size=(3, 4, 4)).astype(np.float32)
    result = preprocessor(mean=100, scale=7)(Tensor(array))
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [("float64", "float32"), ("float16", "float32"), ("int32", "float32"), ("float32", "float16"),
     (">f4", "float32"), ("bool", "uint8")],
)  # fmt: skip
def test_a_tensor_of_another_type_is_converted_where_only_precision_is_lost(found: str, wanted: str) -> None:
    array = np.arange(48).reshape(3, 4, 4).astype(found)
    result = preprocessor(element_type=wanted)(Tensor(array))
    assert result.dtype == np.dtype(wanted)
    np.testing.assert_array_equal(result, array.astype(np.float64))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [("float32", "uint8"), ("int64", "uint8"), ("uint16", "uint8"), ("int8", "uint8"), ("U1", "float32"),
     ("complex64", "float32"), ("object", "float32"), ("datetime64[s]", "float32")],
)  # fmt: skip
def test_a_tensor_of_a_type_that_would_lose_values_is_refused(found: str, wanted: str) -> None:
    message = refusal(preprocessor(element_type=wanted), Tensor(np.zeros((3, 4, 4), found)))
    assert f"the model takes {wanted}" in message


@pytest.mark.parametrize("shape", [(4, 4, 3), (1, 3, 4, 4), (3, 4), (), (3, 4, 0)])
def test_a_tensor_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    message = refusal(preprocessor(), Tensor(np.zeros(shape, np.float32)))
    assert message == f"tensor has shape {list(shape)}; the model takes [3, 4, 4]"


def test_many_threads_get_what_one_gets() -> None:
    process = preprocessor((3, 32, 32), keep_aspect_ratio=True, crop_ratio=0.875, mean=100, scale=50)
    payloads = [encode(Image.fromarray(noise(40 + seed, 50, 3, seed=seed))) for seed in range(16)] * 4
    alone = [process(payload) for payload in payloads]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(process, payloads))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
