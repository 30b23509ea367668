"""Networks whose layers run in sequence: AlexNet, OverFeat, VGG, a LeNet, and fully connected networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.vgg import vgg_spec

from inferometer.agent.architectures.layers import BVLC_ALEXNET


class FeedForward(gluon.HybridBlock):
    """A sequence of layers, which a subclass builds from its options inside the block's name scope."""

    _make_layers: Callable[..., list[Any]]

    def __init__(self, **options: int) -> None:
        super().__init__()
        with self.name_scope():
            self.layers = nn.HybridSequential(prefix="")
            self.layers.add(*self._make_layers(**options))

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns the last layer's output: logits of shape (batch, classes), with the input's dtype."""
        return self.layers(data)


class LocalResponseNorm(gluon.HybridBlock):
    """Divides by (1 + 1e-4 / 5 × the sum of squares over 5 neighbouring channels) ** 0.75, like Caffe."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns a tensor of the same shape as the input, (batch, channels, height, width)."""
        # the operator's own k is 2
        return F.LRN(data, alpha=1e-4, beta=0.75, knorm=1.0, nsize=5)


def _convolution(channels: int, kernel: int, strides: int = 1, padding: int = 0) -> Any:
    return nn.Conv2D(channels, kernel, strides, padding, activation="relu")


def _classifier(*widths: int, dropout: bool = True) -> list[Any]:
    """Fully connected layers, each followed by ReLU and dropout except the last."""
    layers = []
    for units in widths[:-1]:
        layers.append(nn.Dense(units, activation="relu"))
        if dropout:
            layers.append(nn.Dropout(0.5))
    return [*layers, nn.Dense(widths[-1])]


class DigitsCNN(gluon.HybridBlock):
    """Two convolutions with pooling and two fully connected layers; 38,282 parameters.

    The parameters have the same names as in the shipped symbol file. Inputs are (batch, 1, 16, 16).
    """

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        with self.name_scope():
            self.conv1 = nn.Conv2D(16, 3, padding=1, activation="relu", prefix="conv1_")
            self.conv2 = nn.Conv2D(32, 3, padding=1, activation="relu", prefix="conv2_")
            self.fc1 = nn.Dense(64, activation="relu", prefix="fc1_")
            self.fc2 = nn.Dense(classes, prefix="fc2_")
            self.pool = nn.MaxPool2D(2, 2)

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns the digit logits, of shape (batch, classes), for preprocessed grey images."""
        return self.fc2(self.fc1(self.pool(self.conv2(self.pool(self.conv1(data))))))


class AlexNet(FeedForward):
    """The BVLC reference network (Krizhevsky et al., 2012), without groups; 62,378,344 parameters.

    Normalization comes before pooling. Inputs are (batch, 3, 227, 227).
    """

    gaussian_layers = BVLC_ALEXNET

    def _make_layers(self, *, classes: int = 1000) -> list[Any]:
        return [
            _convolution(96, 11, strides=4),
            LocalResponseNorm(),
            nn.MaxPool2D(3, 2),
            _convolution(256, 5, padding=2),
            LocalResponseNorm(),
            nn.MaxPool2D(3, 2),
            _convolution(384, 3, padding=1),
            _convolution(384, 3, padding=1),
            _convolution(256, 3, padding=1),
            nn.MaxPool2D(3, 2),
            *_classifier(4096, 4096, classes),
        ]


class AlexNetOWT(vision.AlexNet):
    """The AlexNet of Krizhevsky, 2014 (arXiv 1404.5997); 61,100,840 parameters.

    It is Gluon's model-zoo version. Inputs are (batch, 3, side, side) with a side of 224 to 254 pixels, for
    which torchvision's average pooling to 6 × 6 would change nothing.
    """

    gaussian_layers = BVLC_ALEXNET


class OverFeat(FeedForward):
    """The fast OverFeat model of Sermanet et al., 2013 (arXiv 1312.6229); 145,920,872 parameters.

    Inputs are (batch, 3, 231, 231).
    """

    def _make_layers(self, *, classes: int = 1000) -> list[Any]:
        return [
            _convolution(96, 11, strides=4),
            nn.MaxPool2D(2, 2),
            _convolution(256, 5),
            nn.MaxPool2D(2, 2),
            _convolution(512, 3, padding=1),
            _convolution(1024, 3, padding=1),
            _convolution(1024, 3, padding=1),
            nn.MaxPool2D(2, 2),
            *_classifier(3072, 4096, classes),
        ]


class VGG(vision.VGG):
    """VGG, configurations A, B, D and E of Simonyan and Zisserman, 2014 (arXiv 1409.1556).

    They are Gluon's model-zoo versions; a ``depth`` other than 11, 13, 16 or 19 raises ValueError. Inputs are
    (batch, 3, 224, 224).
    """

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        if depth not in vgg_spec:
            raise ValueError(
                f"there is no VGG with {depth} layers, only with {', '.join(map(str, vgg_spec))}"
            )
        layers, channels = vgg_spec[depth]
        super().__init__(layers, channels, classes=classes)


class Cifar10LeNet(FeedForward):
    """A LeNet for the images of CIFAR-10; 62,006 parameters. Inputs are (batch, 3, 32, 32)."""

    def _make_layers(self, *, classes: int = 10) -> list[Any]:
        maps = [_convolution(6, 5), nn.MaxPool2D(2, 2), _convolution(16, 5), nn.MaxPool2D(2, 2)]
        return [*maps, *_classifier(120, 84, classes, dropout=False)]


class AcousticModel(FeedForward):
    """Maps speech frames of 540 features to 8192 states; 34,678,784 parameters."""

    def _make_layers(self, *, classes: int = 8192) -> list[Any]:
        return _classifier(2048, 2048, 2048, 2048, 2048, classes, dropout=False)


class DeepMNIST(FeedForward):
    """Maps handwritten digits of 784 pixels to 10 classes; 11,972,510 parameters."""

    def _make_layers(self, *, classes: int = 10) -> list[Any]:
        return _classifier(2500, 2000, 1500, 1000, 500, classes, dropout=False)


class SensorNet(FeedForward):
    """Maps sensor readings of 784 values to 16 classes; 2,919,440 parameters."""

    def _make_layers(self, *, classes: int = 16) -> list[Any]:
        return _classifier(1024, 1024, 1024, classes, dropout=False)


class SingleConvolution(FeedForward):
    """A 3 × 3 convolution without bias that keeps height and width; 9,216 parameters.

    It serves to measure the operator through an agent. Inputs are (batch, 32, 256, 256), outputs (batch,
    classes, 256, 256); the classes are the output channels.
    """

    def _make_layers(self, *, classes: int = 32) -> list[Any]:
        return [nn.Conv2D(classes, 3, padding=1, use_bias=False)]
