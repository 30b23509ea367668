"""The convolution unit of the Inception networks, and branches of it side by side."""

from __future__ import annotations

from typing import Any

from mxnet import gluon
from mxnet.gluon import nn

_EPSILON = 1e-3
Size = int | tuple[int, int]


def normalised_convolution(
    channels: int,
    kernel_size: Size,
    strides: int = 1,
    padding: Size = 0,
    *,
    bias: bool = False,
    activated: bool = True,
) -> Any:
    """Returns a convolution, batch normalisation and, if ``activated``, ReLU.

    Args:
        channels: The number of filters.
        kernel_size: Height and width in pixels, or one number for both.
        strides: In pixels, both ways.
        padding: Zeros on each side, in pixels: height and width, or one number for both.
        bias: Whether the convolution has one; the normalisation takes it out again.
        activated: Whether ReLU follows.
    """
    unit = nn.HybridSequential(prefix="")
    unit.add(nn.Conv2D(channels, kernel_size, strides, padding, use_bias=bias))
    unit.add(nn.BatchNorm(epsilon=_EPSILON))
    if activated:
        unit.add(nn.Activation("relu"))
    return unit


def in_sequence(*layers: Any) -> Any:
    """Returns the layers one after the other, as one block."""
    sequence = nn.HybridSequential(prefix="")
    sequence.add(*layers)
    return sequence


def side_by_side(*branches: Any) -> Any:
    """Returns a block that gives its input to each branch and joins their channels in this order."""
    module = gluon.contrib.nn.HybridConcurrent(axis=1, prefix="")
    module.add(*branches)
    return module
