"""Rows of a loader in memory that is shared with child processes."""

from __future__ import annotations

import math
from ctypes import Array, c_int64, c_ubyte
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from inferometer.agent.preprocessing.inputs import dtype_of
from inferometer.evaluators.loading.child_process import CONTEXT
from inferometer.evaluators.loading.samples import Rows
from inferometer.manifests.errors import ConfigurationError, one_line
from inferometer.manifests.inputs import InputParameters


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """Rows in memory that has no name: it is gone with the last process that uses it, however that ends.

    Attributes:
        places: The memory of ``Rows.places``.
        inputs: The memory of ``Rows.inputs``.
        cancelled_below: The number of the first task that is not cancelled.
    """

    places: Array[c_int64]
    inputs: Array[c_ubyte]
    cancelled_below: c_int64

    @classmethod
    def of(cls, rows: int, parameters: InputParameters) -> Self:
        """Allocates rows for inputs of a model.

        Raises:
            ConfigurationError: There is not enough memory.
        """
        size = rows * math.prod(_row_shape(parameters)) * _dtype_of(parameters).itemsize
        try:
            places, inputs = CONTEXT.RawArray(c_int64, rows), CONTEXT.RawArray(c_ubyte, size)
            return cls(places, inputs, CONTEXT.RawValue(c_int64, 0))
        except (OSError, MemoryError, OverflowError) as error:
            raise no_memory(size, error) from error

    def view(self, parameters: InputParameters) -> Rows:
        """Returns the memory as arrays."""
        inputs = np.frombuffer(memoryview(self.inputs), _dtype_of(parameters))
        places = np.frombuffer(memoryview(self.places), np.int64)
        return Rows(places, inputs.reshape(-1, *parameters.dimensions))


def own_rows(rows: int, parameters: InputParameters) -> Rows:
    """Returns rows of this process alone; raises ConfigurationError if there is not enough memory."""
    dtype, shape = _dtype_of(parameters), _row_shape(parameters)
    try:
        return Rows(np.zeros(rows, np.int64), np.zeros((rows, *shape), dtype))
    except (MemoryError, ValueError) as error:
        size = rows * math.prod(shape) * dtype.itemsize
        raise no_memory(size, error) from error


def _dtype_of(parameters: InputParameters) -> np.dtype[Any]:
    """Returns the dtype of an input; raises ConfigurationError if that is strings."""
    dtype = dtype_of(parameters)
    if dtype.hasobject:
        raise ConfigurationError(
            f'input "{parameters.input_layer}" of the model is strings; batches are loaded for models that '
            "take numbers or images"
        )
    return dtype


def _row_shape(parameters: InputParameters) -> tuple[int, ...]:
    """Returns the shape of an input; raises ConfigurationError if it differs by input."""
    if any(tensor.is_dynamic for tensor in parameters.tensors):
        raise ConfigurationError(
            f'input "{parameters.input_layer}" of the model has no fixed size; batches are loaded for models '
            "with one size only, which dimensions in the manifest give"
        )
    return parameters.dimensions


def no_memory(size: int, error: Exception) -> ConfigurationError:
    """Returns the error for buffers of so many bytes."""
    return ConfigurationError(
        f"the batches of the loader take {size} bytes, which cannot be had: {one_line(error)}; use a smaller "
        "batch_size or prefetch"
    )
