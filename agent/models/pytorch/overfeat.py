"""OverFeat, the fast network of arXiv 1312.6229."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize


class OverFeat(nn.Module):
    """Five convolutions and three fully connected layers with dropout; 145,920,872 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("overfeat",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, kernel_size=11, stride=4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(96, 256, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(256, 512, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(512, 1024, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(1024, 1024, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(1024 * 6 * 6, 3072),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(3072, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 231, 231), of any floating-point dtype."""
        logits: torch.Tensor = self.classifier(self.features(data).flatten(1))
        return logits
