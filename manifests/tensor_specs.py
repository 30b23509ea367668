"""The tensors that a model takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from inferometer.manifests.fields import DYNAMIC_AXIS


class TensorElementType(str, Enum):
    """The dtype of a tensor input."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    FLOAT64 = "float64"
    STRING = "string"


DYNAMIC_SIZE = 128
"""The size that a dynamic axis has where nothing tells one, as in synthetic inputs."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One of the tensors that a model takes.

    Attributes:
        name: What the framework knows it by: the ``input_layer``.
        element_type: Its dtype.
        dimensions: Its shape without the batch; None is a dynamic axis, whose size may differ by batch.
        padding: What shorter inputs of a batch are padded with.
    """

    name: str
    element_type: TensorElementType
    dimensions: tuple[int | None, ...]
    padding: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether an axis is dynamic."""
        return None in self.dimensions

    def takes(self, dimensions: tuple[int, ...]) -> bool:
        """Returns whether a shape without the batch fits; no axis may be empty."""
        return dimensions == self.dimensions or (
            len(dimensions) == len(self.dimensions)
            and all(
                size > 0 if wanted is None else size == wanted
                for size, wanted in zip(dimensions, self.dimensions, strict=True)
            )
        )

    def sized(self, size: int = DYNAMIC_SIZE) -> tuple[int, ...]:
        """Returns the shape without the batch, in which dynamic axes have a size."""
        return tuple(size if each is None else each for each in self.dimensions)

    @property
    def written(self) -> tuple[int, ...]:
        """The dimensions as manifests and messages have them, with -1 for a dynamic axis."""
        return self.sized(DYNAMIC_AXIS)
