"""ResNet of depths 18 to 269, with the layers of torchvision's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mxnet import gluon
from mxnet.gluon import nn

from agent.models.mxnet.feed_forward import FeedForward

# The number of residual blocks of each of the four stages, by depth
_STAGES: Mapping[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}
_FIRST_BOTTLENECK_DEPTH = 50


class ResNet(FeedForward):
    """The network of He et al., 2015 (arXiv 1512.03385), activated after each addition.

    As in torchvision, a block that halves the image does so in its 3 × 3 convolution; the ResNet of gluon's
    model zoo does so in the 1 × 1 before it, and has biases there. Inputs are (batch, 3, 224, 224).

    Args:
        depth: 18, 34, 50, 101, 152, 200 or 269 layers; from 50 on, blocks are bottlenecks.
        classes: The number of logits.

    Raises:
        ValueError: There is no ResNet of that depth.
    """

    implements: ClassVar[tuple[str, ...]] = tuple(f"resnet{depth}" for depth in _STAGES)

    def __init__(self, *, depth: int, classes: int = 1000) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise ValueError(f"there is no ResNet of {depth} layers, only of {', '.join(map(str, _STAGES))}")
        block = Bottleneck if depth >= _FIRST_BOTTLENECK_DEPTH else BasicBlock
        with self.name_scope():
            self.layers.add(
                nn.Conv2D(64, 7, strides=2, padding=3, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.MaxPool2D(3, 2, padding=1),
            )
            in_channels = 64
            for stage, blocks in enumerate(_STAGES[depth]):
                channels = 64 * 2**stage
                for index in range(blocks):
                    strides = 2 if stage > 0 and index == 0 else 1
                    self.layers.add(block(in_channels, channels, strides))
                    in_channels = channels * block.expansion
            self.layers.add(nn.GlobalAvgPool2D(), nn.Dense(classes))


class ResidualBlock(gluon.HybridBlock):
    """Adds to its input a body of convolutions; a 1 × 1 convolution fits the input where shapes differ.

    Args:
        in_channels: The channels of the input.
        channels: The channels of the first convolution; the output has ``expansion`` times as many.
        strides: 2 where the block halves height and width, otherwise 1.
    """

    expansion: ClassVar[int]

    def __init__(self, in_channels: int, channels: int, strides: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            self.add_body(channels, strides)
            self.downsample = None
            if strides != 1 or in_channels != out_channels:
                self.downsample = nn.HybridSequential(prefix="")
                self.downsample.add(nn.Conv2D(out_channels, 1, strides, use_bias=False), nn.BatchNorm())

    def add_body(self, channels: int, strides: int) -> None:
        """Adds the convolutions to ``self.body``."""
        raise NotImplementedError

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns (batch, out channels, height / strides, width / strides)."""
        shortcut = data if self.downsample is None else self.downsample(data)
        return F.relu(self.body(data) + shortcut)


class BasicBlock(ResidualBlock):
    """Two 3 × 3 convolutions."""

    expansion = 1

    def add_body(self, channels: int, strides: int) -> None:
        """See ``ResidualBlock``."""
        self.body.add(
            nn.Conv2D(channels, 3, strides, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(channels, 3, padding=1, use_bias=False),
            nn.BatchNorm(),
        )


class Bottleneck(ResidualBlock):
    """A 3 × 3 convolution between two 1 × 1 that shrink and widen the channels fourfold."""

    expansion = 4

    def add_body(self, channels: int, strides: int) -> None:
        """See ``ResidualBlock``."""
        self.body.add(
            nn.Conv2D(channels, 1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(channels, 3, strides, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(channels * self.expansion, 1, use_bias=False),
            nn.BatchNorm(),
        )
