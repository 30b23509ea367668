"""What a model is asked about: an input, and the forms in which its data may come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from manifests.errors import InputError


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image file's bytes: PNG, JPEG or another of ``agent.pillow_decoder.FORMATS``."""

    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """A decoded image: uint8, height × width (grey) or height × width × 3 (RGB)."""

    array: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A preprocessed input as the model takes it, without the batch axis."""

    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Url:
    """Where an encoded image is to be fetched from, by whoever runs the model."""

    address: str


Payload: TypeAlias = EncodedImage | Pixels | Tensor | Url


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    Attributes:
        id: Names the input in predictions and in failures.
        data: The data, or a function that reads it when its turn comes; the pipeline calls it in one of its
            threads, and its time is the read time.
    """

    id: str
    data: Payload | Callable[[], Payload]

    def read(self) -> Payload:
        """Returns the data, reading it if it is still to be read.

        Raises:
            InputError: It cannot be read.
        """
        if not callable(self.data):
            return self.data
        try:
            return self.data()
        except OSError as error:
            raise InputError(f"input {self.id}: cannot be read: {error.strerror or error}") from error
