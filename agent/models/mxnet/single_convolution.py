"""One convolution, to measure the operator with an agent around it."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.feed_forward import FeedForward


class SingleConvolution(FeedForward):
    """A 3 × 3 convolution that keeps height and width, without bias; 9,216 parameters.

    Inputs are (batch, 32, 256, 256), outputs (batch, classes, 256, 256): here classes are channels.
    """

    implements: ClassVar[tuple[str, ...]] = ("single_convolution",)

    def __init__(self, *, classes: int = 32) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(nn.Conv2D(classes, 3, padding=1, use_bias=False))
