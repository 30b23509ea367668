"""ResNet of depths 18 to 269, with the same layers as torchvision's."""

from __future__ import annotations

from typing import Any, ClassVar

from mxnet import gluon
from mxnet.gluon import nn

from inferometer.agent.architectures.mxnet.feed_forward import FeedForward
from inferometer.agent.architectures.sources import resnet_stages


class ResNet(FeedForward):
    """The network of He et al., 2015 (arXiv 1512.03385), with the activation after each addition.

    As in torchvision, a block that halves the image does so in its 3 × 3 convolution; the ResNet of gluon's
    model zoo does so in the 1 × 1 before it, and has biases there. Inputs are (batch, 3, 224, 224). An
    unknown ``depth`` raises ValueError.
    """

    def _make_layers(self, *, depth: int, classes: int = 1000) -> list[Any]:
        stages, bottlenecks = resnet_stages(depth)
        block = Bottleneck if bottlenecks else BasicBlock
        layers = [
            nn.Conv2D(64, 7, strides=2, padding=3, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.MaxPool2D(3, 2, padding=1),
        ]
        in_channels = 64
        for stage, blocks in enumerate(stages):
            channels = 64 * 2**stage
            for index in range(blocks):
                strides = 2 if stage > 0 and index == 0 else 1
                layers.append(block(in_channels, channels, strides))
                in_channels = channels * block.expansion
        return [*layers, nn.GlobalAvgPool2D(), nn.Dense(classes)]


class ResidualBlock(gluon.HybridBlock):
    """Adds a body of convolutions to its input; a 1 × 1 convolution adapts the input if the shapes differ.

    The first convolution has ``channels`` channels and the output has ``expansion`` times as many. The first
    3 × 3 convolution uses ``strides``: 2 if the block halves height and width, otherwise 1.
    """

    expansion: ClassVar[int]
    kernels: ClassVar[tuple[int, ...]]

    def __init__(self, in_channels: int, channels: int, strides: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        widths = (*[channels] * (len(self.kernels) - 1), out_channels)
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            for place, (kernel, width) in enumerate(zip(self.kernels, widths, strict=True)):
                step = strides if place == self.kernels.index(3) else 1
                self.body.add(nn.Conv2D(width, kernel, step, padding=kernel // 2, use_bias=False))
                self.body.add(nn.BatchNorm())
                if place < len(widths) - 1:
                    self.body.add(nn.Activation("relu"))
            self.downsample = None
            if strides != 1 or in_channels != out_channels:
                self.downsample = nn.HybridSequential(prefix="")
                self.downsample.add(nn.Conv2D(out_channels, 1, strides, use_bias=False), nn.BatchNorm())

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns a tensor of shape (batch, out channels, height / strides, width / strides)."""
        shortcut = data if self.downsample is None else self.downsample(data)
        return F.relu(self.body(data) + shortcut)


class BasicBlock(ResidualBlock):
    """Two 3 × 3 convolutions."""

    expansion = 1
    kernels = (3, 3)


class Bottleneck(ResidualBlock):
    """A 3 × 3 convolution between two 1 × 1 convolutions, which shrink and widen the channels fourfold."""

    expansion = 4
    kernels = (1, 3, 1)
