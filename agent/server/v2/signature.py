"""What a model takes and gives, in the protocol's terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.server.v2.datatypes import Datatype, datatype_of
from manifests.schema import ModelManifest

BATCH_SIDE = -1
"""The batch's axis in a shape: it has any size."""


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model.

    Attributes:
        name: Its name.
        datatype: Its datatype.
        dimensions: Its shape without the batch.
    """

    name: str
    datatype: Datatype
    dimensions: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the batch's axis, which has any size."""
        return (BATCH_SIDE, *self.dimensions)


def input_of(manifest: ModelManifest) -> TensorSignature:
    """Returns the one input of a model."""
    parameters = manifest.inputs[0].parameters
    datatype = datatype_of(np.dtype(parameters.element_type.value))
    return TensorSignature(parameters.input_layer, datatype, parameters.dimensions)
