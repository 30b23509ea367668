"""Preprocessors, which turn an image or a tensor into a model's input tensor.

``RecordReader`` is the interface of a framework's own iterator over a file of images, which it preprocesses
itself.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import (
    MAX_PIXELS,
    EncodedImage,
    ImageDecoder,
    ImageGeometry,
    NamedTensors,
    Origin,
    Payload,
    PillowDecoder,
    Pixels,
    Tensor,
    Tensors,
    Text,
    Url,
    check_pixels,
    dtype_of,
    element_bytes,
)
from inferometer.manifests.errors import ConfigurationError, FrameworkUnavailableError, InputError
from inferometer.manifests.inputs import (
    ColorMode,
    Decoder,
    ElementType,
    ImageParameters,
    InputParameters,
    Layout,
    TensorParameters,
    TensorSpec,
    TextParameters,
)


class Preprocessor(ABC):
    """Creates the tensors for one of a model's inputs, usually a single tensor. Thread-safe.

    Attributes:
        tensors: The tensors that it creates; by default, one.
        dimensions: The tensor's shape without the batch, with -1 for a dynamic axis.
        dtype: The tensor's dtype.
        tensor_bytes: The memory that the tensors take; approximate with dynamic axes.
        splits: Whether an input becomes one or more rows of a batch, which ``prepare`` then returns with the
            rows as the first axis of each tensor.
    """

    splits = False

    def __init__(self, parameters: InputParameters) -> None:
        self.tensors: tuple[TensorSpec, ...] = parameters.tensors
        self.dimensions: tuple[int, ...] = self.tensors[0].written
        self.dtype: np.dtype[Any] = dtype_of(parameters)
        self.tensor_bytes = input_bytes(self.tensors)

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of the libraries that affect the tensor's values, by name."""
        return {}

    def __call__(self, payload: Payload) -> NDArray[Any]:
        """Returns the input tensor; raises the InputError of ``write``."""
        tensor = np.empty(self.dimensions, self.dtype)
        self.write(payload, tensor)
        return tensor

    def prepare(self, payload: Payload, batch: Tensors, place: int) -> Tensors | None:
        """Writes fixed-shape tensors into their row of a batch; returns the rows of other tensors, if any.

        ``place`` is the index of the row.

        Raises:
            InputError: See ``write``.
        """
        tensor = self.tensors[0]
        if tensor.is_dynamic:
            return {tensor.name: self(payload)}
        self.write(payload, batch[tensor.name][place])
        return None

    @abstractmethod
    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes the input tensor into ``out``, such as a row of a batch, in C order.

        Raises:
            InputError: The payload does not fit the model; the content of ``out`` is then undefined. The
                message does not name the input, as the caller knows it.
        """

    def origin(self, payload: Payload) -> Origin | None:
        """Returns a written input's origin, for postprocessing; None if there is none.

        It is called for models whose task requires the origin, such as object detection.

        Raises:
            InputError: The payload does not fit the model.
        """
        return None


def check_tensor(array: NDArray[Any], tensor: TensorSpec, batch: tuple[int, ...] = ()) -> NDArray[Any]:
    """Returns a preprocessed tensor with the model's element type and in C order.

    ``batch`` is the batch size, if the array is a batch.

    Raises:
        InputError: The array has another shape, or conversion of its element type would lose values.
    """
    axes = len(batch)
    if array.shape[:axes] != batch or not tensor.takes(array.shape[axes:]):
        wanted = [*batch, *tensor.written]
        raise InputError(f"tensor has shape {list(array.shape)}; the model takes {wanted}")
    return check_elements(array, dtype_of(tensor))


def check_elements(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns a tensor as ``dtype`` in C order; raises InputError if the conversion would lose values."""
    if dtype.hasobject:
        return check_strings(array)
    # floats only lose precision; an integer that is too large would wrap around
    casting: Literal["same_kind", "safe"] = "same_kind" if dtype.kind == "f" else "safe"
    if array.dtype.hasobject or not np.can_cast(array.dtype, dtype, casting):
        raise InputError(f"tensor has element type {array.dtype}; the model takes {dtype}")
    with np.errstate(over="ignore"):  # overflow is detected below
        tensor: NDArray[Any] = np.asarray(array, dtype, order="C")  # a scalar stays one
    exact = np.can_cast(array.dtype, dtype, "safe")
    if not exact and (np.isinf(tensor) & np.isfinite(array)).any():
        raise InputError(f"tensor of {array.dtype} has a value that {dtype} cannot hold")
    return tensor


def check_strings(array: NDArray[Any]) -> NDArray[Any]:
    """Returns strings as Python strings in C order; raises InputError if an element is not a string."""
    if array.dtype.kind not in "UO":
        raise InputError(f"tensor has element type {array.dtype}; the model takes strings")
    found: NDArray[Any] = np.asarray(array, np.dtype(object), order="C")
    try:
        for element in found.flat:
            element.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InputError("tensor has an element that is not a Unicode string") from error
    return found


def check_text(text: str) -> NDArray[Any]:
    """Returns a text as a tensor of one string; raises InputError if it is empty or not Unicode."""
    if not text:
        raise InputError("the text is empty")
    return check_strings(np.array([text], object))


def input_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Returns the size in bytes of a model's tensors for one input.

    Dynamic axes are taken to have their size in synthetic inputs.
    """
    return sum(math.prod(each.sized()) * element_bytes(each) for each in tensors)


_PHOTOGRAPH_PIXELS = 12_000_000


def bytes_ahead(tensors: Iterable[TensorSpec]) -> int:
    """Returns how many bytes of memory to allow for one input that is prepared ahead.

    That is the size of its tensors; an image of any size is assumed to have 12 megapixels.
    """
    taken = 0
    for each in tensors:
        elements = math.prod(each.sized())
        if each.same_size:
            fixed = math.prod(size for size in each.dimensions if size is not None)
            elements = max(elements, fixed * _PHOTOGRAPH_PIXELS)
        taken += elements * element_bytes(each)
    return taken


def open_decoder(parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> ImageDecoder:
    """Returns the decoder that a manifest requires, for images of at most ``max_pixels``.

    Raises:
        FrameworkUnavailableError: Its library is not installed; the message gives the command to install it.
    """
    if parameters.decoder is Decoder.PILLOW:
        return PillowDecoder(parameters, max_pixels)
    # OpenCV reads its limit on import; the default is 2 ** 30 pixels
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    try:
        from inferometer.agent.preprocessing.opencv_decoder import OpenCvDecoder
    except ImportError as error:
        raise FrameworkUnavailableError(
            "decoder opencv, which the manifest asks for, needs OpenCV, which cannot be imported "
            f"({' '.join(str(error).split())}); install it with: pip install 'inferometer[opencv]'"
        ) from error
    return OpenCvDecoder(parameters, max_pixels)


class ImagePreprocessor(Preprocessor):
    """Turns images into input tensors.

    The steps are: decode, convert to red, green and blue or to grey, resize, crop, ``(pixel - mean) / scale``
    on 0…255, ``color_mode``, layout, element type. With ``keep_aspect_ratio``, the image is resized so that
    it just covers the target divided by ``crop_ratio``; otherwise both sides are resized to that size.
    ``crop_method`` selects the part that is then cropped; ``none`` resizes the whole image to the target.
    Images of any size keep their size, or get ``max_dimension`` as their longer side if it is given.

    Raises:
        FrameworkUnavailableError: The library that the manifest's ``decoder`` names is not installed.
    """

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(parameters)
        self._decoder = open_decoder(parameters, max_pixels)
        self._floats = parameters.element_type is not ElementType.UINT8
        self._chw = parameters.layout is Layout.CHW
        channels = 1 if parameters.color_mode is ColorMode.GRAY else 3
        self._mean = np.broadcast_to(np.asarray(parameters.mean, np.float32), (channels,))
        self._scale = np.broadcast_to(np.asarray(parameters.scale, np.float32), (channels,))
        # the positions of the model's channels among red, green and blue
        self._order = (2, 1, 0) if parameters.color_mode is ColorMode.BGR else tuple(range(channels))

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of the libraries that decode and resize, which affect a model's accuracy."""
        return self._decoder.versions

    def __call__(self, payload: Payload) -> NDArray[Any]:
        """Returns the input tensor for an image, or for a tensor of the model's shape."""
        if isinstance(payload, Tensor):
            return check_tensor(payload.array, self.tensors[0])
        pixels = self._fitted(payload)
        height, width, channels = pixels.shape
        shape = (channels, height, width) if self._chw else pixels.shape
        tensor = np.empty(shape, self.dtype)
        self._normalise(pixels, tensor)
        return tensor

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes the input tensor for an image, or for a tensor of the model's shape."""
        if isinstance(payload, Tensor):
            out[...] = check_tensor(payload.array, self.tensors[0])
        else:
            self._normalise(self._fitted(payload), out)

    def _fitted(self, payload: EncodedImage | Pixels | NamedTensors | Url | Text) -> NDArray[np.uint8]:
        """Returns an image's pixels resized to the model's input, as height × width × channels."""
        match payload:
            case EncodedImage():
                return self._decoder.decode(payload.content)
            case Pixels():
                return self._decoder.fit(check_pixels(payload.array))
            case NamedTensors():
                raise InputError(f"found named tensors {list(payload.arrays)}; the input is an image")
            case Url():
                raise InputError(f"{payload.address} has to be fetched before it is preprocessed")
            case Text():
                raise InputError("the model takes images; found a text")

    def origin(self, payload: Payload) -> ImageGeometry | None:
        """Returns how an image became the input; None for a tensor."""
        match payload:
            case EncodedImage():
                width, height = self._decoder.size(payload.content)
            case Pixels():
                height, width = payload.array.shape[:2]
            case _:
                return None
        fit = self._decoder.fit_of(width, height)
        scales = fit.width / width, fit.height / height
        return ImageGeometry(width, height, *scales, fit.left, fit.top, fit.crop_width, fit.crop_height)

    def _normalise(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Converts red, green and blue or grey pixels, height × width × channels, to the model's input."""
        if not self._floats:
            ordered = pixels[:, :, self._order]
            out[...] = ordered.transpose(2, 0, 1) if self._chw else ordered
            return
        tensor = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
        planes = tensor if self._chw else tensor.transpose(2, 0, 1)
        # one plane at a time takes a sixth of the time of the whole image, because nothing is transposed
        for plane, channel in zip(planes, self._order, strict=True):
            plane[...] = pixels[:, :, channel]  # exact, and faster than to convert in the subtraction
            np.subtract(plane, self._mean[channel], out=plane)
            np.divide(plane, self._scale[channel], out=plane)
        if tensor is not out:
            with np.errstate(over="ignore"):
                out[...] = tensor


class TensorPreprocessor(Preprocessor):
    """Accepts tensors of the model's shape; rejects images, for which the manifest has no parameters."""

    def __call__(self, payload: Payload) -> NDArray[Any]:
        """Returns a tensor with the model's element type; see ``check_tensor``."""
        match payload:
            case Tensor():
                return check_tensor(payload.array, self.tensors[0])
            case EncodedImage():
                found = f"an encoded image of {len(payload.content)} bytes"
            case Pixels():
                found = f"a decoded image of shape {list(payload.array.shape)}"
            case NamedTensors():
                found = f"named tensors {list(payload.arrays)}"
            case Url():
                found = payload.address
            case Text() if self.dtype.hasobject and self.dimensions == (1,) and payload.pair is None:
                return check_text(payload.text)
            case Text():
                found = "a text" if payload.pair is None else "a pair of texts"
        raise InputError(
            f"the model takes tensors of {self.tensors[0].element_type.value} of shape "
            f"{list(self.dimensions)}; found {found}"
        )

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes a tensor with the model's element type; see ``check_tensor``."""
        out[...] = self(payload)


def preprocessor_of(parameters: InputParameters, max_pixels: int = MAX_PIXELS) -> Preprocessor:
    """Returns the preprocessor for an image or tensor; for texts, see ``model_preprocessor_of``.

    Images of more than ``max_pixels`` are rejected.

    Raises:
        ConfigurationError: The input is a text, which needs a tokenizer.
    """
    match parameters:
        case TextParameters():
            raise ConfigurationError(f"texts need their tokenizer, {parameters.tokenizer}")
        case ImageParameters():
            return ImagePreprocessor(parameters, max_pixels)
        case TensorParameters():
            return TensorPreprocessor(parameters)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of a record reader.

    An epoch's last batch may have fewer samples. An iterator that always loads ahead loads at least one batch
    ahead. The framework shuffles anew for each epoch.
    """

    batch_size: int
    threads: int
    prefetch: int = 1
    shuffle: bool = False
    seed: int = 0


class RecordReader(ABC):
    """Reads, decodes and preprocesses images like its framework. A damaged file may end the process.

    Raises:
        ConfigurationError: The framework cannot preprocess as the model requires.
        DatasetError: The file cannot be read.
    """

    @abstractmethod
    def __init__(
        self, path: Path, count: int, parameters: InputParameters, options: RecordOptions
    ) -> None: ...

    @abstractmethod
    def epoch(self, out: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
        """Yields each batch's labels, int64 of shape (samples,), once its inputs are in the rows of ``out``.

        Args:
            out: float32 of shape ``(batch size, *dimensions)``; the same memory for every batch.

        Raises:
            DatasetError: The framework cannot read or decode a record.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file; calling it again does nothing."""
