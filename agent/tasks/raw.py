"""Raw outputs: the tensors of a model as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.manifests.schema import ModelOutput


class Raw(TaskPostprocessor):
    """Leaves the tensors as they are. Thread-safe."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        pass

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[RawOutputs, NDArray[np.bool_]]:
        """Returns the tensors, and a mask that takes every input."""
        return RawOutputs(tensors), np.ones(inputs.size, np.bool_)
