"""Inception-ResNet v2 (arXiv 1602.07261) as the MXNet example has it."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.branches import ActivatedConvolution, Branches, NormalizedConvolution
from agent.models.pytorch.initialization import initialize

# the example's convolutions keep their bias before the normalisation
_convolution = partial(ActivatedConvolution, bias=True)


class ResidualBranches(nn.Module):
    """Adds to the input its joined branches, projected back to its channels by 1 × 1 and scaled.

    Args:
        branches: The branches.
        joined: The sum of their channels.
        channels: The channels of the input and of the output.
        scale: What the projection is multiplied by.
        activated: Whether ReLU follows the addition.
    """

    def __init__(
        self, branches: Branches, joined: int, channels: int, *, scale: float, activated: bool = True
    ) -> None:
        super().__init__()
        self.branches = branches
        self.projection = NormalizedConvolution(joined, channels, 1, bias=True)
        self.activation = nn.ReLU(inplace=True) if activated else nn.Identity()
        self._scale = scale

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, channels, height, width) to the same shape."""
        maps: torch.Tensor = self.activation(data + self._scale * self.projection(self.branches(data)))
        return maps


def _stem() -> nn.Sequential:
    """From 3 to 320 channels, and from a side of 299 to 35."""
    return nn.Sequential(
        _convolution(3, 32, 3, stride=2),
        _convolution(32, 32, 3),
        _convolution(32, 64, 3, padding=1),
        nn.MaxPool2d(kernel_size=3, stride=2),
        _convolution(64, 80, 1),
        _convolution(80, 192, 3),
        nn.MaxPool2d(kernel_size=3, stride=2),
        Branches(
            [
                _convolution(192, 96, 1),
                nn.Sequential(_convolution(192, 48, 1), _convolution(48, 64, 5, padding=2)),
                nn.Sequential(
                    _convolution(192, 64, 1),
                    _convolution(64, 96, 3, padding=1),
                    _convolution(96, 96, 3, padding=1),
                ),
                nn.Sequential(nn.AvgPool2d(kernel_size=3, stride=1, padding=1), _convolution(192, 64, 1)),
            ]
        ),
    )


def _block35() -> ResidualBranches:
    branches = Branches(
        [
            _convolution(320, 32, 1),
            nn.Sequential(_convolution(320, 32, 1), _convolution(32, 32, 3, padding=1)),
            nn.Sequential(
                _convolution(320, 32, 1),
                _convolution(32, 48, 3, padding=1),
                _convolution(48, 64, 3, padding=1),
            ),
        ]
    )
    return ResidualBranches(branches, 128, 320, scale=0.17)


def _reduction_a() -> Branches:
    """320 channels to 1088, at half the side."""
    return Branches(
        [
            _convolution(320, 384, 3, stride=2),
            nn.Sequential(
                _convolution(320, 256, 1),
                _convolution(256, 256, 3, padding=1),
                _convolution(256, 384, 3, stride=2),
            ),
            nn.MaxPool2d(kernel_size=3, stride=2),
        ]
    )


def _block17() -> ResidualBranches:
    """The block with the example's 129 filters (the paper has 128) and its paddings.

    They grow the map by 2 in one direction and shrink it again, where 0 and 3 would keep its size.
    """
    branches = Branches(
        [
            _convolution(1088, 192, 1),
            nn.Sequential(
                _convolution(1088, 129, 1),
                _convolution(129, 160, (1, 7), padding=(1, 2)),
                _convolution(160, 192, (7, 1), padding=(2, 1)),
            ),
        ]
    )
    return ResidualBranches(branches, 384, 1088, scale=0.1)


def _reduction_b() -> Branches:
    """1088 channels to 2080, at half the side."""
    return Branches(
        [
            nn.Sequential(_convolution(1088, 256, 1), _convolution(256, 384, 3, stride=2)),
            nn.Sequential(_convolution(1088, 256, 1), _convolution(256, 288, 3, stride=2)),
            nn.Sequential(
                _convolution(1088, 256, 1),
                _convolution(256, 288, 3, padding=1),
                _convolution(288, 320, 3, stride=2),
            ),
            nn.MaxPool2d(kernel_size=3, stride=2),
        ]
    )


def _block8(*, scale: float, activated: bool) -> ResidualBranches:
    branches = Branches(
        [
            _convolution(2080, 192, 1),
            nn.Sequential(
                _convolution(2080, 192, 1),
                _convolution(192, 224, (1, 3), padding=(0, 1)),
                _convolution(224, 256, (3, 1), padding=(1, 0)),
            ),
        ]
    )
    return ResidualBranches(branches, 448, 2080, scale=scale, activated=activated)


class InceptionResNetV2(nn.Module):
    """Inception-ResNet v2 of the MXNet example, with a bias in every convolution."""

    implements: ClassVar[tuple[str, ...]] = ("inception_resnet_v2",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _stem(),
            *(_block35() for _ in range(10)),
            _reduction_a(),
            *(_block17() for _ in range(20)),
            _reduction_b(),
            *(_block8(scale=0.2, activated=True) for _ in range(9)),
            _block8(scale=1.0, activated=False),
            _convolution(2080, 1536, 1),
            nn.AdaptiveAvgPool2d((1, 1)),
        )
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1536, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 299, 299), of any floating-point dtype."""
        logits: torch.Tensor = self.fc(self.dropout(self.features(data).flatten(1)))
        return logits
