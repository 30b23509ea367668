"""Regression: numbers for each input."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.layers import as_computed, find_layer
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import Values
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput


class Regression(TaskPostprocessor):
    """Takes an output of N or N × k numbers, also with further axes of length 1. Thread-safe."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._layer = output.parameters.values_layer
        self._labels = len(output.parameters.labels)

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        """Returns the numbers of the inputs for which all are finite, and the mask of these inputs.

        Raises:
            PredictionError: The output is not N × k, or k is not the number of labels.
        """
        name, tensor = find_layer(tensors, self._layer)
        if not tensor.size or any(side != 1 for side in tensor.shape[2:]):
            raise PredictionError(
                f"output {name} has shape {list(tensor.shape)}; a regression has N, or N × k numbers"
            )
        values = as_computed(tensor.reshape(len(tensor), -1))
        if self._labels and values.shape[1] != self._labels:
            raise PredictionError(
                f"output {name} has {values.shape[1]} numbers for each input; its manifest has "
                f"{self._labels} labels"
            )
        good: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
        return Values(values[good]), good
