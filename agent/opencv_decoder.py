"""Decoding and resizing with OpenCV, as MXNet's image pipeline does. Only ``agent.decoding`` imports this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from agent.c_stderr import silenced_c_stderr
from agent.image_decoder import ImageDecoder
from agent.image_fit import MAX_PIXELS, fit_image
from agent.image_header import open_image, undecodable
from manifests.errors import InputError
from manifests.inputs import ColorMode, ImageParameters, Interpolation

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM")
"""The formats that are decoded. OpenCV reads no GIF, and what it does with damaged TIFF and JPEG 2000 files
is not to be relied on: versions of it have crashed on them."""

_INTERPOLATION = {
    Interpolation.NEAREST: cv2.INTER_NEAREST,
    Interpolation.BILINEAR: cv2.INTER_LINEAR,
    Interpolation.BICUBIC: cv2.INTER_CUBIC,
    Interpolation.LANCZOS: cv2.INTER_LANCZOS4,
}
_JPEG_FORMATS = {"JPEG", "MPO"}
# libjpeg fills up what is missing with grey, and some versions of OpenCV do not notice. Within a scan neither
# of these bytes can be anything but the marker.
_START_OF_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_JPEG_LIBRARY = re.compile(
    r"^\s*JPEG:\s*(?:\S*/)?(?:build-)?(\S+?)(?:\.so\S*)?\s+\(ver (\S+)\)", re.MULTILINE
)


class OpenCvDecoder(ImageDecoder):
    """Decodes and resizes with OpenCV, whose filters do not widen when they shrink an image.

    OpenCV's own threads are turned off, in the whole process: the threads that preprocess are those that were
    asked for, and each of them makes one image.

    Args:
        parameters: The manifest's description of the input.
        max_pixels: The largest image that is decoded or resized to.
    """

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(parameters, max_pixels)
        cv2.setNumThreads(0)
        cv2.setLogLevel(0)  # what is wrong with a file is said by an error
        self._grey = parameters.color_mode is ColorMode.GRAY
        self._flags = cv2.IMREAD_GRAYSCALE if self._grey else cv2.IMREAD_COLOR
        self._flags |= cv2.IMREAD_IGNORE_ORIENTATION

    @property
    def versions(self) -> Mapping[str, str]:
        """OpenCV's version, and that of the JPEG library in it, as it was built."""
        found = {"OpenCV": cv2.__version__}
        if jpeg := _JPEG_LIBRARY.search(cv2.getBuildInformation()):
            found[jpeg[1]] = jpeg[2]
        return found

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image file."""
        header = open_image(content, FORMATS, self._max_pixels)
        if header.format in _JPEG_FORMATS and content.rfind(_END) < content.rfind(_START_OF_SCAN):
            raise undecodable(content, "the JPEG data end too early")
        try:
            with silenced_c_stderr():
                image: Any = cv2.imdecode(np.frombuffer(content, np.uint8), self._flags)
        except cv2.error as error:
            raise undecodable(content, str(error)) from error
        if image is None or image.dtype != np.uint8 or image.shape[:2] != (header.height, header.width):
            raise undecodable(content, f"OpenCV reads no whole {header.format} image in it")
        fitted = self._resized(image)
        return fitted if self._grey else _converted(fitted, cv2.COLOR_BGR2RGB)

    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image that is decoded already."""
        if self._grey and array.ndim == 3:
            array = _converted(array, cv2.COLOR_RGB2GRAY)
        elif not self._grey and array.ndim == 2:
            array = _converted(array, cv2.COLOR_GRAY2RGB)
        return self._resized(array)

    def _resized(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resizes and crops; the channels may be in any order."""
        p = self._parameters
        height, width = image.shape[:2]
        fit = fit_image(p, width, height, self._max_pixels)
        if (fit.width, fit.height) != (width, height):
            filter_ = _INTERPOLATION[p.interpolation]
            try:
                image = np.asarray(
                    cv2.resize(image, (fit.width, fit.height), interpolation=filter_), np.uint8
                )
            except cv2.error as error:
                reason = " ".join(str(error).split())
                raise InputError(f"image of {width} × {height} pixels cannot be resized: {reason}") from error
        return image[fit.top : fit.top + p.height, fit.left : fit.left + p.width].reshape(
            p.height, p.width, -1
        )


def _converted(image: NDArray[np.uint8], conversion: int) -> NDArray[np.uint8]:
    # OpenCV refuses an empty image, of which the fitting says what is wrong
    return np.asarray(cv2.cvtColor(image, conversion), np.uint8) if image.size else image
