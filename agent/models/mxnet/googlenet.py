"""GoogLeNet, as Caffe's reference network has it."""

from __future__ import annotations

from typing import Any, ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.convolution import in_sequence, side_by_side
from agent.models.mxnet.feed_forward import FeedForward
from agent.models.mxnet.local_response_norm import LocalResponseNorm


class GoogLeNet(FeedForward):
    """The BVLC network of Szegedy et al., 2014 (arXiv 1409.4842); 6,998,552 parameters.

    Convolutions have a bias, no batch normalisation, and the classifiers that help training are left out.
    Inputs are (batch, 3, 224, 224).
    """

    implements: ClassVar[tuple[str, ...]] = ("googlenet",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(
                nn.Conv2D(64, 7, strides=2, padding=3, activation="relu"),
                _pooling(),
                LocalResponseNorm(),
                nn.Conv2D(64, 1, activation="relu"),
                nn.Conv2D(192, 3, padding=1, activation="relu"),
                LocalResponseNorm(),
                _pooling(),
                _inception(64, 96, 128, 16, 32, 32),
                _inception(128, 128, 192, 32, 96, 64),
                _pooling(),
                _inception(192, 96, 208, 16, 48, 64),
                _inception(160, 112, 224, 24, 64, 64),
                _inception(128, 128, 256, 24, 64, 64),
                _inception(112, 144, 288, 32, 64, 64),
                _inception(256, 160, 320, 32, 128, 128),
                _pooling(),
                _inception(256, 160, 320, 32, 128, 128),
                _inception(384, 192, 384, 48, 128, 128),
                nn.GlobalAvgPool2D(),
                nn.Dropout(0.4),
                nn.Dense(classes),
            )


def _pooling() -> Any:
    # Caffe rounds the size of a pooled image up
    return nn.MaxPool2D(3, 2, ceil_mode=True)


def _inception(
    channels_1x1: int,
    reduction_3x3: int,
    channels_3x3: int,
    reduction_5x5: int,
    channels_5x5: int,
    channels_pool: int,
) -> Any:
    """The columns of table 1 of the paper, in its order."""
    return side_by_side(
        nn.Conv2D(channels_1x1, 1, activation="relu"),
        in_sequence(
            nn.Conv2D(reduction_3x3, 1, activation="relu"),
            nn.Conv2D(channels_3x3, 3, padding=1, activation="relu"),
        ),
        in_sequence(
            nn.Conv2D(reduction_5x5, 1, activation="relu"),
            nn.Conv2D(channels_5x5, 5, padding=2, activation="relu"),
        ),
        in_sequence(
            nn.MaxPool2D(3, 1, padding=1),
            nn.Conv2D(channels_pool, 1, activation="relu"),
        ),
    )
