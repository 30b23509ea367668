"""The windows that convolutions and poolings slide over an image, and what each of their elements is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import Parameters, Shape


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial axes, one number for each of them.

    Attributes:
        kernel: Its size.
        stride: The steps in which it slides.
        pad: The padding before and after each axis.
        dilate: The distance of its elements.
    """

    kernel: Shape
    stride: Shape
    pad: Shape
    dilate: Shape

    @classmethod
    def of(cls, parameters: Parameters, rank: int) -> Window:
        """Returns the window of an operator's parameters; one number stands for all axes.

        Without a parameter, it has no padding, and steps and distances of 1.

        Raises:
            ValueError: A parameter has another number of axes.
        """
        return cls(*(_axes(parameters, name, rank) for name in ("kernel", "stride", "pad", "dilate")))

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(self.kernel)

    @property
    def pads(self) -> Shape:
        """The padding before all axes, followed by that after them, as in ONNX."""
        return self.pad + self.pad

    def positions(self, sizes: Shape) -> Shape:
        """Returns the number of its positions along each axis of an image.

        Raises:
            ValueError: The image has other axes, or the window is larger than it.
        """
        if len(sizes) != len(self.kernel):
            raise ValueError(
                f"data has {len(sizes)} spatial axes, and the operator slides over {len(self.kernel)}"
            )
        found = tuple(
            (size + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, dilate in zip(
                sizes, self.kernel, self.stride, self.pad, self.dilate, strict=True
            )
        )
        if min(found) < 1:
            raise ValueError(f"the kernel {self.kernel} is larger than the padded data of {sizes}")
        return found

    def padded(self, data: NDArray[Any], value: float = 0.0) -> NDArray[Any]:
        """Returns data of (…, spatial axes) with the padding."""
        around = [(0, 0)] * (data.ndim - len(self.pad)) + [(pad, pad) for pad in self.pad]
        return np.pad(data, around, constant_values=value) if any(self.pad) else data

    def parts(self, padded: NDArray[Any], positions: Shape) -> Iterator[NDArray[Any]]:
        """Yields, for each element of the window in C order, a view of the data below it at all positions."""
        for offset in product(*(range(size) for size in self.kernel)):
            starts = [o * dilate for o, dilate in zip(offset, self.dilate, strict=True)]
            over: list[Any] = [
                ...,
                *(
                    slice(start, start + stride * (count - 1) + 1, stride)
                    for start, stride, count in zip(starts, self.stride, positions, strict=True)
                ),
            ]
            yield padded[tuple(over)]


def _axes(parameters: Parameters, name: str, rank: int) -> Shape:
    least = 0 if name == "pad" else 1
    value = parameters.get(name, least)
    axes = value if isinstance(value, tuple) else (int(value),) * rank
    if len(axes) != rank:
        raise ValueError(f"{name} has {len(axes)} axes, and the operator {rank}")
    if min(axes) < least:
        raise ValueError(f"{name} is {axes}; each number is {least} or more")
    return axes
