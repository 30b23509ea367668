"""Preprocessing: an image becomes the input tensor that the manifest describes."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from agent.inputs import EncodedImage, Payload, Pixels, Tensor, Url
from manifests.errors import InputError
from manifests.schema import ColorMode, CropMethod, ElementType, ImageParameters, Interpolation, Layout

MAX_PIXELS = 100_000_000
"""The largest image that is decoded or resized to; a small file can claim to hold a huge one."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""The formats that are decoded; Pillow knows more, and would start another program for some of them."""

_RESAMPLING = {
    Interpolation.NEAREST: Image.Resampling.NEAREST,
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
    Interpolation.LANCZOS: Image.Resampling.LANCZOS,
}
# What Pillow's decoders raise on damaged files, and its conversions on modes that they do not know.
_PILLOW_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
_SIXTEEN_BIT_FORMATS = {"PNG", "PPM"}


class ImagePreprocessor:
    """Turns images into input tensors. Thread-safe.

    The order is: decode, convert to ``color_mode``, resize, crop, ``(pixel - mean) / scale`` on 0…255,
    layout, element type. With ``keep_aspect_ratio`` the image is resized until it just covers the target
    divided by ``crop_ratio``; without, both sides are brought to that size. The centre is then cropped.
    ``crop_method: none`` resizes the whole image to the target. The longer side is rounded down and the
    crop's margins to even, as in torchvision's ``Resize`` and ``CenterCrop``.

    Args:
        parameters: The manifest's description of the input.
    """

    def __init__(self, parameters: ImageParameters) -> None:
        self._parameters = parameters
        self._dtype = np.dtype(parameters.element_type.value)
        self._mean = np.asarray(parameters.mean, np.float32)
        self._scale = np.asarray(parameters.scale, np.float32)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape of one input tensor, without the batch."""
        return self._parameters.dimensions

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the input tensor."""
        return self._dtype

    @property
    def tensor_bytes(self) -> int:
        """The memory that one input tensor takes, in bytes."""
        return math.prod(self.dimensions) * self._dtype.itemsize

    def __call__(self, payload: Payload) -> NDArray[Any]:
        """Returns the input tensor for an image; its shape is ``dimensions``.

        Raises:
            InputError: It is no image, is too large, or is a tensor of another shape. The message does not
                name the input, which the caller knows.
        """
        match payload:
            case EncodedImage():
                return self._normalise(self._resize(_decode(payload.content)))
            case Pixels():
                return self._normalise(self._resize(_from_array(payload.array)))
            case Tensor():
                return self.check(payload.array, self.dimensions)
            case Url():
                raise InputError(f"{payload.address} has to be fetched before it is preprocessed")

    def check(self, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns a tensor that is preprocessed already, as the model's element type.

        Raises:
            InputError: It has another shape, or an element type that would lose values.
        """
        if array.shape != shape:
            raise InputError(f"tensor has shape {list(array.shape)}; the model takes {list(shape)}")
        # of floats only precision is lost; an integer that is too large would become another one
        if not np.can_cast(array.dtype, self._dtype, "same_kind" if self._dtype.kind == "f" else "safe"):
            raise InputError(f"tensor has element type {array.dtype}; the model takes {self._dtype}")
        return np.ascontiguousarray(array, self._dtype)

    def _resize(self, image: Image.Image) -> Image.Image:
        """Brings the image to the colour mode and to width × height of the input."""
        p = self._parameters
        if not (image.width and image.height):
            raise InputError(f"image of {image.width} × {image.height} pixels is empty")
        image = _convert(image, "L" if p.color_mode is ColorMode.GRAY else "RGB")
        resampling = _RESAMPLING[p.interpolation]
        if p.crop_method is CropMethod.NONE:
            return image.resize((p.width, p.height), resampling)
        width, height = round(p.width / p.crop_ratio), round(p.height / p.crop_ratio)
        if p.keep_aspect_ratio:
            if width * image.height >= height * image.width:
                height = width * image.height // image.width
            else:
                width = height * image.width // image.height
        if width * height > MAX_PIXELS:
            raise InputError(
                f"image of {image.width} × {image.height} pixels would be resized to {width} × {height}; "
                f"at most {MAX_PIXELS} are held"
            )
        if (width, height) != image.size:
            image = image.resize((width, height), resampling)
        left, top = round((width - p.width) / 2), round((height - p.height) / 2)
        return image.crop((left, top, left + p.width, top + p.height))

    def _normalise(self, image: Image.Image) -> NDArray[Any]:
        p = self._parameters
        pixels: NDArray[Any] = np.asarray(image)
        if pixels.ndim == 2:
            pixels = pixels[:, :, np.newaxis]
        if p.color_mode is ColorMode.BGR:
            pixels = pixels[:, :, ::-1]
        if p.element_type is not ElementType.UINT8:
            pixels = (pixels.astype(np.float32) - self._mean) / self._scale
        if p.layout is Layout.CHW:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels, self._dtype)


def _decode(content: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise InputError(
                f"image of {image.width} × {image.height} pixels; at most {MAX_PIXELS} are decoded"
            )
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"image is too large: {error}") from error
    except _PILLOW_ERRORS as error:
        known = f"it is none of the formats {', '.join(FORMATS)}"
        reason = known if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split())
        raise InputError(f"image of {len(content)} bytes cannot be decoded: {reason}") from error
    return image


def _from_array(array: NDArray[np.uint8]) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise InputError(
            f"pixels of shape {list(array.shape)} and type {array.dtype}; "
            "an image is uint8, height × width or height × width × 3"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    # Pillow would cut off at 255 rather than scale
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _SIXTEEN_BIT_FORMATS):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in {"I", "F"}:
        raise InputError("image has pixels of 32 bits, which have no known range; convert it to 8 or 16 bits")
    try:
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        return image if image.mode == mode else image.convert(mode)
    except _PILLOW_ERRORS as error:
        reason = " ".join(str(error).split())
        raise InputError(f"image in mode {image.mode} cannot be converted to {mode}: {reason}") from error
