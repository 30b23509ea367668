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
class AxisSizes:
    """The sizes that a dynamic axis may have, as far as the model's file states them.

    Attributes:
        least: The smallest.
        most: The largest; None sets no limit.
        example: A size that the axis may have, where its others are not known, as of multiples of 8.
    """

    least: int = 1
    most: int | None = None
    example: int | None = None

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def nearest(self, size: int) -> int:
        """Returns the size that the axis may have and that is nearest to a wanted one."""
        if self.example is not None:
            return self.example
        return max(self.least, size if self.most is None else min(size, self.most))

    def other(self, size: int) -> int:
        """Returns another size than one that the axis may have: half of it, or else twice."""
        half = size // 2
        return half if half and half in self and self.example is None else 2 * size

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One of the tensors that a model takes.

    Attributes:
        name: What the framework knows it by: the ``input_layer``.
        element_type: Its dtype.
        dimensions: Its shape without the batch; None is a dynamic axis, whose size may differ by batch.
        padding: What shorter inputs of a batch are padded with.
        same_size: Whether nothing is padded: all inputs of a batch have one size, as images do.
        dynamic_size: The size of dynamic axes in synthetic inputs, or the nearest that they may have.
        sizes: The sizes that each axis may have, as far as that is known; empty where it is not.
    """

    name: str
    element_type: TensorElementType
    dimensions: tuple[int | None, ...]
    padding: int = 0
    same_size: bool = False
    dynamic_size: int = DYNAMIC_SIZE
    sizes: tuple[AxisSizes | None, ...] = ()

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

    def sized(self, size: int | None = None) -> tuple[int, ...]:
        """Returns the shape without the batch, in which dynamic axes have ``size``, or their own."""
        if size is not None:
            return tuple(size if each is None else each for each in self.dimensions)
        return tuple(
            axis.nearest(self.dynamic_size) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    def sized_otherwise(self) -> tuple[int, ...]:
        """Returns the same with another size for each dynamic axis."""
        return tuple(
            axis.other(axis.nearest(self.dynamic_size)) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    @property
    def axes(self) -> tuple[AxisSizes, ...]:
        """The sizes that each axis may have."""
        known = self.sizes if len(self.sizes) == len(self.dimensions) else (None,) * len(self.dimensions)
        return tuple(each or AxisSizes() for each in known)

    @property
    def written(self) -> tuple[int, ...]:
        """The dimensions as manifests and messages have them, with -1 for a dynamic axis."""
        return self.sized(DYNAMIC_AXIS)
