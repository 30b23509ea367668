"""AlexNet: the one of Caffe in one group, and the one of "One weird trick"."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from agent.models.mxnet.feed_forward import FeedForward
from agent.models.mxnet.local_response_norm import LocalResponseNorm


class AlexNet(FeedForward):
    """The BVLC reference network (Krizhevsky et al., 2012), without groups; 62,378,344 parameters.

    Normalisation comes before pooling. Inputs are (batch, 3, 227, 227).
    """

    implements: ClassVar[tuple[str, ...]] = ("alexnet",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(
                nn.Conv2D(96, 11, strides=4, activation="relu"),
                LocalResponseNorm(),
                nn.MaxPool2D(3, 2),
                nn.Conv2D(256, 5, padding=2, activation="relu"),
                LocalResponseNorm(),
                nn.MaxPool2D(3, 2),
                nn.Conv2D(384, 3, padding=1, activation="relu"),
                nn.Conv2D(384, 3, padding=1, activation="relu"),
                nn.Conv2D(256, 3, padding=1, activation="relu"),
                nn.MaxPool2D(3, 2),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(classes),
            )


class AlexNetOWT(vision.AlexNet):
    """The network of Krizhevsky, 2014 (arXiv 1404.5997); 61,100,840 parameters.

    Gluon's model zoo has it. Inputs are (batch, 3, side, side) with a side of 224 to 254 pixels; there the
    average pooling to 6 × 6 of torchvision, for other sizes, would change nothing.
    """

    implements: ClassVar[tuple[str, ...]] = ("alexnet_owt",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__(classes=classes)
