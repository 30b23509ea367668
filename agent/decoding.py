"""Decoding: an encoded image becomes the pixels of a model's input, in one library from the bytes on.

Which library decodes and resizes changes a model's accuracy, so that a manifest says it.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from agent.image_decoder import ImageDecoder
from agent.image_fit import MAX_PIXELS
from manifests.errors import FrameworkUnavailableError, InputError
from manifests.inputs import Decoder, ImageParameters


def check_pixels(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a decoded image in one piece of memory, height × width for grey or height × width × 3.

    Raises:
        InputError: It is none: uint8 of height × width, or that × 1 or × 3.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise InputError(
            f"pixels of shape {list(array.shape)} and type {array.dtype}; "
            "an image is uint8, height × width or height × width × 3"
        )
    return np.ascontiguousarray(array)


def open_decoder(parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> ImageDecoder:
    """Returns what decodes images of at most ``max_pixels`` as a manifest asks for.

    Raises:
        FrameworkUnavailableError: Its library is not installed; the line says how to install it.
    """
    if parameters.decoder is Decoder.PILLOW:
        from agent.pillow_decoder import PillowDecoder

        return PillowDecoder(parameters, max_pixels)
    # OpenCV reads its limit when it is loaded: 2 ** 30 pixels unless this says less
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    try:
        from agent.opencv_decoder import OpenCvDecoder
    except ImportError as error:
        raise FrameworkUnavailableError(
            "decoder opencv, which the manifest asks for, needs OpenCV, which cannot be imported "
            f"({' '.join(str(error).split())}); install it with: pip install 'inferscope[opencv]'"
        ) from error
    return OpenCvDecoder(parameters, max_pixels)
