"""The layers of published networks as data from which each framework builds them.

The GoogLeNet (arXiv 1409.4842) is BVLC's version. Inception v4 and Inception-ResNet v2 (arXiv 1602.07261) use
batch normalization; the latter follows MXNet's example, which differs from the paper in its 17 × 17 blocks:
129 filters instead of 128, and paddings of (1, 2) and (2, 1) instead of (0, 3) and (3, 0), which enlarge the
map by 2 in one direction and shrink it again. For networks without normalization, the authors chose a
distribution of the weights for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

Size: TypeAlias = int | tuple[int, int]
"""Height and width in pixels, or one number for both."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution and the layers that follow it in its network; all but ``channels`` are in pixels."""

    channels: int
    kernel: Size
    stride: int = 1
    padding: Size = 0


class Pooling(Enum):
    """A pooling of 3 × 3 pixels: kernel, stride and padding.

    Attributes:
        HALVE: The maximum, at half the height and width.
        HALVE_UP: Like ``HALVE``, but the size of the pooled map is rounded up, as in Caffe.
        MAXIMUM: The maximum, at the same size.
        AVERAGE: The average, at the same size.
    """

    HALVE = "halve"
    HALVE_UP = "halve_up"
    MAXIMUM = "maximum"
    AVERAGE = "average"


class Branches:
    """Branches that take the same input and whose outputs are joined by channel, in this order."""

    def __init__(self, *branches: Layer | Sequence[Layer]) -> None:
        self.branches = tuple(b if isinstance(b, Sequence) else (b,) for b in branches)


class Normalization(Enum):
    """Caffe's local response normalization: 5 channels, alpha 1e-4, beta 0.75 and k 1."""

    LOCAL_RESPONSE = "local response"


@dataclass(frozen=True, slots=True)
class Residual:
    """Branches that a 1 × 1 convolution maps to ``channels``; the result is scaled and added to their input.

    If ``activated``, a ReLU follows.
    """

    branches: Branches
    channels: int
    scale: float
    activated: bool = True


Layer: TypeAlias = Convolution | Pooling | Branches | Normalization | Residual
C = Convolution


def same(channels: int, height: int, width: int | None = None) -> Convolution:
    """Returns a convolution that keeps the map's size; if no ``width`` is given, the kernel is square."""
    if width is None:
        return Convolution(channels, height, padding=height // 2)
    return Convolution(channels, (height, width), padding=(height // 2, width // 2))


def _googlenet_module(
    one: int, reduce_three: int, three: int, reduce_five: int, five: int, projected: int
) -> Branches:
    """Returns the module for a row of table 1 of the paper, given the row's columns in order."""
    return Branches(
        C(one, 1),
        (C(reduce_three, 1), same(three, 3)),
        (C(reduce_five, 1), same(five, 5)),
        (Pooling.MAXIMUM, C(projected, 1)),
    )


GOOGLENET: Sequence[Layer] = (
    C(64, 7, stride=2, padding=3),
    Pooling.HALVE_UP,
    Normalization.LOCAL_RESPONSE,
    C(64, 1),
    same(192, 3),
    Normalization.LOCAL_RESPONSE,
    Pooling.HALVE_UP,
    _googlenet_module(64, 96, 128, 16, 32, 32),
    _googlenet_module(128, 128, 192, 32, 96, 64),
    Pooling.HALVE_UP,
    _googlenet_module(192, 96, 208, 16, 48, 64),
    _googlenet_module(160, 112, 224, 24, 64, 64),
    _googlenet_module(128, 128, 256, 24, 64, 64),
    _googlenet_module(112, 144, 288, 32, 64, 64),
    _googlenet_module(256, 160, 320, 32, 128, 128),
    Pooling.HALVE_UP,
    _googlenet_module(256, 160, 320, 32, 128, 128),
    _googlenet_module(384, 192, 384, 48, 128, 128),
)
"""Maps 224 × 224 pixels to 1024 channels of 7 × 7."""

_FACTORS = Branches(same(256, 1, 3), same(256, 3, 1))
"""The two factors of a 3 × 3 convolution, as parallel branches."""

INCEPTION4_STEM: Sequence[Layer] = (
    C(32, 3, stride=2),
    C(32, 3),
    same(64, 3),
    Branches(C(96, 3, stride=2), Pooling.HALVE),
    Branches((C(64, 1), C(96, 3)), (C(64, 1), same(64, 1, 7), same(64, 7, 1), C(96, 3))),
    Branches(C(192, 3, stride=2), Pooling.HALVE),
)
"""Maps 299 × 299 pixels to 384 channels of 35 × 35 (figure 3 of the paper)."""
_BLOCK_A = Branches(
    C(96, 1), (C(64, 1), same(96, 3)), (C(64, 1), same(96, 3), same(96, 3)), (Pooling.AVERAGE, C(96, 1))
)
_BLOCK_B = Branches(
    C(384, 1),
    (C(192, 1), same(224, 1, 7), same(256, 7, 1)),
    (C(192, 1), same(192, 7, 1), same(224, 1, 7), same(224, 7, 1), same(256, 1, 7)),
    (Pooling.AVERAGE, C(128, 1)),
)
_BLOCK_C = Branches(
    C(256, 1),
    (C(384, 1), _FACTORS),
    (C(384, 1), same(448, 3, 1), same(512, 1, 3), _FACTORS),
    (Pooling.AVERAGE, C(256, 1)),
)
INCEPTION4_BLOCKS: Sequence[Layer] = (
    *(_BLOCK_A,) * 4,
    Branches(C(384, 3, stride=2), (C(192, 1), same(224, 3), C(256, 3, stride=2)), Pooling.HALVE),
    *(_BLOCK_B,) * 7,
    Branches(
        (C(192, 1), C(192, 3, stride=2)),
        (C(256, 1), same(256, 1, 7), same(320, 7, 1), C(320, 3, stride=2)),
        Pooling.HALVE,
    ),
    *(_BLOCK_C,) * 3,
)
"""Maps 384 channels of 35 × 35 to 1024 of 17 × 17 and then to 1536 of 8 × 8 (figures 4 to 8)."""

INCEPTION_RESNET_STEM: Sequence[Layer] = (
    C(32, 3, stride=2),
    C(32, 3),
    same(64, 3),
    Pooling.HALVE,
    C(80, 1),
    C(192, 3),
    Pooling.HALVE,
    Branches(
        C(96, 1), (C(48, 1), same(64, 5)), (C(64, 1), same(96, 3), same(96, 3)), (Pooling.AVERAGE, C(64, 1))
    ),
)
"""Maps 299 × 299 pixels to 320 channels of 35 × 35."""
_REDUCTION_A = Branches(C(384, 3, stride=2), (C(256, 1), same(256, 3), C(384, 3, stride=2)), Pooling.HALVE)
"""Maps 320 channels of 35 × 35 to 1088 of 17 × 17."""
_REDUCTION_B = Branches(
    (C(256, 1), C(384, 3, stride=2)),
    (C(256, 1), C(288, 3, stride=2)),
    (C(256, 1), same(288, 3), C(320, 3, stride=2)),
    Pooling.HALVE,
)
"""Maps 1088 channels of 17 × 17 to 2080 of 8 × 8."""

_BRANCHES_8 = Branches(C(192, 1), (C(192, 1), same(224, 1, 3), same(256, 3, 1)))
_RESIDUAL_35 = Residual(
    Branches(C(32, 1), (C(32, 1), same(32, 3)), (C(32, 1), same(48, 3), same(64, 3))), 320, scale=0.17
)
_RESIDUAL_17 = Residual(
    Branches(C(192, 1), (C(129, 1), C(160, (1, 7), padding=(1, 2)), C(192, (7, 1), padding=(2, 1)))),
    1088,
    scale=0.1,
)
INCEPTION_RESNET_BLOCKS: Sequence[Layer] = (
    *(_RESIDUAL_35,) * 10,
    _REDUCTION_A,
    *(_RESIDUAL_17,) * 20,
    _REDUCTION_B,
    *(Residual(_BRANCHES_8, 2080, scale=0.2),) * 9,
    Residual(_BRANCHES_8, 2080, scale=1.0, activated=False),
    C(1536, 1),
)
"""Maps 320 channels of 35 × 35 to 1536 of 8 × 8."""


class GaussianLayer(NamedTuple):
    """A layer whose weights are drawn from a normal distribution around 0.

    ``deviation`` is their standard deviation; all biases begin as ``bias``.
    """

    deviation: float
    bias: float


BVLC_ALEXNET = (
    *(GaussianLayer(0.01, 0.0), GaussianLayer(0.01, 0.1), GaussianLayer(0.01, 0.0)),
    *(GaussianLayer(0.01, 0.1), GaussianLayer(0.01, 0.1)),
    *(GaussianLayer(0.005, 0.1), GaussianLayer(0.005, 0.1), GaussianLayer(0.01, 0.0)),
)
"""The five convolutions and three fully connected layers of Caffe's ``bvlc_alexnet/train_val.prototxt``.

The layers with nonzero biases are those of Krizhevsky et al. (2012), but with 0.1 instead of 1; DLBS uses
this for both AlexNets. The loss begins at the logarithm of the number of classes and stays there at first.
"""
