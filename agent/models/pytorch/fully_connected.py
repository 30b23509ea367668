"""Networks of fully connected layers only: for speech, handwritten digits and sensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from agent.models.pytorch.initialization import initialize


class FullyConnected(nn.Module):
    """Hidden layers of ReLU units and an output layer.

    Args:
        features: The length of one input.
        widths: The units of each hidden layer.
        classes: The number of outputs.
    """

    def __init__(self, features: int, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(features, width), nn.ReLU(inplace=True)]
            features = width
        self.layers = nn.Sequential(*layers, nn.Linear(features, classes))
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits.

        Args:
            data: (batch, features) or images of as many values, floating point.

        Returns:
            (batch, classes) of the same dtype.
        """
        logits: torch.Tensor = self.layers(data.flatten(1))
        return logits


class AcousticModel(FullyConnected):
    """Scores the states of a hybrid speech recogniser from 540 features; 34,678,784 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("acoustic_model",)

    def __init__(self, *, classes: int = 8192) -> None:
        super().__init__(540, (2048,) * 5, classes)


class DeepMNIST(FullyConnected):
    """Reads handwritten digits of 28 × 28 (arXiv 1003.0358, with ReLU); 11,972,510 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("deep_mnist",)

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__(784, (2500, 2000, 1500, 1000, 500), classes)


class SensorNet(FullyConnected):
    """Classifies 784 sensor readings; 2,919,440 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("sensor_net",)

    def __init__(self, *, classes: int = 16) -> None:
        super().__init__(784, (1024,) * 3, classes)
