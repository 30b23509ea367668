"""The architectures of the program, by name; nothing here imports a framework.

A framework's builders are classes in ``agent/models/FRAMEWORK/``, which are imported when a model is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BuiltinArchitecture:
    """A model that the program builds in code.

    Attributes:
        name: As manifests write it.
        input_shape: The shape of one input, without the batch: channels × height × width, or features.
        classes: The number of its outputs.
        builder: The class that builds it, as ``"module:Class"`` inside ``agent/models/FRAMEWORK/``, the same
            in every framework.
        options: The keyword arguments of the builder.
        frameworks: The frameworks that have the builder.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    builder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ("PyTorch", "MXNet")

    def build(self, framework: str) -> Any:
        """Imports what builds the model in a framework, and builds it."""
        module, _, name = self.builder.partition(":")
        package = importlib.import_module(f"agent.models.{framework.lower()}.{module}")
        return getattr(package, name)(**self.options)


def _image(name: str, side: int, builder: str, classes: int = 1000, **options: Any) -> BuiltinArchitecture:
    return BuiltinArchitecture(name, (3, side, side), classes, builder, options)


_ALL = (
    BuiltinArchitecture("DigitsCNN", (1, 16, 16), 10, "digits_cnn:DigitsCNN", frameworks=("PyTorch",)),
    BuiltinArchitecture("acoustic_model", (540,), 8192, "fully_connected:AcousticModel"),
    BuiltinArchitecture("deep_mnist", (784,), 10, "fully_connected:DeepMNIST"),
    BuiltinArchitecture("sensor_net", (784,), 16, "fully_connected:SensorNet"),
    _image("alexnet", 227, "alexnet:AlexNet"),
    _image("alexnet_owt", 227, "alexnet:AlexNetOWT"),
    _image("overfeat", 231, "overfeat:OverFeat"),
    _image("googlenet", 224, "googlenet:GoogLeNet"),
    _image("inception3", 299, "inception3:Inception3"),
    _image("inception4", 299, "inception4:Inception4"),
    _image("inception_resnet_v2", 299, "inception_resnet_v2:InceptionResNetV2"),
    *(_image(f"resnet{d}", 224, "resnet:ResNet", depth=d) for d in (18, 34, 50, 101, 152, 200, 269)),
    *(_image(f"vgg{d}", 224, "vgg:VGG", depth=d) for d in (11, 13, 16, 19)),
    BuiltinArchitecture("deep_speech2", (1, 200, 161), 842, "deep_speech2:DeepSpeech2"),
    _image("cifar10_lenet", 32, "cifar10_lenet:Cifar10LeNet", classes=10),
    BuiltinArchitecture("single_convolution", (32, 256, 256), 32, "single_convolution:SingleConvolution"),
)
ARCHITECTURES: Mapping[str, BuiltinArchitecture] = {
    architecture.name.casefold(): architecture for architecture in _ALL
}
