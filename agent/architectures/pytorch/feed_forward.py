"""Networks whose layers run in sequence: AlexNet, OverFeat, VGG, a LeNet, and fully connected networks.

Also draws the weights of networks, and builds modules without drawing their weights if a file replaces them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from inferometer.agent.architectures.layers import BVLC_ALEXNET, GaussianLayer


def undefined(build: Callable[[], Any]) -> torch.nn.Module:
    """Builds a module with undefined parameters, for ``load_state_dict`` to set.

    Drawing the parameters would take most of the load time: each layer draws its own, and then the
    architecture draws all of them again. Buffers are zero.
    """
    with torch.device("meta"):
        module: torch.nn.Module = build()
    # Module.to_empty would import torch's symbolic shapes: 0.7 s and 35 MiB
    for owner in module.modules():
        for name, drawn in list(owner.named_parameters(recurse=False)):
            undrawn = torch.empty(drawn.shape, dtype=drawn.dtype)
            setattr(owner, name, torch.nn.Parameter(undrawn, drawn.requires_grad))
        for name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
    return module


_CLASSIFIER_DEVIATION = 0.01
"""The deviation for the fully connected layers of VGG (arXiv 1409.1556; as in torchvision) and OverFeat."""


def initialize(network: nn.Module) -> None:
    """Draws the weights of convolutions and fully connected layers as He et al. do (arXiv 1502.01852).

    PyTorch's own default shrinks the activations in each layer. In deep networks, they become denormal
    numbers, with which a CPU computes several times more slowly than with those of a trained model, and the
    outputs no longer depend on the input. Biases and normalizations keep PyTorch's default.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")


def initialize_with_classifier(network: nn.Module) -> None:
    """Like ``initialize``, but draws fully connected layers from a narrow normal distribution.

    With thousands of features and no normalization, the loss would otherwise rise in the first steps.
    """
    initialize(network)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, _CLASSIFIER_DEVIATION)
            nn.init.zeros_(module.bias)


def draw_gaussian(network: nn.Module, layers: Sequence[GaussianLayer]) -> None:
    """Draws the weights of convolutions and fully connected layers, in order, as ``layers`` specifies."""
    modules = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    for module, layer in zip(modules, layers, strict=True):
        nn.init.normal_(module.weight, 0.0, layer.deviation)
        if module.bias is not None:
            nn.init.constant_(module.bias, layer.bias)


class FeedForward(nn.Module):
    """Features and a classifier that uses all of them; a subclass builds both, then calls ``initialize``."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits, of shape (batch, classes), for images of any floating-point dtype."""
        logits: torch.Tensor = self.classifier(self.features(data).flatten(1))
        return logits


class Pooled(FeedForward):
    """A ``FeedForward`` that pools the features to one size, as in torchvision."""

    avgpool: nn.Module

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits, of shape (batch, classes), for images of any floating-point dtype."""
        logits: torch.Tensor = self.classifier(self.avgpool(self.features(data)).flatten(1))
        return logits


class SingleLayerClassifier(nn.Module):
    """Features, dropout and one fully connected layer; a subclass builds them, then calls ``initialize``."""

    features: nn.Module
    dropout: nn.Module
    fc: nn.Module

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits, of shape (batch, classes), for images of any floating-point dtype."""
        logits: torch.Tensor = self.fc(self.dropout(self.features(data).flatten(1)))
        return logits


def _activated(
    inputs: int, outputs: int, kernel_size: int, stride: int = 1, padding: int = 0
) -> list[nn.Module]:
    """Returns a convolution with bias, followed by a ReLU."""
    return [nn.Conv2d(inputs, outputs, kernel_size, stride, padding), nn.ReLU(inplace=True)]


def _maximum(size: int) -> nn.Module:
    """Returns a pooling layer that halves height and width."""
    return nn.MaxPool2d(kernel_size=size, stride=2)


def _classifier(*widths: int, dropout: bool = True) -> nn.Sequential:
    """Returns fully connected layers with ReLU and dropout; the first of ``widths`` is the input's width."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), *([nn.Dropout()] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


class DigitsCNN(nn.Module):
    """Two convolutions with pooling and two fully connected layers; 38,282 parameters.

    MXNet's and ONNX Runtime's graphs of DigitsCNN have the same layers, under the same names.
    """

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the digit logits (batch, classes) for grey images of shape (batch, 1, 16, 16)."""
        data = nn.functional.max_pool2d(torch.relu(self.conv1(data)), 2)
        data = nn.functional.max_pool2d(torch.relu(self.conv2(data)), 2)
        data = torch.relu(self.fc1(data.flatten(1)))
        logits: torch.Tensor = self.fc2(data)
        return logits


class AlexNet(FeedForward):
    """BVLC's AlexNet without grouped convolutions (``group=1``); 62,378,344 parameters.

    The local response normalization is Caffe's: 5 channels, alpha 1e-4, beta 0.75 and k 1. Inputs are
    (batch, 3, 227, 227).
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_activated(3, 96, 11, stride=4),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            _maximum(3),
            *_activated(96, 256, 5, padding=2),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            _maximum(3),
            *_activated(256, 384, 3, padding=1),
            *_activated(384, 384, 3, padding=1),
            *_activated(384, 256, 3, padding=1),
            _maximum(3),
        )
        self.classifier = _classifier(256 * 6 * 6, 4096, 4096, classes)
        draw_gaussian(self, BVLC_ALEXNET)


class AlexNetOWT(Pooled):
    """The AlexNet of "One weird trick" (arXiv 1404.5997); 61,100,840 parameters.

    Layers and names are torchvision's, so torchvision's published state dict fits. The pooling before the
    classifier gives 6 × 6 for images with a side of 224 or 227 pixels.
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_activated(3, 64, 11, stride=4, padding=2),
            _maximum(3),
            *_activated(64, 192, 5, padding=2),
            _maximum(3),
            *_activated(192, 384, 3, padding=1),
            *_activated(384, 256, 3, padding=1),
            *_activated(256, 256, 3, padding=1),
            _maximum(3),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        # dropout comes first here, as in torchvision; the numbers in the state dict's keys count it
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )
        draw_gaussian(self, BVLC_ALEXNET)


class OverFeat(FeedForward):
    """The fast OverFeat (arXiv 1312.6229); 145,920,872 parameters. Inputs are (batch, 3, 231, 231)."""

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_activated(3, 96, 11, stride=4),
            _maximum(2),
            *_activated(96, 256, 5),
            _maximum(2),
            *_activated(256, 512, 3, padding=1),
            *_activated(512, 1024, 3, padding=1),
            *_activated(1024, 1024, 3, padding=1),
            _maximum(2),
        )
        self.classifier = _classifier(1024 * 6 * 6, 3072, 4096, classes)
        initialize_with_classifier(self)


class Cifar10LeNet(FeedForward):
    """A LeNet for the images of CIFAR-10; 62,006 parameters. Inputs are (batch, 3, 32, 32)."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(*_activated(3, 6, 5), _maximum(2), *_activated(6, 16, 5), _maximum(2))
        self.classifier = _classifier(16 * 5 * 5, 120, 84, classes, dropout=False)
        initialize(self)


# The convolutions before each of the five poolings, by the number of layers with weights.
_VGG: Mapping[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


class VGG(Pooled):
    """VGG without batch normalization (arXiv 1409.1556); 132,863,336 to 143,667,240 parameters.

    Layers and names are torchvision's, so torchvision's published state dicts fit. Inputs are (batch, 3, 224,
    224). A ``depth`` other than 11, 13, 16 or 19 raises ValueError.
    """

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        super().__init__()
        if depth not in _VGG:
            raise ValueError(f"there is no VGG with {depth} layers, only with {', '.join(map(str, _VGG))}")
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in zip((64, 128, 256, 512, 512), _VGG[depth], strict=True):
            for _ in range(convolutions):
                layers += _activated(channels, width, 3, padding=1)
                channels = width
            layers.append(_maximum(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = _classifier(512 * 7 * 7, 4096, 4096, classes)
        initialize_with_classifier(self)


class FullyConnected(nn.Module):
    """Hidden layers of ReLU units and an output layer; ``widths`` begins with the length of an input."""

    def __init__(self, *widths: int, classes: int) -> None:
        super().__init__()
        self.layers = _classifier(*widths, classes, dropout=False)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits (batch, classes) for inputs (batch, features) or images of as many values."""
        logits: torch.Tensor = self.layers(data.flatten(1))
        return logits


AcousticModel = partial(FullyConnected, 540, 2048, 2048, 2048, 2048, 2048, classes=8192)
"""Scores the states of a hybrid speech recognizer from 540 features; 34,678,784 parameters."""
DeepMNIST = partial(FullyConnected, 784, 2500, 2000, 1500, 1000, 500, classes=10)
"""Reads handwritten digits of 28 × 28 pixels (arXiv 1003.0358, with ReLU); 11,972,510 parameters."""
SensorNet = partial(FullyConnected, 784, 1024, 1024, 1024, classes=16)
"""Classifies 784 sensor readings; 2,919,440 parameters."""


class SingleConvolution(nn.Module):
    """A 3 × 3 convolution of 32 channels, padded by 1, without bias; 9,216 parameters.

    It serves to measure the operator with the tools for models. Its classes are the output channels.
    """

    def __init__(self, *, classes: int = 32) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, classes, kernel_size=3, padding=1, bias=False)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns feature maps, (batch, classes, height, width), for inputs (batch, 32, height, width)."""
        maps: torch.Tensor = self.convolution(data)
        return maps
