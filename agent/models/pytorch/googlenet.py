"""GoogLeNet (arXiv 1409.4842) as BVLC's Caffe has it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.branches import Branches
from agent.models.pytorch.initialization import initialize


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution with bias, padded by half its kernel, and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2),
        nn.ReLU(inplace=True),
    )


def _inception(
    inputs: int, one: int, reduce_three: int, three: int, reduce_five: int, five: int, projected: int
) -> Branches:
    """The module of the paper's figure 2b: branches of 1 × 1, 3 × 3 and 5 × 5, and a pooled one."""
    return Branches(
        [
            _convolution(inputs, one, 1),
            nn.Sequential(_convolution(inputs, reduce_three, 1), _convolution(reduce_three, three, 3)),
            nn.Sequential(_convolution(inputs, reduce_five, 1), _convolution(reduce_five, five, 5)),
            nn.Sequential(
                nn.MaxPool2d(kernel_size=3, stride=1, padding=1), _convolution(inputs, projected, 1)
            ),
        ]
    )


def _pool() -> nn.MaxPool2d:
    # Caffe rounds the size of a pooled map up
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


class GoogLeNet(nn.Module):
    """BVLC's GoogLeNet without its auxiliary classifiers; 6,998,552 parameters.

    It has no batch normalisation, and 5 × 5 convolutions as in the paper, so torchvision's state dict,
    which is of another network, does not fit. The local response normalisation is Caffe's: k is 1.
    """

    implements: ClassVar[tuple[str, ...]] = ("googlenet",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, 64, 7, stride=2),
            _pool(),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            _convolution(64, 64, 1),
            _convolution(64, 192, 3),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            _pool(),
            _inception(192, 64, 96, 128, 16, 32, 32),
            _inception(256, 128, 128, 192, 32, 96, 64),
            _pool(),
            _inception(480, 192, 96, 208, 16, 48, 64),
            _inception(512, 160, 112, 224, 24, 64, 64),
            _inception(512, 128, 128, 256, 24, 64, 64),
            _inception(512, 112, 144, 288, 32, 64, 64),
            _inception(528, 256, 160, 320, 32, 128, 128),
            _pool(),
            _inception(832, 256, 160, 320, 32, 128, 128),
            _inception(832, 384, 192, 384, 48, 128, 128),
            nn.AvgPool2d(kernel_size=7, stride=1),
        )
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(1024, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 224, 224), of any floating-point dtype."""
        logits: torch.Tensor = self.fc(self.dropout(self.features(data).flatten(1)))
        return logits
