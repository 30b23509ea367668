"""The inputs of a model: the forms of their data, and how NumPy holds them.

An origin maps the outputs for an input back to its image or text. ``aligned`` provides memory aligned for
frameworks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import InputParameters, TensorElementType, TensorSpec


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
    """An image file's bytes: PNG, JPEG or another of ``agent.preprocessing.image_decoder.FORMATS``."""

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

    Attributes:
        id: The name of the input in predictions and failures.
        data: The data, or a function that reads it, which the pipeline calls in one of its threads; the time
            that takes is the read time.
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
