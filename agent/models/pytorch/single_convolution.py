"""One convolution as a model, to measure the operator with the tools for models."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize


class SingleConvolution(nn.Module):
    """A 3 × 3 convolution of 32 channels, padded by 1, without bias; 9,216 parameters.

    Args:
        classes: The number of its filters, which are the channels of the output.
    """

    implements: ClassVar[tuple[str, ...]] = ("single_convolution",)

    def __init__(self, *, classes: int = 32) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, classes, kernel_size=3, padding=1, bias=False)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns feature maps, (batch, classes, height, width), of (batch, 32, height, width)."""
        maps: torch.Tensor = self.convolution(data)
        return maps
