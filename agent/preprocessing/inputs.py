"""Inputs of a model, the forms of their data, and their element types in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import ConfigurationError, InputError
from inferometer.manifests.inputs import InputParameters, TensorElementType

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays by the names of a model's inputs or outputs, each with the batch as its first axis."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image file's bytes: PNG, JPEG or another of ``agent.preprocessing.pillow_decoder.FORMATS``."""

    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """A decoded image: uint8, height × width (grey) or height × width × 3 (RGB)."""

    array: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A preprocessed input, without the batch axis."""

    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an encoded image, which the agent that runs the model fetches."""

    address: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or a pair of texts, such as a question and what answers it."""

    text: str
    pair: str | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of both in UTF-8."""
        return sum(len(part.encode("utf-8", "replace")) for part in (self.text, self.pair or ""))


Payload: TypeAlias = EncodedImage | Pixels | Tensor | Url | Text


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    Attributes:
        id: The name of the input in predictions and failures.
        data: The data, or a function that reads it; the pipeline calls it in one of its threads, and its time
            is the read time.
    """

    id: str
    data: Payload | Callable[[], Payload]

    def read(self) -> Payload:
        """Returns the data, and reads it first if necessary; raises InputError if it cannot be read."""
        if not callable(self.data):
            return self.data
        try:
            return self.data()
        except OSError as error:
            raise InputError(f"input {self.id}: cannot be read: {error.strerror or error}") from error


def dtype_of(parameters: InputParameters) -> np.dtype[Any]:
    """Returns the dtype of a model's input; strings are Python's own, in arrays of objects."""
    if parameters.element_type is TensorElementType.STRING:
        return np.dtype(object)
    return np.dtype(parameters.element_type.value)


def numeric_dtype_of(parameters: InputParameters) -> np.dtype[Any]:
    """Returns the dtype of a model's input; raises ConfigurationError if that is strings."""
    dtype = dtype_of(parameters)
    if dtype.hasobject:
        raise ConfigurationError(
            f'input "{parameters.input_layer}" of the model is strings, which no dataset has; serve it, '
            "and send them over the Open Inference Protocol"
        )
    return dtype


def blank_batch(parameters: InputParameters, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns a batch of zeros, or of empty strings."""
    dtype = dtype_of(parameters)
    return np.full(shape, "", dtype) if dtype.hasobject else np.zeros(shape, dtype)
