"""The preprocessor: what one input is given as becomes the tensor that the model takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.inputs import Payload
from manifests.errors import InputError
from manifests.inputs import InputParameters


class Preprocessor(ABC):
    """Makes the input tensors of one model. Thread-safe.

    Args:
        parameters: The manifest's description of the input.
    """

    def __init__(self, parameters: InputParameters) -> None:
        self._dimensions = parameters.dimensions
        self._dtype = np.dtype(parameters.element_type.value)
        self._tensor_bytes = tensor_bytes(parameters)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape of one input tensor, without the batch."""
        return self._dimensions

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the input tensor."""
        return self._dtype

    @property
    def tensor_bytes(self) -> int:
        """The memory that one input tensor takes, in bytes."""
        return self._tensor_bytes

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of the libraries that change what the tensor holds, by name."""
        return {}

    def __call__(self, payload: Payload) -> NDArray[Any]:
        """Returns the input tensor; its shape is ``dimensions``, its dtype ``dtype``.

        Raises:
            InputError: See ``write``.
        """
        tensor = np.empty(self.dimensions, self.dtype)
        self.write(payload, tensor)
        return tensor

    @abstractmethod
    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes the input tensor into ``out``, such as a place in the tensor of a batch.

        Args:
            payload: What the input is given as.
            out: An array of ``dimensions`` and ``dtype``, in C order.

        Raises:
            InputError: The payload is none that the model takes; what ``out`` then holds is undefined. The
                message does not name the input, which the caller knows.
        """

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
        with np.errstate(over="ignore"):  # what becomes infinite is found below
            tensor = np.ascontiguousarray(array, self._dtype)
        exact = np.can_cast(array.dtype, self._dtype, "safe")
        if not exact and (np.isinf(tensor) & np.isfinite(array)).any():
            raise InputError(f"tensor of {array.dtype} has a value that {self._dtype} cannot hold")
        return tensor


def tensor_bytes(parameters: InputParameters) -> int:
    """Returns the memory that one input tensor takes, in bytes; nothing has to be installed to know it."""
    return math.prod(parameters.dimensions) * np.dtype(parameters.element_type.value).itemsize
