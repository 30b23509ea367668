"""Inception v3 (arXiv 1512.00567)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, max_pool2d

from agent.models.pytorch.branches import ActivatedConvolution
from agent.models.pytorch.initialization import initialize


class InceptionA(nn.Module):
    """Branches of 1 × 1, 5 × 5 and two 3 × 3, and an averaged one of ``pooled`` channels."""

    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = ActivatedConvolution(inputs, 64, 1)
        self.branch5x5_1 = ActivatedConvolution(inputs, 48, 1)
        self.branch5x5_2 = ActivatedConvolution(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = ActivatedConvolution(inputs, 64, 1)
        self.branch3x3dbl_2 = ActivatedConvolution(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = ActivatedConvolution(96, 96, 3, padding=1)
        self.branch_pool = ActivatedConvolution(inputs, pooled, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, 224 + pooled, height, width)."""
        branches = [
            self.branch1x1(data),
            self.branch5x5_2(self.branch5x5_1(data)),
            self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(data))),
            self.branch_pool(avg_pool2d(data, kernel_size=3, stride=1, padding=1)),
        ]
        return torch.cat(branches, dim=1)


class InceptionB(nn.Module):
    """Halves height and width: a 3 × 3 branch, one of two 3 × 3, and the maximum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = ActivatedConvolution(inputs, 384, 3, stride=2)
        self.branch3x3dbl_1 = ActivatedConvolution(inputs, 64, 1)
        self.branch3x3dbl_2 = ActivatedConvolution(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = ActivatedConvolution(96, 96, 3, stride=2)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, 480 + inputs, height / 2, width / 2)."""
        branches = [
            self.branch3x3(data),
            self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(data))),
            max_pool2d(data, kernel_size=3, stride=2),
        ]
        return torch.cat(branches, dim=1)


class InceptionC(nn.Module):
    """Branches of 1 × 1, of one and two 7 × 7 in two factors of ``width`` channels, and an averaged one."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branch1x1 = ActivatedConvolution(inputs, 192, 1)
        self.branch7x7_1 = ActivatedConvolution(inputs, width, 1)
        self.branch7x7_2 = ActivatedConvolution(width, width, (1, 7), padding=(0, 3))
        self.branch7x7_3 = ActivatedConvolution(width, 192, (7, 1), padding=(3, 0))
        self.branch7x7dbl_1 = ActivatedConvolution(inputs, width, 1)
        self.branch7x7dbl_2 = ActivatedConvolution(width, width, (7, 1), padding=(3, 0))
        self.branch7x7dbl_3 = ActivatedConvolution(width, width, (1, 7), padding=(0, 3))
        self.branch7x7dbl_4 = ActivatedConvolution(width, width, (7, 1), padding=(3, 0))
        self.branch7x7dbl_5 = ActivatedConvolution(width, 192, (1, 7), padding=(0, 3))
        self.branch_pool = ActivatedConvolution(inputs, 192, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, 768, height, width)."""
        twice = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(data)))
        branches = [
            self.branch1x1(data),
            self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(data))),
            self.branch7x7dbl_5(self.branch7x7dbl_4(twice)),
            self.branch_pool(avg_pool2d(data, kernel_size=3, stride=1, padding=1)),
        ]
        return torch.cat(branches, dim=1)


class InceptionD(nn.Module):
    """Halves height and width: a 3 × 3 branch, one of 7 × 7 in two factors and 3 × 3, and the maximum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3_1 = ActivatedConvolution(inputs, 192, 1)
        self.branch3x3_2 = ActivatedConvolution(192, 320, 3, stride=2)
        self.branch7x7x3_1 = ActivatedConvolution(inputs, 192, 1)
        self.branch7x7x3_2 = ActivatedConvolution(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = ActivatedConvolution(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = ActivatedConvolution(192, 192, 3, stride=2)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, 512 + inputs, height / 2, width / 2)."""
        factors = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(data)))
        branches = [
            self.branch3x3_2(self.branch3x3_1(data)),
            self.branch7x7x3_4(factors),
            max_pool2d(data, kernel_size=3, stride=2),
        ]
        return torch.cat(branches, dim=1)


class InceptionE(nn.Module):
    """Branches of 1 × 1, of 3 × 3 in two factors side by side, of that after 3 × 3, and an averaged one."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = ActivatedConvolution(inputs, 320, 1)
        self.branch3x3_1 = ActivatedConvolution(inputs, 384, 1)
        self.branch3x3_2a = ActivatedConvolution(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = ActivatedConvolution(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = ActivatedConvolution(inputs, 448, 1)
        self.branch3x3dbl_2 = ActivatedConvolution(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = ActivatedConvolution(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = ActivatedConvolution(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = ActivatedConvolution(inputs, 192, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, 2048, height, width)."""
        once = self.branch3x3_1(data)
        twice = self.branch3x3dbl_2(self.branch3x3dbl_1(data))
        branches = [
            self.branch1x1(data),
            self.branch3x3_2a(once),
            self.branch3x3_2b(once),
            self.branch3x3dbl_3a(twice),
            self.branch3x3dbl_3b(twice),
            self.branch_pool(avg_pool2d(data, kernel_size=3, stride=1, padding=1)),
        ]
        return torch.cat(branches, dim=1)


class Inception3(nn.Module):
    """Inception v3 without its auxiliary classifier; 23,834,568 trainable parameters.

    Layers and names are torchvision's, so that its published state dict fits, except for the auxiliary
    classifier in it, which only training uses and which is left out here. tf_cnn_benchmarks' network differs
    in one pooling: its last block takes the maximum, where the published weights belong to the average.
    """

    implements: ClassVar[tuple[str, ...]] = ("inception3",)
    ignored_weights: ClassVar[tuple[str, ...]] = ("AuxLogits.",)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = ActivatedConvolution(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = ActivatedConvolution(32, 32, 3)
        self.Conv2d_2b_3x3 = ActivatedConvolution(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Conv2d_3b_1x1 = ActivatedConvolution(64, 80, 1)
        self.Conv2d_4a_3x3 = ActivatedConvolution(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Mixed_5b = InceptionA(192, pooled=32)
        self.Mixed_5c = InceptionA(256, pooled=64)
        self.Mixed_5d = InceptionA(288, pooled=64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, width=128)
        self.Mixed_6c = InceptionC(768, width=160)
        self.Mixed_6d = InceptionC(768, width=160)
        self.Mixed_6e = InceptionC(768, width=192)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(2048, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, classes), of images, (batch, 3, 299, 299), of any floating-point dtype."""
        data = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(data)))
        data = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(data)))
        data = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.maxpool2(data))))
        data = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(data)))
        data = self.Mixed_6e(self.Mixed_6d(data))
        data = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(data)))
        logits: torch.Tensor = self.fc(self.dropout(self.avgpool(data).flatten(1)))
        return logits
