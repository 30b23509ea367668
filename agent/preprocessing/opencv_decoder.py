"""Decodes and resizes with OpenCV, like MXNet's image pipeline; imported on demand."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import (
    MAX_PIXELS,
    ImageDecoder,
    fit_image,
    open_image,
    undecodable,
)
from inferometer.manifests.errors import InputError, one_line
from inferometer.manifests.inputs import ColorMode, ImageParameters, Interpolation


class _CStderr:
    """The variable ``stderr`` of the GNU C library, which can be redirected to the null device.

    Python's ``sys.stderr``, C++'s ``std::cerr`` and writes to the file descriptor are not affected. Other C
    libraries are not silenced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._variable: ctypes.c_void_p | None = None
        self._nowhere: int | None = None
        self._before: int | None = None

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Silences C's ``stderr`` while any thread is in the context. Thread-safe."""
        with self._lock:
            if not self._users and (variable := self._found()):
                self._before, variable.value = variable.value, self._nowhere
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._variable is not None:
                    self._variable.value = self._before

    def _found(self) -> ctypes.c_void_p | None:
        """Returns the C variable, which is looked up only once."""
        if self._nowhere is None and platform.libc_ver()[0] == "glibc":
            library = ctypes.CDLL(None)
            library.fopen.restype = ctypes.c_void_p
            library.fopen.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
            self._nowhere = library.fopen(os.fsencode(os.devnull), b"w")
            if self._nowhere is not None:
                self._variable = ctypes.c_void_p.in_dll(library, "stderr")
        return self._variable


silenced_c_stderr = _CStderr().silenced
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM")
"""The supported formats. OpenCV does not read GIF, and some OpenCV versions crash on damaged TIFF and JPEG
2000 files."""

_INTERPOLATION = {
    Interpolation.NEAREST: cv2.INTER_NEAREST,
    Interpolation.BILINEAR: cv2.INTER_LINEAR,
    Interpolation.BICUBIC: cv2.INTER_CUBIC,
    Interpolation.LANCZOS: cv2.INTER_LANCZOS4,
}
_JPEG_FORMATS = {"JPEG", "MPO"}
# libjpeg fills missing data with grey, which some versions of OpenCV do not detect. Within a scan these bytes
# are always the marker.
_START_OF_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_JPEG_LIBRARY = re.compile(
    r"^\s*JPEG:\s*(?:\S*/)?(?:build-)?(\S+?)(?:\.so\S*)?\s+\(ver (\S+)\)", re.MULTILINE
)


class OpenCvDecoder(ImageDecoder):
    """Decodes and resizes with OpenCV, whose filters do not widen when shrinking an image.

    OpenCV's own threads are disabled process-wide, as each preprocessing thread processes its own image.
    """

    formats = FORMATS

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(parameters, max_pixels)
        cv2.setNumThreads(0)
        cv2.setLogLevel(0)  # an exception reports a damaged file
        self._grey = parameters.color_mode is ColorMode.GRAY
        self._flags = cv2.IMREAD_GRAYSCALE if self._grey else cv2.IMREAD_COLOR
        self._flags |= cv2.IMREAD_IGNORE_ORIENTATION

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of OpenCV and of its built-in JPEG library."""
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
            raise undecodable(content, f"OpenCV cannot read a whole {header.format} image from it")
        fitted = self._resized(image)
        return fitted if self._grey else _converted(fitted, cv2.COLOR_BGR2RGB)

    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of a decoded image."""
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
                raise InputError(
                    f"image of {width} × {height} pixels cannot be resized: {one_line(error)}"
                ) from error
        rows = slice(fit.top, fit.top + fit.crop_height)
        columns = slice(fit.left, fit.left + fit.crop_width)
        return image[rows, columns].reshape(fit.crop_height, fit.crop_width, -1)


def _converted(image: NDArray[np.uint8], conversion: int) -> NDArray[np.uint8]:
    # OpenCV rejects an empty image, which the fitting reports
    return np.asarray(cv2.cvtColor(image, conversion), np.uint8) if image.size else image
