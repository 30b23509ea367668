"""The outputs of a model by the names and numbers of a manifest."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import PredictionError


def find_layer(tensors: Tensors, layer: int | str) -> tuple[str, NDArray[Any]]:
    """Returns the name and the array of an output, which a manifest gives by its name or its number.

    Raises:
        PredictionError: The model has no such output.
    """
    names = list(tensors)
    if isinstance(layer, int):
        if not 0 <= layer < len(names):
            raise PredictionError(f"the model has no output number {layer}; it has {len(names)}")
        layer = names[layer]
    if layer not in tensors:
        raise PredictionError(f'the model has no output "{layer}"; it has: {", ".join(names)}')
    return layer, tensors[layer]
