"""The inputs of a model: the forms of their data, how NumPy holds them, and how images are decoded.

An origin maps the outputs for an input back to its image or text. ``aligned`` provides memory aligned for
frameworks. Image decoders each wrap a library. ``PillowDecoder`` decodes and resizes like torchvision's
transforms; OpenCV's decoder is in a separate module that is loaded only for manifests that request it.
"""

from __future__ import annotations

import io
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from inferometer.manifests.errors import InputError, one_line
from inferometer.manifests.inputs import (
    ColorMode,
    CropMethod,
    ImageParameters,
    InputParameters,
    Interpolation,
    TensorElementType,
    TensorSpec,
)


@dataclass(frozen=True, slots=True)
class ImageGeometry:
    """How an image was mapped to a model's input by resizing and cropping it.

    Attributes:
        width: The width of the image, in pixels.
        height: The height of the image, in pixels.
        scale_x: The width after resizing, divided by ``width``.
        scale_y: The height after resizing, divided by ``height``.
        left: The crop's left edge, in pixels of the resized image; negative if the image is padded.
        top: The crop's top edge, likewise.
        input_width: The width of the model's input, in pixels.
        input_height: The height of the model's input, in pixels.
    """

    width: int
    height: int
    scale_x: float
    scale_y: float
    left: float
    top: float
    input_width: int
    input_height: int

    def to_image(self, boxes: NDArray[np.float64], *, clipped: bool = True) -> NDArray[np.float64]:
        """Converts boxes from pixels of the input to pixels of the image.

        Args:
            boxes: float64, n × 4: left, top, right and bottom, in pixels of the model's input.
            clipped: Whether to clip the boxes to the borders of the image.
        """
        scale = np.array([self.scale_x, self.scale_y] * 2)
        offset = np.array([self.left, self.top] * 2)
        found: NDArray[np.float64] = (boxes + offset) / scale
        if clipped:
            np.clip(found, 0.0, np.array([self.width, self.height] * 2, np.float64), out=found)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """A text as a model receives it.

    Attributes:
        text: The text in which answers are found: the second of a pair, or the only text.
        offsets: int64, tokens × 2; the start and end of each token in ``text``; -1 for other tokens.
        further: The same for the further windows of a text that is too long for one.
    """

    text: str
    offsets: NDArray[np.int64] = field(repr=False)
    further: tuple[NDArray[np.int64], ...] = field(default=(), repr=False)


Origin: TypeAlias = ImageGeometry | TokenizedText
"""The image geometry or the text from which an input was made, which its tensor does not contain."""


Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays keyed by the names of a model's inputs or outputs, each with the batch as its first axis."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image file's bytes: PNG, JPEG or another of ``agent.preprocessing.inputs.FORMATS``."""

    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """A decoded image: uint8, height × width (grey) or height × width × 3 (RGB)."""

    array: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A preprocessed input, without the batch axis."""

    array: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class NamedTensors:
    """The preprocessed tensors for a model with several inputs, by name, without the batch axis.

    For an input of type image, an array of uint8 with one axis is the content of an image's file.
    """

    arrays: Tensors


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an encoded image; the agent that runs the model fetches it."""

    address: str


Fetch: TypeAlias = Callable[[str], bytes]
"""Returns the content at a URL, or raises InputError."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or a pair of texts, such as a question and the text that answers it."""

    text: str
    pair: str | None = None


Payload: TypeAlias = EncodedImage | Pixels | Tensor | NamedTensors | Url | Text


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    ``id`` is its name in predictions and failures. If ``data`` is a function, one of the pipeline's threads
    calls it, and the time that takes is the read time.
    """

    id: str
    data: Payload | Callable[[], Payload]

    def read(self) -> Payload:
        """Returns the data, reading it first if necessary; raises InputError if it cannot be read."""
        if not callable(self.data):
            return self.data
        try:
            return self.data()
        except OSError as error:
            raise InputError(f"input {self.id}: cannot be read: {error.strerror or error}") from error


MAX_PIXELS = 100_000_000
"""The default limit for decoded and resized images: a small file can claim to contain a huge image."""
STRING_CHARACTERS = 128
"""The length of a synthetic string, as in perf_analyzer; also assumed for strings not yet known."""


def size_of(payload: Payload) -> int:
    """Returns the size of a payload in bytes; 0 for a payload that is not read here."""
    match payload:
        case EncodedImage():
            return len(payload.content)
        case Pixels() | Tensor():
            return payload.array.nbytes
        case Text():
            return sum(len(part.encode("utf-8", "replace")) for part in (payload.text, payload.pair or ""))
        case NamedTensors():
            return sum(array.nbytes for array in payload.arrays.values())
        case Url():
            return 0


def dtype_of(parameters: InputParameters | TensorSpec) -> np.dtype[Any]:
    """Returns the dtype of a model's input; strings are Python strings in arrays of objects."""
    if parameters.element_type is TensorElementType.STRING:
        return np.dtype(object)
    found: np.dtype[Any] = np.dtype(parameters.element_type.value)
    return found


def element_bytes(tensor: TensorSpec) -> int:
    """Returns the size of an element in bytes; for strings, that of a synthetic string."""
    dtype = dtype_of(tensor)
    return STRING_CHARACTERS if dtype.hasobject else dtype.itemsize


def quoted(names: Iterable[str]) -> str:
    """Returns the names of tensors in the form used in messages."""
    return ", ".join(f'"{name}"' for name in names)


def batch_size(batch: Tensors) -> int:
    """Returns the number of inputs in a batch."""
    return len(next(iter(batch.values())))


def blank(tensor: TensorSpec, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns an array of zeros, or of empty strings, with the tensor's dtype."""
    dtype = dtype_of(tensor)
    return np.full(shape, "", dtype) if dtype.hasobject else np.zeros(shape, dtype)


def blank_batch(tensors: Iterable[TensorSpec], batch_size: int = 1) -> dict[str, NDArray[Any]]:
    """Returns a batch of zeros, or of empty strings; dynamic axes have the size ``DYNAMIC_SIZE``."""
    return {each.name: blank(each, (batch_size, *each.sized())) for each in tensors}


def padded(tensor: TensorSpec, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns the rows of a tensor as a batch, each padded at the end to the length of the longest."""
    first = rows[0].shape
    if all(row.shape == first for row in rows):
        return np.stack(rows)
    longest = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
    batch = blank(tensor, (len(rows), *longest))
    if tensor.padding:
        batch.fill(tensor.padding)
    for place, row in enumerate(rows):
        part: tuple[Any, ...] = (place, *map(slice, row.shape))
        batch[part] = row
    return batch


SMALL_BYTES = 16 * 1024
"""Below this size, ``tobytes`` copies faster than NumPy, which lets other threads run meanwhile: reacquiring
the interpreter's lock takes longer than copying so little."""


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an array in aligned memory, which some frameworks require."""
    if array.flags.aligned:
        return array
    if array.nbytes < SMALL_BYTES:
        return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
    return array.copy()


FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""The supported formats; to read some other formats, Pillow would start another program."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How an image becomes the model's input, in pixels: its size after resizing, and where it is cropped."""

    width: int
    height: int
    left: int
    top: int
    crop_width: int
    crop_height: int


def fit_image(parameters: ImageParameters, width: int, height: int, max_pixels: int = MAX_PIXELS) -> Fit:
    """Returns how an image of ``width`` × ``height`` pixels becomes the model's input.

    The sizes are torchvision's: ``dimensions / crop_ratio`` is rounded to the nearest, as for its published
    weights (224 / 0.875 is 256, 299 / 0.875 is 342); the longer side is rounded down as in ``Resize``, and
    the margins around the centre to even as in ``CenterCrop``. If the model accepts any size, the image keeps
    its own, or its longer side becomes ``max_dimension`` and the other is rounded to the nearest.

    Raises:
        InputError: The image is empty, or would be resized to more than ``max_pixels``.
    """
    p = parameters
    if not (width and height):
        raise InputError(f"image of {width} × {height} pixels is empty")
    if p.any_size:
        return _fit_of_any_size(p.max_dimension, width, height, max_pixels)
    if p.crop_method is CropMethod.NONE:
        return Fit(p.width, p.height, 0, 0, p.width, p.height)
    new_width, new_height = round(p.width / p.crop_ratio), round(p.height / p.crop_ratio)
    if p.keep_aspect_ratio:
        if new_width * height >= new_height * width:
            new_height = new_width * height // width
        else:
            new_width = new_height * width // height
    _check_resized(width, height, new_width, new_height, max_pixels)
    left = top = 0
    if p.crop_method is CropMethod.CENTER:
        left, top = round((new_width - p.width) / 2), round((new_height - p.height) / 2)
    return Fit(new_width, new_height, left, top, p.width, p.height)


def _fit_of_any_size(longest: int | None, width: int, height: int, max_pixels: int) -> Fit:
    """Returns how an image keeps its size or, if ``longest`` is given, is resized to that longer side."""
    new_width, new_height = width, height
    if longest is not None:
        side = max(width, height)
        # rounded to the nearest, a half away from 0, as in MLModelScope
        new_width, new_height = (
            max(1, (2 * each * longest + side) // (2 * side)) for each in (width, height)
        )
    _check_resized(width, height, new_width, new_height, max_pixels)
    return Fit(new_width, new_height, 0, 0, new_width, new_height)


def _check_resized(width: int, height: int, new_width: int, new_height: int, max_pixels: int) -> None:
    if new_width * new_height > max_pixels:
        raise InputError(
            f"image of {width} × {height} pixels would be resized to {new_width} × {new_height}; "
            f"at most {max_pixels} are allowed"
        )


class ImageDecoder(ABC):
    """Decodes images and fits them to a model's input. Thread-safe.

    The resulting pixels are uint8, height × width × 3 in the order red, green, blue, or height × width × 1
    for a model with grey input. As in torchvision, the orientation in EXIF data is ignored. No image of more
    than ``max_pixels`` is decoded, or results from resizing. ``formats`` are Pillow's names.
    """

    formats: ClassVar[tuple[str, ...]]

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        self._parameters = parameters
        self._max_pixels = max_pixels

    @property
    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """The versions of the library that decodes and resizes, and of its JPEG library, by name."""

    def size(self, content: bytes) -> tuple[int, int]:
        """Returns the width and height of an image file, reading only its header.

        Raises the same InputError as ``decode``.
        """
        return open_image(content, self.formats, self._max_pixels).size

    def fit_of(self, width: int, height: int) -> Fit:
        """Returns how an image of this size becomes the model's input; see ``fit_image``."""
        return fit_image(self._parameters, width, height, self._max_pixels)

    @abstractmethod
    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image file.

        Raises InputError if the file is damaged, too large or not in a supported format.
        """

    @abstractmethod
    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of a decoded image that has passed ``check_pixels``.

        Raises InputError if the image is empty, or would be resized to too many pixels.
        """


# what Pillow's decoders raise for damaged files, and its conversions for unknown modes
PILLOW_ERRORS = (
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


def open_image(content: bytes, formats: tuple[str, ...], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Opens an image, reading only its header; ``formats`` are Pillow's names of the accepted formats.

    Raises InputError if the file has another format, is damaged, or has more than ``max_pixels``.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"image is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise undecodable(content, f"it is none of the formats {', '.join(formats)}") from error
    except PILLOW_ERRORS as error:
        raise undecodable(content, str(error)) from error
    if image.width * image.height > max_pixels:
        raise InputError(f"image of {image.width} × {image.height} pixels; at most {max_pixels} are decoded")
    return image


def decoded_image(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Returns the image in a file unchanged, in the file's mode.

    Raises the InputError of ``open_image``, called with the supported ``FORMATS``.
    """
    image = open_image(content, FORMATS, max_pixels)
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, *PILLOW_ERRORS) as error:
        raise undecodable(content, str(error)) from error
    return image


def undecodable(content: bytes, reason: str) -> InputError:
    """Returns the error for an incomplete or damaged file."""
    return InputError(f"image of {len(content)} bytes cannot be decoded: {' '.join(reason.split())}")


def check_pixels(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a decoded image in contiguous memory, as height × width if grey, else height × width × 3.

    Raises InputError unless the array is uint8 of shape height × width, optionally × 1 or × 3.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise InputError(
            f"pixels of shape {list(array.shape)} and type {array.dtype}; "
            "an image is uint8, height × width or height × width × 3"
        )
    return np.ascontiguousarray(array)


_RESAMPLING = {
    Interpolation.NEAREST: Image.Resampling.NEAREST,
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
    Interpolation.LANCZOS: Image.Resampling.LANCZOS,
}
_SIXTEEN_BIT_FORMATS = {"PNG", "PPM"}


class PillowDecoder(ImageDecoder):
    """Decodes and resizes with Pillow, whose filters widen when shrinking an image (antialiasing)."""

    formats = FORMATS

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Pillow and of libjpeg-turbo, or of the libjpeg with which Pillow was built."""
        found = {"Pillow": PIL.__version__}
        turbo, libjpeg = features.version("libjpeg_turbo"), features.version("jpg")
        if turbo:
            found["libjpeg-turbo"] = turbo
        elif libjpeg:
            found["libjpeg"] = libjpeg
        return found

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image file."""
        return self._fit(decoded_image(content, self._max_pixels))

    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of a decoded image."""
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


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Returns an image in ``L`` or ``RGB``; raises InputError if its pixels have no known range or form."""
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
