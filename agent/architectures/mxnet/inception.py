"""Networks whose modules branch: GoogLeNet, Inception v3 and v4, and Inception-ResNet v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from inferometer.agent.architectures import layers as inception
from inferometer.agent.architectures.layers import (
    Branches,
    Convolution,
    Layer,
    Normalization,
    Pooling,
    Residual,
)
from inferometer.agent.architectures.mxnet.feed_forward import FeedForward, LocalResponseNorm

_EPSILON = 1e-3
_POOLINGS: dict[Pooling, Callable[[], Any]] = {
    Pooling.HALVE: lambda: nn.MaxPool2D(3, 2),
    Pooling.HALVE_UP: lambda: nn.MaxPool2D(3, 2, ceil_mode=True),
    Pooling.MAXIMUM: lambda: nn.MaxPool2D(3, 1, padding=1),
    Pooling.AVERAGE: lambda: nn.AvgPool2D(3, 1, padding=1),
}


def normalized_convolution(layer: Convolution, *, bias: bool = False, activated: bool = True) -> Any:
    """Returns a convolution, batch normalization (which cancels a ``bias``) and, if ``activated``, a ReLU."""
    unit = nn.HybridSequential(prefix="")
    unit.add(nn.Conv2D(layer.channels, layer.kernel, layer.stride, layer.padding, use_bias=bias))
    unit.add(nn.BatchNorm(epsilon=_EPSILON))
    if activated:
        unit.add(nn.Activation("relu"))
    return unit


def build_layers(layers: Sequence[Layer], convolution: Callable[[Convolution], Any]) -> list[Any]:
    """Builds layers that run in sequence, using ``convolution`` to build each convolution."""
    blocks = []
    for layer in layers:
        if isinstance(layer, Convolution):
            blocks.append(convolution(layer))
        elif isinstance(layer, Branches):
            module = gluon.contrib.nn.HybridConcurrent(axis=1, prefix="")
            module.add(*[_branch(build_layers(branch, convolution)) for branch in layer.branches])
            blocks.append(module)
        elif isinstance(layer, Normalization):
            blocks.append(LocalResponseNorm())
        elif isinstance(layer, Residual):
            blocks.append(ResidualModule(layer))
        else:
            blocks.append(_POOLINGS[layer]())
    return blocks


def _branch(blocks: Sequence[Any]) -> Any:
    """Returns a single block that runs the given blocks in sequence."""
    if len(blocks) == 1:
        return blocks[0]
    sequence = nn.HybridSequential(prefix="")
    sequence.add(*blocks)
    return sequence


def _biased_convolution(layer: Convolution) -> Any:
    return nn.Conv2D(layer.channels, layer.kernel, layer.stride, layer.padding, activation="relu")


def _classifier(classes: int, dropout: float) -> list[Any]:
    """Returns the head of a network: the average of each channel, dropout and a fully connected layer."""
    return [nn.GlobalAvgPool2D(), nn.Dropout(dropout), nn.Dense(classes)]


class GoogLeNet(FeedForward):
    """The BVLC network of Szegedy et al., 2014 (arXiv 1409.4842); 6,998,552 parameters.

    Convolutions have a bias and no batch normalization, and there are no auxiliary classifiers. Inputs are
    (batch, 3, 224, 224).
    """

    def _make_layers(self, *, classes: int = 1000) -> list[Any]:
        return [*build_layers(inception.GOOGLENET, _biased_convolution), *_classifier(classes, 0.4)]


class Inception3(vision.Inception3):
    """The network of Szegedy et al., 2015 (arXiv 1512.00567); 23,834,568 trainable parameters.

    It is Gluon's model-zoo version, without the auxiliary classifier. Inputs are (batch, 3, 299, 299).
    """


class Inception4(FeedForward):
    """The network of Szegedy et al., 2016 (arXiv 1602.07261); 42,679,816 trainable parameters.

    Inputs are (batch, 3, 299, 299).
    """

    def _make_layers(self, *, classes: int = 1000) -> list[Any]:
        layers = (*inception.INCEPTION4_STEM, *inception.INCEPTION4_BLOCKS)
        return [*build_layers(layers, normalized_convolution), *_classifier(classes, 0.2)]


# the example's convolutions keep their bias before the normalization
_unit = partial(normalized_convolution, bias=True)


class InceptionResNetV2(FeedForward):
    """The network of Szegedy et al., 2016 (arXiv 1602.07261); 56,009,476 trainable parameters.

    Inputs are (batch, 3, 299, 299).
    """

    def _make_layers(self, *, classes: int = 1000) -> list[Any]:
        layers = (*inception.INCEPTION_RESNET_STEM, *inception.INCEPTION_RESNET_BLOCKS)
        return [*build_layers(layers, _unit), *_classifier(classes, 0.2)]


class ResidualModule(gluon.HybridBlock):
    """Maps the joined branches by a 1 × 1 convolution, scales the result and adds it to the input."""

    def __init__(self, layer: Residual) -> None:
        super().__init__(prefix="")
        self._scale = layer.scale
        self._activated = layer.activated
        (self.branches,) = build_layers([layer.branches], _unit)
        self.mixture = _unit(Convolution(layer.channels, 1), activated=False)

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns a tensor of the same shape as the input, (batch, channels, height, width)."""
        total = data + self._scale * self.mixture(self.branches(data))
        return F.relu(total) if self._activated else total
