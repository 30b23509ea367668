"""Fully connected networks: the acoustic model, DeepMNIST and SensorNet."""

from __future__ import annotations

from typing import ClassVar

from mxnet.gluon import nn

from agent.models.mxnet.feed_forward import FeedForward


class FullyConnected(FeedForward):
    """Fully connected layers with ReLU between them.

    Inputs are (batch, features).
    """

    hidden_units: ClassVar[tuple[int, ...]]

    def __init__(self, classes: int) -> None:
        super().__init__()
        with self.name_scope():
            for units in self.hidden_units:
                self.layers.add(nn.Dense(units, activation="relu"))
            self.layers.add(nn.Dense(classes))


class AcousticModel(FullyConnected):
    """Speech frames of 540 features to 8192 states; 34,678,784 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("acoustic_model",)
    hidden_units = (2048, 2048, 2048, 2048, 2048)

    def __init__(self, *, classes: int = 8192) -> None:
        super().__init__(classes)


class DeepMNIST(FullyConnected):
    """Handwritten digits of 784 pixels to 10 classes; 11,972,510 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("deep_mnist",)
    hidden_units = (2500, 2000, 1500, 1000, 500)

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__(classes)


class SensorNet(FullyConnected):
    """Sensor readings of 784 values to 16 classes; 2,919,440 parameters."""

    implements: ClassVar[tuple[str, ...]] = ("sensor_net",)
    hidden_units = (1024, 1024, 1024)

    def __init__(self, *, classes: int = 16) -> None:
        super().__init__(classes)
