"""A network like LeNet for the 32 × 32 colour images of CIFAR-10."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize


class Cifar10LeNet(nn.Module):
    """Two convolutions with pooling and three fully connected layers; 62,006 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("cifar10_lenet",)

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, classes),
        )
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 32, 32), of any floating-point dtype."""
        logits: torch.Tensor = self.classifier(self.features(data).flatten(1))
        return logits
