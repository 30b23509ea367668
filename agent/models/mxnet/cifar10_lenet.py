"""A small network like LeNet for CIFAR10."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.feed_forward import FeedForward


class Cifar10LeNet(FeedForward):
    """Two 5 × 5 convolutions with pooling and three fully connected layers; 62,006 parameters.

    Inputs are (batch, 3, 32, 32).
    """

    implements: ClassVar[tuple[str, ...]] = ("cifar10_lenet",)

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(
                nn.Conv2D(6, 5, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Conv2D(16, 5, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Dense(120, activation="relu"),
                nn.Dense(84, activation="relu"),
                nn.Dense(classes),
            )
