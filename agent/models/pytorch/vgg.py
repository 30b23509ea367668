"""VGG without batch normalisation (arXiv 1409.1556)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize

# The convolutions before each of the five poolings, by the number of layers with weights.
_CONVOLUTIONS: Mapping[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """VGG of 11, 13, 16 or 19 layers; 132,863,336 to 143,667,240 parameters.

    Layers and names are torchvision's, so that its published state dicts fit.

    Args:
        depth: The number of layers with weights.
        classes: The number of outputs.

    Raises:
        ValueError: There is no VGG of that depth.
    """

    implements: ClassVar[tuple[str, ...]] = tuple(f"vgg{depth}" for depth in _CONVOLUTIONS)

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        super().__init__()
        if depth not in _CONVOLUTIONS:
            raise ValueError(
                f"there is no VGG of {depth} layers; there are {', '.join(map(str, _CONVOLUTIONS))}"
            )
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in zip(_CHANNELS, _CONVOLUTIONS[depth], strict=True):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 224, 224), of any floating-point dtype."""
        logits: torch.Tensor = self.classifier(self.avgpool(self.features(data)).flatten(1))
        return logits
