"""Embeddings: one vector for each input."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.layers import as_computed, find_layer
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import Values
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput


class EmbeddingVectors(TaskPostprocessor):
    """Takes an output of the model, inputs × k, as the embeddings; axes of length 1 after these are dropped.

    A vector with a number that is not finite is not a prediction. Thread-safe.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._layer = output.parameters.embedding_layer

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        """Returns the embeddings; see ``TaskPostprocessor``."""
        name, tensor = find_layer(tensors, self._layer)
        shape = tensor.shape
        if len(shape) < 2 or not shape[1] or any(side != 1 for side in shape[2:]) or shape[0] != inputs.size:
            raise PredictionError(
                f"output {name} has shape {list(shape)}; embeddings are {inputs.size} inputs × values"
            )
        values = as_computed(tensor.reshape(shape[:2]))
        usable: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
        return Values(values[usable]), usable
