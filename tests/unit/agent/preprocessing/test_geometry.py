"""The way of an image into a model's input: a mark in the image is found in the tensor, and led back."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage, ImageGeometry, Payload, Pixels, Tensor
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor, preprocessor_of
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import ImageParameters

WIDTH, HEIGHT = 320, 200
MARK = (120, 80, 200, 140)  # left, top, right, bottom


def marked() -> np.ndarray:
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    left, top, right, bottom = MARK
    pixels[top:bottom, left:right] = 255
    return pixels


def png() -> EncodedImage:
    stream = io.BytesIO()
    Image.fromarray(marked()).save(stream, "PNG")
    return EncodedImage(stream.getvalue())


@pytest.mark.parametrize("payload", [png(), Pixels(marked())], ids=["file", "pixels"])
@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
@pytest.mark.parametrize(
    "fitting",
    [
        {"crop_method": "none"},
        {"crop_method": "center", "keep_aspect_ratio": True},
        {"crop_method": "topleft", "keep_aspect_ratio": True},
        {"crop_method": "center", "crop_ratio": 0.8},
        {"crop_method": "center", "crop_ratio": 0.8, "keep_aspect_ratio": True},
    ],
)
@pytest.mark.parametrize("dimensions", [[3, 160, 240], [3, 100, 100]])
def test_a_mark_is_led_back_to_where_it_is_in_the_image(
    payload: Payload, decoder: str, fitting: dict[str, Any], dimensions: list[int]
) -> None:
    content = {"dimensions": dimensions, "layout": "CHW", "decoder": decoder, **fitting}
    preprocess = preprocessor_of(ImageParameters.model_validate(content))

    tensor, geometry = preprocess(payload), preprocess.origin(payload)

    assert isinstance(geometry, ImageGeometry)
    assert (geometry.width, geometry.height) == (WIDTH, HEIGHT)
    assert [geometry.input_height, geometry.input_width] == dimensions[1:]
    rows, columns = np.nonzero(tensor[0] > 127)
    box = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], np.float64)
    found = geometry.to_image(box)[0]
    for side, (at, limit) in enumerate(zip(box[0], (0, 0, dimensions[2], dimensions[1]), strict=True)):
        if at != limit:  # what is cropped away cannot be led back
            assert found[side] == pytest.approx(MARK[side], abs=2.5)


def test_a_box_beyond_the_image_is_clipped() -> None:
    geometry = ImageGeometry(100, 50, 0.5, 0.5, 0.0, 0.0, 50, 25)
    box = geometry.to_image(np.array([[-4.0, -1.0, 60.0, 10.0]]))
    assert box.tolist() == [[0.0, 0.0, 100.0, 20.0]]


def test_a_tensor_has_no_geometry() -> None:
    preprocess = preprocessor_of(ImageParameters.model_validate({"dimensions": [3, 8, 8]}))
    assert preprocess.origin(Tensor(np.zeros((3, 8, 8), np.float32))) is None


@pytest.mark.parametrize(
    ("longest", "size", "fitted"),
    [
        (None, (7, 9), (7, 9)),
        (513, (640, 480), (513, 385)),
        (513, (333, 500), (342, 513)),
        (4, (1000, 1), (4, 1)),
        (8, (4, 2), (8, 4)),
        (3, (4, 2), (3, 2)),  # 1.5, away from 0
    ],
)
def test_an_image_of_any_size_keeps_it_or_gets_a_longest_side(
    longest: int | None, size: tuple[int, int], fitted: tuple[int, int]
) -> None:
    parameters = ImageParameters.model_validate({"dimensions": (), "max_dimension": longest})
    preprocessor = ImagePreprocessor(parameters)
    pixels = Pixels(np.zeros((size[1], size[0], 3), np.uint8))
    assert preprocessor(pixels).shape == (3, fitted[1], fitted[0])
    geometry = preprocessor.origin(pixels)
    assert geometry is not None
    assert (geometry.input_width, geometry.input_height) == fitted
    whole = np.array([[0.0, 0.0, *fitted]])
    np.testing.assert_allclose(geometry.to_image(whole), [[0, 0, *size]], atol=1e-9)


def test_an_image_that_would_become_too_large_is_refused() -> None:
    parameters = ImageParameters.model_validate({"dimensions": (), "max_dimension": 100})
    with pytest.raises(InputError, match="would be resized to 100 × 50; at most 4000"):
        ImagePreprocessor(parameters, 4000)(Pixels(np.zeros((2, 4, 3), np.uint8)))
