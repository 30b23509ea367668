"""The interface of postprocessing, and the registry of what makes predictions of a model's outputs.

A task has one file here, for the agent, and one in ``evaluators.tasks``, which scores its predictions
against a dataset: an agent knows of no datasets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors, TokenizedText
from inferometer.agent.tasks.geometry import ImageGeometry
from inferometer.agent.tasks.predictions import Predictions
from inferometer.manifests.schema import ModelOutput


@dataclass(frozen=True, slots=True)
class PredictedInputs:
    """What postprocessing may know of the inputs of a batch, beside the outputs.

    Attributes:
        size: The number of inputs.
        geometries: How each image became an input; None for an input that is no image, and empty where none
            is. Without a geometry, coordinates are those of the model's input.
        texts: The text of each input with the offsets of its tokens, where there is one.
    """

    size: int
    geometries: Sequence[ImageGeometry | None] = ()
    texts: Sequence[TokenizedText | None] = ()


class TaskPostprocessor(Protocol):
    """Makes predictions of a model's outputs. Thread-safe."""

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Predictions, NDArray[np.bool_]]:
        """Returns the predictions of the valid rows of a batch, and the mask of these rows.

        The mask has an entry for each input, and is false where an output cannot be a prediction, such as one
        that is not a finite number.

        Args:
            tensors: The outputs, each with the batch as its first axis.
            inputs: What is known of the inputs.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """


class PostprocessorType(Protocol):
    """What the registry's entries name: a class, or a function, that makes postprocessors."""

    def __call__(self, output: ModelOutput, feature_limit: int) -> TaskPostprocessor:
        """Returns the postprocessor of a model; ``feature_limit`` bounds what is kept, and 0 keeps all.

        Raises:
            ManifestError: The manifest lacks what the task requires of ``output.parameters``.
        """


POSTPROCESSORS: Mapping[str, str] = {
    "embedding": "inferometer.agent.tasks.embedding:EmbeddingVectors",
    "question_answering": "inferometer.agent.tasks.question_answering:AnswerSpans",
}
"""``output.type`` and its ``PostprocessorType`` as ``"module:name"``."""


def load_postprocessor(place: str) -> PostprocessorType:
    """Imports a postprocessor."""
    module, _, name = place.partition(":")
    found: PostprocessorType = getattr(importlib.import_module(module), name)
    return found
