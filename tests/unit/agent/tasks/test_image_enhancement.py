"""Images come from outputs of any range, layout and order of colours; numbers from those of a regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Images, PredictedInputs, Predictions, Values
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.schema import ModelOutput


def predicted(kind: str, tensor: NDArray[Any], **parameters: Any) -> tuple[Predictions, list[bool]]:
    output = ModelOutput.model_validate({"type": kind, "parameters": parameters})
    found, good = POSTPROCESSORS.find(output.type)(output, 0)({"a": tensor}, PredictedInputs(len(tensor)))
    assert isinstance(found, Predictions)
    return found, good.tolist()


def image_of(tensor: NDArray[Any], **parameters: Any) -> NDArray[np.float32]:
    found, good = predicted("image", tensor, **parameters)
    assert isinstance(found, Images)
    assert all(good)
    return found.pixels


RED = np.zeros((1, 3, 2, 4), np.float32)
RED[:, 0] = 1


def test_an_image_has_its_channels_last_in_red_green_and_blue() -> None:
    pixels = image_of(RED)
    assert (pixels.shape, pixels.dtype) == ((1, 2, 4, 3), np.float32)
    assert pixels[0, 1, 3].tolist() == [1, 0, 0]
    assert image_of(RED, color_mode="BGR")[0, 0, 0].tolist() == [0, 0, 1]
    assert image_of(RED.transpose(0, 2, 3, 1), layout="HWC", color_mode="RGB")[0, 0, 0].tolist() == [1, 0, 0]


def test_a_grey_image_has_one_channel() -> None:
    assert image_of(RED[:, :1], color_mode="GRAY").shape == (1, 2, 4, 1)
    assert image_of(RED[:, :1]).shape == (1, 2, 4, 1)


@pytest.mark.parametrize(
    ("value", "dtype", "parameters", "meant"),
    [
        (0.25, np.float32, {}, 0.25),
        (0.25, np.float16, {}, 0.25),
        (51, np.uint8, {}, 0.2),
        (13107, np.uint16, {}, 0.2),
        (51, np.float32, {"image_range": [0, 255]}, 0.2),
        (-0.5, np.float32, {"image_range": [-1, 1]}, 0.25),
        (3, np.int32, {"image_range": [0, 4]}, 0.75),
        (-1, np.float32, {"mean": 127.5, "scale": 51, "image_range": [0, 255]}, 0.3),
        (-3, np.float32, {}, 0),
        (3, np.float32, {}, 1),
        (True, np.bool_, {}, 1),
    ],
)
def test_values_are_brought_to_0_to_1(
    value: float, dtype: type, parameters: dict[str, Any], meant: float
) -> None:
    pixels = image_of(np.full((1, 3, 2, 2), value, dtype), **parameters)
    assert pixels == pytest.approx(meant, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["RGB", "BGR"]))
def test_the_inverse_of_the_preprocessing_gives_the_image_back(seed: int, mode: str) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (1, 3, 4, 3)).astype(np.float32)
    mean, scale = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    order = [2, 1, 0] if mode == "BGR" else [0, 1, 2]
    tensor = ((image - mean) / scale)[..., order].transpose(0, 3, 1, 2).astype(np.float32)
    pixels = image_of(tensor, mean=mean.tolist(), scale=scale.tolist(), image_range=[0, 255], color_mode=mode)
    assert pixels == pytest.approx(image / 255, abs=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_image_that_is_not_finite_fails_alone(wrong: float) -> None:
    tensor = np.concatenate([RED, RED])
    tensor[0, 1, 1, 1] = wrong
    found, good = predicted("image_enhancement", tensor)
    assert good == [False, True]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("tensor", "parameters", "said"),
    [
        (np.zeros((1, 4)), {}, "output a has shape [1, 4]; an image with 1 or 3 channels and layout CHW"),
        (np.zeros((1, 2, 8, 8)), {}, "has four axes, the batch first, and as many channels"),
        (np.zeros((1, 3, 8, 8)), {"layout": "HWC"}, "layout HWC"),
        (np.zeros((1, 3, 8, 8)), {"color_mode": "GRAY"}, "color_mode GRAY"),
        (np.zeros((1, 1, 8, 8)), {"color_mode": "RGB"}, "color_mode RGB"),
        (np.zeros((1, 3, 8, 8), np.int32), {}, "say in output.parameters.image_range"),
        (np.zeros((1, 1, 8, 8)), {"mean": [1, 2, 3]}, "is grey, but the manifest has a mean or scale"),
    ],
)
def test_an_output_that_is_no_image_is_refused(
    tensor: NDArray[Any], parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(PredictionError) as caught:
        predicted("image_enhancement", tensor, **parameters)
    assert said in str(caught.value)


def test_a_manifest_with_two_means_is_refused() -> None:
    with pytest.raises(ManifestError, match="mean: has 2 numbers"):
        predicted("image_enhancement", RED, mean=[1, 2])


def test_a_range_goes_up() -> None:
    with pytest.raises(ValueError, match=r"black and the larger value of white"):
        predicted("image_enhancement", RED, image_range=[1, 1])


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2), (3, 2, 1, 1)])
def test_a_regression_has_numbers_for_each_input(shape: tuple[int, ...]) -> None:
    tensor = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found, good = predicted("regression", tensor)
    assert isinstance(found, Values)
    assert good == [True] * 3
    assert (found.values.shape, found.values.dtype) == ((3, tensor.size // 3), np.float32)
    assert found.row(2).values.ravel().tolist() == tensor[2].ravel().tolist()


def test_a_number_that_is_not_finite_fails_its_row() -> None:
    found, good = predicted("regression", np.array([[1.0], [np.nan], [np.inf]]))
    assert (len(found), good) == (1, [True, False, False])


@pytest.mark.parametrize("task", ["regression", "embedding"])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_numbers_that_float32_does_not_hold_are_kept(task: str, kind: type[Any]) -> None:
    found, _ = predicted(task, np.array([[1_700_000_001]], kind))
    assert isinstance(found, Values)
    assert found.values.tolist() == [[1_700_000_001]]


@pytest.mark.parametrize(
    ("tensor", "parameters", "said"),
    [
        (np.zeros((2, 3, 4)), {}, "output a has shape [2, 3, 4]; a regression has N, or N × k numbers"),
        (np.zeros((2, 0)), {}, "shape [2, 0]"),
        (np.zeros((2, 3)), {"labels": ["x"]}, "has 3 numbers for each input; its manifest has 1 labels"),
        (np.array(["x"], object), {}, "element type object"),
    ],
)
def test_an_output_without_numbers_is_refused(
    tensor: NDArray[Any], parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(PredictionError) as caught:
        predicted("regression", tensor, **parameters)
    assert said in str(caught.value)
