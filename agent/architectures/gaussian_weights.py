"""How the authors of networks without normalization drew their weights, layer by layer."""

from __future__ import annotations

from typing import NamedTuple


class GaussianLayer(NamedTuple):
    """A layer whose weights are drawn from a normal distribution around 0.

    Attributes:
        deviation: Its standard deviation.
        bias: The value of all biases.
    """

    deviation: float
    bias: float


BVLC_ALEXNET = (
    *(GaussianLayer(0.01, 0.0), GaussianLayer(0.01, 0.1), GaussianLayer(0.01, 0.0)),
    *(GaussianLayer(0.01, 0.1), GaussianLayer(0.01, 0.1)),
    *(GaussianLayer(0.005, 0.1), GaussianLayer(0.005, 0.1), GaussianLayer(0.01, 0.0)),
)
"""The five convolutions and three fully connected layers of Caffe's ``bvlc_alexnet/train_val.prototxt``.

It has the biases of Krizhevsky et al. (2012) in the same layers, with 0.1 in place of 1, and DLBS has it for
both AlexNets. The loss begins at the logarithm of the number of classes, and stays there at first.
"""
