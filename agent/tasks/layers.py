"""Finding the output of a model that a manifest names, and its numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import PredictionError

_UNNAMED = re.compile(r"output\d+")


def find_layer(tensors: Tensors, layer: int | str, *, exactly: bool = False) -> tuple[str, NDArray[Any]]:
    """Returns the name of an output and its numbers.

    Any name means the only output, and the first of a model whose outputs have no names: PyTorch's programs
    have none, and MLModelScope's manifests give them one all the same. A task of several outputs finds them
    ``exactly``, since such a name does not tell them apart.

    Args:
        tensors: The outputs; those without a name are called ``output0``, ``output1``, …
        layer: The name, or the place from 0.
        exactly: Whether a name means the output of that name only.

    Raises:
        PredictionError: The output does not exist, or is not numeric.
    """
    names = list(tensors)
    if isinstance(layer, int):
        if not 0 <= layer < len(names):
            raise PredictionError(f"the model has no output number {layer}; it has {len(names)}")
        layer = names[layer]
    if layer not in tensors:
        stands_for_first = len(names) == 1 or (names and all(map(_UNNAMED.fullmatch, names)))
        if exactly or not stands_for_first:
            raise PredictionError(f'the model has no output "{layer}"; it has: {", ".join(names)}')
        layer = names[0]
    tensor: NDArray[Any] = tensors[layer]
    if tensor.dtype.kind not in "biuf":
        raise PredictionError(f"output {layer} has element type {tensor.dtype}; predictions are numbers")
    return layer, tensor


def as_computed(tensor: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """Returns numbers as float32, or as float64 where float32 does not hold all of their type."""
    return tensor.astype(np.promote_types(tensor.dtype, np.float32), copy=False)
