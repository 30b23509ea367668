"""The interface of postprocessing, which makes predictions of a model's outputs.

A task has one file here, for the agent, and one in ``evaluators.tasks``, which scores its predictions
against a dataset: an agent knows of no datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.preprocessing.origins import ImageGeometry, Origin
from inferometer.agent.preprocessing.origins import TokenizedText as TokenizedText
from inferometer.agent.tasks.predictions import Outputs
from inferometer.manifests.schema import ModelOutput


@dataclass(frozen=True, slots=True)
class PredictedInputs:
    """Information on the inputs of a batch for postprocessing, in addition to the outputs.

    Attributes:
        size: The number of inputs.
        geometries: How each image became an input; None for an input that is no image, and empty where none
            is. Without a geometry, coordinates are those of the model's input.
        texts: The text of each input with the offsets of its tokens, where there is one.
    """

    size: int
    geometries: Sequence[ImageGeometry | None] = ()
    texts: Sequence[TokenizedText | None] = ()

    @classmethod
    def of(cls, size: int, origins: Sequence[Origin | None]) -> PredictedInputs:
        """Returns the information on inputs, from the origin of each."""
        return cls(
            size,
            tuple(each if isinstance(each, ImageGeometry) else None for each in origins),
            tuple(each if isinstance(each, TokenizedText) else None for each in origins),
        )


class TaskPostprocessor(Protocol):
    """Makes predictions of a model's outputs. Thread-safe. Inherit from it.

    Attributes:
        wants_inputs: Whether it uses the geometries and texts of the inputs, which are kept only then.
        takes_unbatched: Whether the outputs for a batch of one input may lack the batch axis. Such outputs
            are not checked before.
        invalid_row: Why an input of an invalid row failed.
    """

    wants_inputs: ClassVar[bool] = False
    takes_unbatched: ClassVar[bool] = False
    invalid_row: ClassVar[str] = "the model's output is not a finite number"

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions of the valid rows of a batch, and the mask of these rows.

        The mask has an entry for each input, and is false where an output cannot be a prediction, such as one
        that is not a finite number.

        Args:
            tensors: The outputs, each with the batch as its first axis, which is checked before; but see
                ``takes_unbatched``.
            inputs: Information on the inputs.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """


class PostprocessorType(Protocol):
    """The type of the registry's entries: a class or function that creates postprocessors."""

    def __call__(self, output: ModelOutput, feature_limit: int) -> TaskPostprocessor:
        """Returns the postprocessor of a model; ``feature_limit`` bounds what is kept, and 0 keeps all.

        Raises:
            ManifestError: The manifest lacks what the task requires of ``output.parameters``.
        """
