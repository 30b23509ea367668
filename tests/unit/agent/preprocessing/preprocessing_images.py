"""Images, and preprocessors for them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import ImageParameters

RED = (200, 10, 60)


def preprocessor(dimensions: tuple[int, int, int] = (3, 4, 4), **parameters: Any) -> ImagePreprocessor:
    return ImagePreprocessor(ImageParameters.model_validate({"dimensions": list(dimensions), **parameters}))


def grey(height: int, width: int, **parameters: Any) -> ImagePreprocessor:
    return preprocessor((1, height, width), color_mode="GRAY", **parameters)


def encode(image: Image.Image, image_format: str = "PNG", **options: Any) -> EncodedImage:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return EncodedImage(buffer.getvalue())


def noise(height: int, width: int, *channels: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, *channels), np.uint8)


def refusal(process: ImagePreprocessor, payload: Any) -> str:
    with pytest.raises(InputError) as caught:
        process(payload)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message
