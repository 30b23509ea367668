"""Decoding and resizing with Pillow, as torchvision's transforms do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, features

from inferometer.agent.preprocessing.image_decoder import (
    PILLOW_ERRORS,
    ImageDecoder,
    fit_image,
    open_image,
    undecodable,
)
from inferometer.manifests.errors import InputError, one_line
from inferometer.manifests.inputs import ColorMode, Interpolation

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""The supported formats; for some others, Pillow would start another program."""

_RESAMPLING = {
    Interpolation.NEAREST: Image.Resampling.NEAREST,
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
    Interpolation.LANCZOS: Image.Resampling.LANCZOS,
}
_SIXTEEN_BIT_FORMATS = {"PNG", "PPM"}


class PillowDecoder(ImageDecoder):
    """Decodes and resizes with Pillow, whose filters widen when they shrink an image (antialias)."""

    formats = FORMATS

    @property
    def versions(self) -> Mapping[str, str]:
        """Pillow's version, and that of libjpeg-turbo, or of the libjpeg that it was built with."""
        found = {"Pillow": PIL.__version__}
        turbo, libjpeg = features.version("libjpeg_turbo"), features.version("jpg")
        if turbo:
            found["libjpeg-turbo"] = turbo
        elif libjpeg:
            found["libjpeg"] = libjpeg
        return found

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image file."""
        image = open_image(content, FORMATS, self._max_pixels)
        try:
            image.load()
        except (Image.DecompressionBombError, Image.DecompressionBombWarning, *PILLOW_ERRORS) as error:
            raise undecodable(content, str(error)) from error
        return self._fit(image)

    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image that is decoded already."""
        return self._fit(Image.fromarray(array))

    def _fit(self, image: Image.Image) -> NDArray[np.uint8]:
        p = self._parameters
        fit = fit_image(p, image.width, image.height, self._max_pixels)
        image = in_mode(image, "L" if p.color_mode is ColorMode.GRAY else "RGB")
        if (fit.width, fit.height) != image.size:
            image = image.resize((fit.width, fit.height), _RESAMPLING[p.interpolation])
        if (fit.width, fit.height) != (fit.crop_width, fit.crop_height):
            image = image.crop((fit.left, fit.top, fit.left + fit.crop_width, fit.top + fit.crop_height))
        return np.asarray(image).reshape(fit.crop_height, fit.crop_width, -1)


def decoded_image(content: bytes) -> Image.Image:
    """Returns the image of a file, unchanged, in the mode of the file.

    Raises:
        InputError: It has no supported format, is damaged, or is too large.
    """
    image = open_image(content, FORMATS)
    try:
        image.load()
    except (OSError, Image.DecompressionBombError, *PILLOW_ERRORS) as error:
        raise undecodable(content, str(error)) from error
    return image


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Returns an image in grey, ``L``, or in ``RGB``.

    Raises:
        InputError: Its pixels have no known range, or cannot be converted.
    """
    # Pillow would clip at 255 instead of scaling
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _SIXTEEN_BIT_FORMATS):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in {"I", "F"}:
        raise InputError("image has pixels of 32 bits, which have no known range; convert it to 8 or 16 bits")
    try:
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        return image if image.mode == mode else image.convert(mode)
    except PILLOW_ERRORS as error:
        raise InputError(
            f"image in mode {image.mode} cannot be converted to {mode}: {one_line(error)}"
        ) from error
