"""Inception v4 (arXiv 1602.07261)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.branches import ActivatedConvolution as Convolution
from agent.models.pytorch.branches import Branches
from agent.models.pytorch.initialization import initialize


def _average() -> nn.AvgPool2d:
    return nn.AvgPool2d(kernel_size=3, stride=1, padding=1)


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2)


def _stem() -> nn.Sequential:
    """From 3 to 384 channels, and from a side of 299 to 35 (figure 3)."""
    return nn.Sequential(
        Convolution(3, 32, 3, stride=2),
        Convolution(32, 32, 3),
        Convolution(32, 64, 3, padding=1),
        Branches([Convolution(64, 96, 3, stride=2), _halve()]),
        Branches(
            [
                nn.Sequential(Convolution(160, 64, 1), Convolution(64, 96, 3)),
                nn.Sequential(
                    Convolution(160, 64, 1),
                    Convolution(64, 64, (1, 7), padding=(0, 3)),
                    Convolution(64, 64, (7, 1), padding=(3, 0)),
                    Convolution(64, 96, 3),
                ),
            ]
        ),
        Branches([Convolution(192, 192, 3, stride=2), _halve()]),
    )


def _block_a() -> Branches:
    """384 channels to as many (figure 4)."""
    return Branches(
        [
            Convolution(384, 96, 1),
            nn.Sequential(Convolution(384, 64, 1), Convolution(64, 96, 3, padding=1)),
            nn.Sequential(
                Convolution(384, 64, 1),
                Convolution(64, 96, 3, padding=1),
                Convolution(96, 96, 3, padding=1),
            ),
            nn.Sequential(_average(), Convolution(384, 96, 1)),
        ]
    )


def _reduction_a() -> Branches:
    """384 channels to 1024, at half the side (figure 7)."""
    return Branches(
        [
            Convolution(384, 384, 3, stride=2),
            nn.Sequential(
                Convolution(384, 192, 1),
                Convolution(192, 224, 3, padding=1),
                Convolution(224, 256, 3, stride=2),
            ),
            _halve(),
        ]
    )


def _block_b() -> Branches:
    """1024 channels to as many (figure 5)."""
    return Branches(
        [
            Convolution(1024, 384, 1),
            nn.Sequential(
                Convolution(1024, 192, 1),
                Convolution(192, 224, (1, 7), padding=(0, 3)),
                Convolution(224, 256, (7, 1), padding=(3, 0)),
            ),
            nn.Sequential(
                Convolution(1024, 192, 1),
                Convolution(192, 192, (7, 1), padding=(3, 0)),
                Convolution(192, 224, (1, 7), padding=(0, 3)),
                Convolution(224, 224, (7, 1), padding=(3, 0)),
                Convolution(224, 256, (1, 7), padding=(0, 3)),
            ),
            nn.Sequential(_average(), Convolution(1024, 128, 1)),
        ]
    )


def _reduction_b() -> Branches:
    """1024 channels to 1536, at half the side (figure 8)."""
    return Branches(
        [
            nn.Sequential(Convolution(1024, 192, 1), Convolution(192, 192, 3, stride=2)),
            nn.Sequential(
                Convolution(1024, 256, 1),
                Convolution(256, 256, (1, 7), padding=(0, 3)),
                Convolution(256, 320, (7, 1), padding=(3, 0)),
                Convolution(320, 320, 3, stride=2),
            ),
            _halve(),
        ]
    )


def _factors(inputs: int) -> Branches:
    """The two factors of a 3 × 3 convolution, side by side."""
    return Branches(
        [
            Convolution(inputs, 256, (1, 3), padding=(0, 1)),
            Convolution(inputs, 256, (3, 1), padding=(1, 0)),
        ]
    )


def _block_c() -> Branches:
    """1536 channels to as many (figure 6)."""
    return Branches(
        [
            Convolution(1536, 256, 1),
            nn.Sequential(Convolution(1536, 384, 1), _factors(384)),
            nn.Sequential(
                Convolution(1536, 384, 1),
                Convolution(384, 448, (3, 1), padding=(1, 0)),
                Convolution(448, 512, (1, 3), padding=(0, 1)),
                _factors(512),
            ),
            nn.Sequential(_average(), Convolution(1536, 256, 1)),
        ]
    )


class Inception4(nn.Module):
    """Inception v4; 42,679,816 trainable parameters.

    In each block the branches with the smallest convolutions come first and the pooled one last.
    """

    implements: ClassVar[tuple[str, ...]] = ("inception4",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _stem(),
            *(_block_a() for _ in range(4)),
            _reduction_a(),
            *(_block_b() for _ in range(7)),
            _reduction_b(),
            *(_block_c() for _ in range(3)),
            nn.AdaptiveAvgPool2d((1, 1)),
        )
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1536, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 299, 299), of any floating-point dtype."""
        logits: torch.Tensor = self.fc(self.dropout(self.features(data).flatten(1)))
        return logits
