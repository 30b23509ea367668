"""Inputs of a model, and the forms of their data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.manifests.errors import InputError


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


Payload: TypeAlias = EncodedImage | Pixels | Tensor | Url


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
