"""Inception v4."""

from __future__ import annotations

from typing import Any, ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.convolution import in_sequence, normalised_convolution, side_by_side
from agent.models.mxnet.feed_forward import FeedForward


class Inception4(FeedForward):
    """The network of Szegedy et al., 2016 (arXiv 1602.07261); 42,679,816 parameters that are trained.

    Inputs are (batch, 3, 299, 299).
    """

    implements: ClassVar[tuple[str, ...]] = ("inception4",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(*_stem())
            for _ in range(4):
                self.layers.add(_module_a())
            self.layers.add(_reduction_a())
            for _ in range(7):
                self.layers.add(_module_b())
            self.layers.add(_reduction_b())
            for _ in range(3):
                self.layers.add(_module_c())
            self.layers.add(nn.GlobalAvgPool2D(), nn.Dropout(0.2), nn.Dense(classes))


def _stem() -> list[Any]:
    """299 × 299 pixels to 384 channels of 35 × 35."""
    return [
        normalised_convolution(32, 3, strides=2),
        normalised_convolution(32, 3),
        normalised_convolution(64, 3, padding=1),
        side_by_side(normalised_convolution(96, 3, strides=2), nn.MaxPool2D(3, 2)),
        side_by_side(
            in_sequence(normalised_convolution(64, 1), normalised_convolution(96, 3)),
            in_sequence(
                normalised_convolution(64, 1),
                normalised_convolution(64, (1, 7), padding=(0, 3)),
                normalised_convolution(64, (7, 1), padding=(3, 0)),
                normalised_convolution(96, 3),
            ),
        ),
        side_by_side(normalised_convolution(192, 3, strides=2), nn.MaxPool2D(3, 2)),
    ]


def _module_a() -> Any:
    """384 channels of 35 × 35 to as many."""
    return side_by_side(
        normalised_convolution(96, 1),
        in_sequence(normalised_convolution(64, 1), normalised_convolution(96, 3, padding=1)),
        in_sequence(
            normalised_convolution(64, 1),
            normalised_convolution(96, 3, padding=1),
            normalised_convolution(96, 3, padding=1),
        ),
        _pooled(96),
    )


def _reduction_a() -> Any:
    """384 channels of 35 × 35 to 1024 of 17 × 17."""
    return side_by_side(
        normalised_convolution(384, 3, strides=2),
        in_sequence(
            normalised_convolution(192, 1),
            normalised_convolution(224, 3, padding=1),
            normalised_convolution(256, 3, strides=2),
        ),
        nn.MaxPool2D(3, 2),
    )


def _module_b() -> Any:
    """1024 channels of 17 × 17 to as many."""
    return side_by_side(
        normalised_convolution(384, 1),
        in_sequence(
            normalised_convolution(192, 1),
            normalised_convolution(224, (1, 7), padding=(0, 3)),
            normalised_convolution(256, (7, 1), padding=(3, 0)),
        ),
        in_sequence(
            normalised_convolution(192, 1),
            normalised_convolution(192, (7, 1), padding=(3, 0)),
            normalised_convolution(224, (1, 7), padding=(0, 3)),
            normalised_convolution(224, (7, 1), padding=(3, 0)),
            normalised_convolution(256, (1, 7), padding=(0, 3)),
        ),
        _pooled(128),
    )


def _reduction_b() -> Any:
    """1024 channels of 17 × 17 to 1536 of 8 × 8."""
    return side_by_side(
        in_sequence(normalised_convolution(192, 1), normalised_convolution(192, 3, strides=2)),
        in_sequence(
            normalised_convolution(256, 1),
            normalised_convolution(256, (1, 7), padding=(0, 3)),
            normalised_convolution(320, (7, 1), padding=(3, 0)),
            normalised_convolution(320, 3, strides=2),
        ),
        nn.MaxPool2D(3, 2),
    )


def _module_c() -> Any:
    """1536 channels of 8 × 8 to as many."""
    return side_by_side(
        normalised_convolution(256, 1),
        in_sequence(normalised_convolution(384, 1), _split()),
        in_sequence(
            normalised_convolution(384, 1),
            normalised_convolution(448, (3, 1), padding=(1, 0)),
            normalised_convolution(512, (1, 3), padding=(0, 1)),
            _split(),
        ),
        _pooled(256),
    )


def _split() -> Any:
    return side_by_side(
        normalised_convolution(256, (1, 3), padding=(0, 1)),
        normalised_convolution(256, (3, 1), padding=(1, 0)),
    )


def _pooled(channels: int) -> Any:
    return in_sequence(nn.AvgPool2D(3, 1, padding=1), normalised_convolution(channels, 1))
