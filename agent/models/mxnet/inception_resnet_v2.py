"""Inception-ResNet v2, as MXNet's example has it."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from mxnet import gluon
from mxnet.gluon import nn

from agent.models.mxnet.convolution import in_sequence, normalised_convolution, side_by_side
from agent.models.mxnet.feed_forward import FeedForward

# the example's convolutions keep their bias before the normalisation
_convolution = partial(normalised_convolution, bias=True)


class InceptionResNetV2(FeedForward):
    """The network of Szegedy et al., 2016 (arXiv 1602.07261); 56,009,476 parameters that are trained.

    It is that of MXNet's example, which differs from the paper in its 17 × 17 blocks: 129 filters instead of
    128, and paddings of (1, 2) and (2, 1) instead of (0, 3) and (3, 0). Inputs are (batch, 3, 299, 299).
    """

    implements: ClassVar[tuple[str, ...]] = ("inception_resnet_v2",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        with self.name_scope():
            self.layers.add(*_stem())
            for _ in range(10):
                self.layers.add(ResidualModule(_branches_35(), 320, scale=0.17))
            self.layers.add(_reduction_a())
            for _ in range(20):
                self.layers.add(ResidualModule(_branches_17(), 1088, scale=0.1))
            self.layers.add(_reduction_b())
            for _ in range(9):
                self.layers.add(ResidualModule(_branches_8(), 2080, scale=0.2))
            self.layers.add(ResidualModule(_branches_8(), 2080, scale=1.0, activated=False))
            self.layers.add(_convolution(1536, 1), nn.GlobalAvgPool2D(), nn.Dropout(0.2), nn.Dense(classes))


class ResidualModule(gluon.HybridBlock):
    """Adds to its input a scaled 1 × 1 convolution of its branches.

    Args:
        branches: A block of the input, whose channels the convolution mixes.
        channels: The channels of the input.
        scale: What the convolution is multiplied with before it is added.
        activated: Whether ReLU follows.
    """

    def __init__(self, branches: Any, channels: int, *, scale: float, activated: bool = True) -> None:
        super().__init__(prefix="")
        self._scale = scale
        self._activated = activated
        self.branches = branches
        self.mixture = _convolution(channels, 1, activated=False)

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns (batch, channels, height, width) of the shape of the input."""
        total = data + self._scale * self.mixture(self.branches(data))
        return F.relu(total) if self._activated else total


def _stem() -> list[Any]:
    """299 × 299 pixels to 320 channels of 35 × 35."""
    return [
        _convolution(32, 3, strides=2),
        _convolution(32, 3),
        _convolution(64, 3, padding=1),
        nn.MaxPool2D(3, 2),
        _convolution(80, 1),
        _convolution(192, 3),
        nn.MaxPool2D(3, 2),
        side_by_side(
            _convolution(96, 1),
            in_sequence(_convolution(48, 1), _convolution(64, 5, padding=2)),
            in_sequence(
                _convolution(64, 1),
                _convolution(96, 3, padding=1),
                _convolution(96, 3, padding=1),
            ),
            in_sequence(nn.AvgPool2D(3, 1, padding=1), _convolution(64, 1)),
        ),
    ]


def _branches_35() -> Any:
    return side_by_side(
        _convolution(32, 1),
        in_sequence(_convolution(32, 1), _convolution(32, 3, padding=1)),
        in_sequence(
            _convolution(32, 1),
            _convolution(48, 3, padding=1),
            _convolution(64, 3, padding=1),
        ),
    )


def _reduction_a() -> Any:
    """320 channels of 35 × 35 to 1088 of 17 × 17."""
    return side_by_side(
        _convolution(384, 3, strides=2),
        in_sequence(
            _convolution(256, 1),
            _convolution(256, 3, padding=1),
            _convolution(384, 3, strides=2),
        ),
        nn.MaxPool2D(3, 2),
    )


def _branches_17() -> Any:
    return side_by_side(
        _convolution(192, 1),
        in_sequence(
            _convolution(129, 1),
            _convolution(160, (1, 7), padding=(1, 2)),
            _convolution(192, (7, 1), padding=(2, 1)),
        ),
    )


def _reduction_b() -> Any:
    """1088 channels of 17 × 17 to 2080 of 8 × 8."""
    return side_by_side(
        in_sequence(_convolution(256, 1), _convolution(384, 3, strides=2)),
        in_sequence(_convolution(256, 1), _convolution(288, 3, strides=2)),
        in_sequence(
            _convolution(256, 1),
            _convolution(288, 3, padding=1),
            _convolution(320, 3, strides=2),
        ),
        nn.MaxPool2D(3, 2),
    )


def _branches_8() -> Any:
    return side_by_side(
        _convolution(192, 1),
        in_sequence(
            _convolution(192, 1),
            _convolution(224, (1, 3), padding=(0, 1)),
            _convolution(256, (3, 1), padding=(1, 0)),
        ),
    )
