"""What the Inception networks are made of: normalised convolutions, and branches joined by channel."""

from __future__ import annotations

import torch
from torch import nn

_EPSILON = 1e-3


class NormalizedConvolution(nn.Module):
    """A convolution and batch normalisation, without activation.

    Args:
        inputs: The channels of the input.
        outputs: The number of filters.
        kernel: Height and width of a filter, or its side.
        stride: Of the convolution.
        padding: Of height and width, or of both.
        bias: Whether the convolution has one; the normalisation takes it out again.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
        self.bn = nn.BatchNorm2d(outputs, eps=_EPSILON)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height', width')."""
        maps: torch.Tensor = self.bn(self.conv(data))
        return maps


class ActivatedConvolution(NormalizedConvolution):
    """A convolution, batch normalisation and ReLU."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height', width')."""
        return nn.functional.relu(super().forward(data), inplace=True)


class Branches(nn.ModuleList):
    """Modules that take the same input and whose outputs are joined by channel, in their order."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, the sum of the outputs, height', width')."""
        return torch.cat([branch(data) for branch in self], dim=1)
