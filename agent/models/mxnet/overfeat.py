"""OverFeat, the fast model."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.feed_forward import FeedForward


class OverFeat(FeedForward):
    """The fast model of Sermanet et al., 2013 (arXiv 1312.6229); 145,920,872 parameters.

    Inputs are (batch, 3, 231, 231).
    """

    implements: ClassVar[tuple[str, ...]] = ("overfeat",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(
                nn.Conv2D(96, 11, strides=4, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Conv2D(256, 5, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Conv2D(512, 3, padding=1, activation="relu"),
                nn.Conv2D(1024, 3, padding=1, activation="relu"),
                nn.Conv2D(1024, 3, padding=1, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Dense(3072, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(classes),
            )
