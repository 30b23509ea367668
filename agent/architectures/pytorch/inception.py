"""Networks whose modules branch: GoogLeNet, Inception v3 and v4, and Inception-ResNet v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from inferometer.agent.architectures import layers as inception
from inferometer.agent.architectures.layers import C, Layer, Normalization, Pooling, Residual, Size, same
from inferometer.agent.architectures.pytorch.feed_forward import SingleLayerClassifier, initialize

_EPSILON = 1e-3


class NormalizedConvolution(nn.Module):
    """A convolution and batch normalization, which cancels any ``bias``, without an activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Size,
        stride: int = 1,
        padding: Size = 0,
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
    """A convolution, batch normalization and ReLU."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, outputs, height', width')."""
        return nn.functional.relu(super().forward(data), inplace=True)


class Branches(nn.ModuleList):
    """Modules that take the same input and whose outputs are joined by channel, in the modules' order."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, the branches' total channels, height', width')."""
        return torch.cat([branch(data) for branch in self], dim=1)


_POOLINGS: dict[Pooling, Callable[[], nn.Module]] = {
    Pooling.HALVE: lambda: nn.MaxPool2d(kernel_size=3, stride=2),
    Pooling.HALVE_UP: lambda: nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
    Pooling.MAXIMUM: lambda: nn.MaxPool2d(kernel_size=3, stride=1, padding=1),
    Pooling.AVERAGE: lambda: nn.AvgPool2d(kernel_size=3, stride=1, padding=1),
}


def build_layers(
    layers: Sequence[Layer], inputs: int, convolution: Callable[[int, int, Size, int, Size], nn.Module]
) -> tuple[list[nn.Module], int]:
    """Builds layers that run in sequence; the first takes ``inputs`` channels.

    ``convolution`` builds a convolution from: inputs, outputs, kernel, stride, padding. Returns the modules
    and the number of channels that the last one outputs.
    """
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, inception.Convolution):
            modules.append(convolution(inputs, layer.channels, layer.kernel, layer.stride, layer.padding))
            inputs = layer.channels
        elif isinstance(layer, inception.Branches):
            built = [build_layers(branch, inputs, convolution) for branch in layer.branches]
            modules.append(Branches([b[0] if len(b) == 1 else nn.Sequential(*b) for b, _ in built]))
            inputs = sum(outputs for _, outputs in built)
        elif isinstance(layer, Normalization):
            modules.append(nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0))
        elif isinstance(layer, Residual):
            modules.append(ResidualBranches(layer))
        else:
            modules.append(_POOLINGS[layer]())
    return modules, inputs


def _biased_convolution(inputs: int, outputs: int, kernel: Size, stride: int, padding: Size) -> nn.Module:
    """Returns a convolution with bias, followed by a ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU(inplace=True))


class GoogLeNet(SingleLayerClassifier):
    """BVLC's GoogLeNet (arXiv 1409.4842) without its auxiliary classifiers; 6,998,552 parameters.

    It has no batch normalization, and 5 × 5 convolutions as in the paper, so torchvision's state dict, which
    belongs to a different network, does not fit. Inputs are (batch, 3, 224, 224).
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        modules, outputs = build_layers(inception.GOOGLENET, 3, _biased_convolution)
        self.features = nn.Sequential(*modules, nn.AvgPool2d(kernel_size=7, stride=1))
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(outputs, classes)
        initialize(self)


class NamedBranches(nn.Module):
    """Branches whose outputs are joined by channel; their convolutions have torchvision's names.

    A branch's only convolution has the branch's name; several have that name and a number, from 1.
    """

    def __init__(self, inputs: int, **branches: Sequence[Layer]) -> None:
        super().__init__()
        self._branches: list[nn.Sequential] = []  # whose convolutions the names below register
        for name, layers in branches.items():
            modules, _ = build_layers(layers, inputs, ActivatedConvolution)
            convolutions = [module for module in modules if isinstance(module, ActivatedConvolution)]
            for number, convolution in enumerate(convolutions, 1):
                self.add_module(name if len(convolutions) == 1 else f"{name}_{number}", convolution)
            self._branches.append(nn.Sequential(*modules))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, inputs, height, width) to (batch, the branches' total channels, height', width')."""
        return torch.cat([branch(data) for branch in self._branches], dim=1)


def _inception_a(inputs: int, pooled: int) -> NamedBranches:
    """Branches of 1 × 1, 5 × 5 and two 3 × 3 convolutions, and a pooled branch of ``pooled`` channels."""
    return NamedBranches(
        inputs,
        branch1x1=[C(64, 1)],
        branch5x5=[C(48, 1), same(64, 5)],
        branch3x3dbl=[C(64, 1), same(96, 3), same(96, 3)],
        branch_pool=[Pooling.AVERAGE, C(pooled, 1)],
    )


def _inception_b(inputs: int) -> NamedBranches:
    """Halves height and width with three branches: 3 × 3, 3 × 3 twice, and max pooling."""
    return NamedBranches(
        inputs,
        branch3x3=[C(384, 3, stride=2)],
        branch3x3dbl=[C(64, 1), same(96, 3), C(96, 3, stride=2)],
        maximum=[Pooling.HALVE],
    )


def _inception_c(inputs: int, width: int) -> NamedBranches:
    """Branches of 1 × 1, one and two factored 7 × 7 convolutions of ``width`` channels, and a pooled one."""
    wide, high = same(width, 1, 7), same(width, 7, 1)
    return NamedBranches(
        inputs,
        branch1x1=[C(192, 1)],
        branch7x7=[C(width, 1), wide, same(192, 7, 1)],
        branch7x7dbl=[C(width, 1), high, wide, high, same(192, 1, 7)],
        branch_pool=[Pooling.AVERAGE, C(192, 1)],
    )


def _inception_d(inputs: int) -> NamedBranches:
    """Halves height and width: branches of 3 × 3, factored 7 × 7 followed by 3 × 3, and max pooling."""
    return NamedBranches(
        inputs,
        branch3x3=[C(192, 1), C(320, 3, stride=2)],
        branch7x7x3=[C(192, 1), same(192, 1, 7), same(192, 7, 1), C(192, 3, stride=2)],
        maximum=[Pooling.HALVE],
    )


class InceptionE(nn.Module):
    """Branches: 1 × 1, parallel factors of a 3 × 3, the same after another 3 × 3, and a pooled branch."""

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
    """Inception v3 (arXiv 1512.00567) without its auxiliary classifier; 23,834,568 trainable parameters.

    Layers and names are torchvision's, so its published state dict fits, except for its auxiliary classifier,
    which only training uses and which is omitted here. tf_cnn_benchmarks' network differs in one pooling: its
    last block uses the maximum, whereas the published weights require the average.
    """

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
        self.Mixed_5b = _inception_a(192, pooled=32)
        self.Mixed_5c = _inception_a(256, pooled=64)
        self.Mixed_5d = _inception_a(288, pooled=64)
        self.Mixed_6a = _inception_b(288)
        self.Mixed_6b = _inception_c(768, width=128)
        self.Mixed_6c = _inception_c(768, width=160)
        self.Mixed_6d = _inception_c(768, width=160)
        self.Mixed_6e = _inception_c(768, width=192)
        self.Mixed_7a = _inception_d(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(2048, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, classes) for images (batch, 3, 299, 299) of any floating-point dtype."""
        data = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(data)))
        data = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(data)))
        data = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.maxpool2(data))))
        data = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(data)))
        data = self.Mixed_6e(self.Mixed_6d(data))
        data = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(data)))
        logits: torch.Tensor = self.fc(self.dropout(self.avgpool(data).flatten(1)))
        return logits


class StemAndBlocks(SingleLayerClassifier):
    """Layers in two parts, pooling of their maps to a single pixel, and a classifier with dropout."""

    def __init__(
        self,
        stem: Sequence[Layer],
        blocks: Sequence[Layer],
        convolution: Callable[[int, int, Size, int, Size], nn.Module],
        *,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        first, channels = build_layers(stem, 3, convolution)
        others, channels = build_layers(blocks, channels, convolution)
        self.features = nn.Sequential(nn.Sequential(*first), *others, nn.AdaptiveAvgPool2d((1, 1)))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        initialize(self)


Inception4 = partial(
    StemAndBlocks, inception.INCEPTION4_STEM, inception.INCEPTION4_BLOCKS, ActivatedConvolution
)
"""Inception v4 (arXiv 1602.07261); 42,679,816 trainable parameters.

In each block the branches with the smallest convolutions come first and the pooled one last. Inputs are
(batch, 3, 299, 299).
"""

# the example's convolutions keep their bias before the normalization
_unit = partial(ActivatedConvolution, bias=True)


class ResidualBranches(nn.Module):
    """Projects the joined branches to the input's channels by 1 × 1, scales them and adds the input."""

    def __init__(self, layer: Residual) -> None:
        super().__init__()
        (self.branches,), joined = build_layers([layer.branches], layer.channels, _unit)
        self.projection = NormalizedConvolution(joined, layer.channels, 1, bias=True)
        self.activation = nn.ReLU(inplace=True) if layer.activated else nn.Identity()
        self._scale = layer.scale

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps (batch, channels, height, width) to a tensor of the same shape."""
        maps: torch.Tensor = self.activation(data + self._scale * self.projection(self.branches(data)))
        return maps


InceptionResNetV2 = partial(
    StemAndBlocks, inception.INCEPTION_RESNET_STEM, inception.INCEPTION_RESNET_BLOCKS, _unit
)
"""The Inception-ResNet v2 (arXiv 1602.07261) of MXNet's example, with a bias in every convolution.

Inputs are (batch, 3, 299, 299).
"""
