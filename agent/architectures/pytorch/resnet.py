"""Residual networks (arXiv 1512.03385), with the activation after each addition."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inferometer.agent.architectures.pytorch.feed_forward import initialize
from inferometer.agent.architectures.sources import resnet_stages

# With random weights each block would else double the variance: 2^89 in ResNet269, which float16 cannot hold.
_RESIDUAL_SCALE = 0.2


class ResidualBlock(nn.Module):
    """Convolutions with normalization, and a shortcut: the input, projected if the shape changes.

    The output has ``expansion`` times ``width`` channels. The stride is that of the first 3 × 3 convolution,
    as in torchvision, not of the first 1 × 1 convolution as in the paper.
    """

    expansion: ClassVar[int]
    kernels: ClassVar[tuple[int, ...]]

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self._layers: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []  # which the names below register
        widths = (inputs, *[width] * (len(self.kernels) - 1), outputs)
        for place, kernel in enumerate(self.kernels):
            step = stride if place == self.kernels.index(3) else 1
            convolution = nn.Conv2d(
                widths[place], widths[place + 1], kernel, step, padding=kernel // 2, bias=False
            )
            normalization = nn.BatchNorm2d(widths[place + 1])
            self.add_module(f"conv{place + 1}", convolution)
            self.add_module(f"bn{place + 1}", normalization)
            self._layers.append((convolution, normalization))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def dampen(self) -> None:
        """Scales the random residual down relative to the shortcut."""
        nn.init.constant_(self._layers[-1][1].weight, _RESIDUAL_SCALE)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        *others, (last, normalization) = self._layers
        residual = data
        for convolution, normalize in others:
            residual = self.relu(normalize(convolution(residual)))
        residual = normalization(last(residual))
        activation: torch.Tensor = self.relu(residual + self.downsample(data))
        return activation


class BasicBlock(ResidualBlock):
    """Two 3 × 3 convolutions and a shortcut."""

    expansion = 1
    kernels = (3, 3)


class Bottleneck(ResidualBlock):
    """A 3 × 3 convolution between two 1 × 1 convolutions, and a shortcut."""

    expansion = 4
    kernels = (1, 3, 1)


class ResNet(nn.Module):
    """A residual network of 18 to 269 layers.

    Layers and names are torchvision's, so torchvision's published state dicts fit. ResNet200 and ResNet269,
    which torchvision does not have, follow the same pattern. An unknown ``depth`` raises ValueError.
    """

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        super().__init__()
        counts, bottlenecks = resnet_stages(depth)
        block = Bottleneck if bottlenecks else BasicBlock
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, counts[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, counts[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, counts[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, counts[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        initialize(self)
        for module in self.modules():
            if isinstance(module, ResidualBlock):
                module.dampen()

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, classes) for images (batch, 3, 224, 224) of any floating-point dtype."""
        data = self.maxpool(self.relu(self.bn1(self.conv1(data))))
        data = self.layer4(self.layer3(self.layer2(self.layer1(data))))
        logits: torch.Tensor = self.fc(self.avgpool(data).flatten(1))
        return logits


def _stage(block: type[ResidualBlock], inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    """Returns the blocks of one stage, of which the first has the stride."""
    outputs = width * block.expansion
    rest = (block(outputs, width, stride=1) for _ in range(count - 1))
    return nn.Sequential(block(inputs, width, stride), *rest)
