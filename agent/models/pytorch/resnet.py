"""Residual networks (arXiv 1512.03385), with the activation after the addition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize

# The blocks of each of the four stages, by the number of layers with weights.
_BLOCKS: Mapping[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}
_SMALLEST_BOTTLENECK_DEPTH = 50
# With random weights each block would else double the variance: 2^89 in ResNet269, which float16 cannot hold.
_RESIDUAL_SCALE = 0.2


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """What is added to a block's result: its input, projected where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and the shortcut; it gives ``width`` channels."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def dampen(self) -> None:
        """Makes the random residual small beside the shortcut."""
        nn.init.constant_(self.bn2.weight, _RESIDUAL_SCALE)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        residual = self.relu(self.bn1(self.conv1(data)))
        residual = self.bn2(self.conv2(residual))
        activation: torch.Tensor = self.relu(residual + self.downsample(data))
        return activation


class Bottleneck(nn.Module):
    """A 3 × 3 convolution between two of 1 × 1, and the shortcut; it gives four times ``width`` channels.

    The 3 × 3 convolution has the stride, as in torchvision, not the first 1 × 1 as in the paper.
    """

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def dampen(self) -> None:
        """Makes the random residual small beside the shortcut."""
        nn.init.constant_(self.bn3.weight, _RESIDUAL_SCALE)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        residual = self.relu(self.bn1(self.conv1(data)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        activation: torch.Tensor = self.relu(residual + self.downsample(data))
        return activation


class ResNet(nn.Module):
    """A residual network of 18 to 269 layers.

    Layers and names are torchvision's, so that its published state dicts fit. ResNet200 and ResNet269,
    which torchvision does not have, go on in the same way.

    Args:
        depth: The number of layers with weights.
        classes: The number of outputs.

    Raises:
        ValueError: There is no ResNet of that depth.
    """

    implements: ClassVar[tuple[str, ...]] = tuple(f"resnet{depth}" for depth in _BLOCKS)

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(
                f"there is no ResNet of {depth} layers; there are {', '.join(map(str, _BLOCKS))}"
            )
        block = Bottleneck if depth >= _SMALLEST_BOTTLENECK_DEPTH else BasicBlock
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        counts = _BLOCKS[depth]
        self.layer1 = _stage(block, 64, 64, counts[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, counts[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, counts[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, counts[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        initialize(self)
        for module in self.modules():
            if isinstance(module, BasicBlock | Bottleneck):
                module.dampen()

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 224, 224), of any floating-point dtype."""
        data = self.maxpool(self.relu(self.bn1(self.conv1(data))))
        data = self.layer4(self.layer3(self.layer2(self.layer1(data))))
        logits: torch.Tensor = self.fc(self.avgpool(data).flatten(1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, count: int, stride: int
) -> nn.Sequential:
    """The blocks of one stage, of which the first has the stride."""
    outputs = width * block.expansion
    rest = (block(outputs, width, stride=1) for _ in range(count - 1))
    return nn.Sequential(block(inputs, width, stride), *rest)
