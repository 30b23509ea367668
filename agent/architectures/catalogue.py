"""The architectures of the program, by name; nothing here imports a framework.

The builders are classes in ``agent/architectures/FRAMEWORK/``, which are imported when a model is built.
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
        classes: The number of its classes, or of what else it tells of an input.
        builder: The class that builds it, as ``"module:Class"`` in a framework's folder, the same in each.
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
        package = importlib.import_module(f"inferometer.agent.architectures.{framework.lower()}.{module}")
        return getattr(package, name)(**self.options)


RESNET_STAGES: Mapping[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}
"""The residual blocks of each stage, by the number of layers with weights."""


def resnet_stages(depth: int) -> tuple[tuple[int, int, int, int], bool]:
    """Returns the blocks of each stage, and whether they are bottlenecks; raises ValueError if unknown."""
    if depth not in RESNET_STAGES:
        raise ValueError(
            f"there is no ResNet of {depth} layers, only of {', '.join(map(str, RESNET_STAGES))}"
        )
    return RESNET_STAGES[depth], depth >= 50


def _image(name: str, side: int, builder: str, classes: int = 1000, **options: Any) -> BuiltinArchitecture:
    return BuiltinArchitecture(name, (3, side, side), classes, builder, options)


def _digits(name: str, side: int, classes: int) -> BuiltinArchitecture:
    return BuiltinArchitecture(
        name, (1, side, side), classes, f"digits_tasks:{name}", frameworks=("PyTorch",)
    )


_ALL = (
    BuiltinArchitecture("DigitsCNN", (1, 16, 16), 10, "feed_forward:DigitsCNN"),
    _digits("DigitsDetector", 64, 10),
    _digits("DigitsSegmenter", 64, 11),
    _digits("DigitsDenoiser", 64, 1),
    _digits("DigitsEmbedder", 16, 16),
    BuiltinArchitecture("StatementsCNN", (-1,), 2, "text_convolution:StatementsCNN", frameworks=("PyTorch",)),
    BuiltinArchitecture("acoustic_model", (540,), 8192, "feed_forward:AcousticModel"),
    BuiltinArchitecture("deep_mnist", (784,), 10, "feed_forward:DeepMNIST"),
    BuiltinArchitecture("sensor_net", (784,), 16, "feed_forward:SensorNet"),
    _image("alexnet", 227, "feed_forward:AlexNet"),
    _image("alexnet_owt", 227, "feed_forward:AlexNetOWT"),
    _image("overfeat", 231, "feed_forward:OverFeat"),
    _image("googlenet", 224, "inception:GoogLeNet"),
    _image("inception3", 299, "inception:Inception3"),
    _image("inception4", 299, "inception:Inception4"),
    _image("inception_resnet_v2", 299, "inception:InceptionResNetV2"),
    *(_image(f"resnet{d}", 224, "resnet:ResNet", depth=d) for d in RESNET_STAGES),
    *(_image(f"vgg{d}", 224, "feed_forward:VGG", depth=d) for d in (11, 13, 16, 19)),
    BuiltinArchitecture("deep_speech2", (1, 200, 161), 842, "deep_speech2:DeepSpeech2"),
    _image("cifar10_lenet", 32, "feed_forward:Cifar10LeNet", classes=10),
    BuiltinArchitecture("single_convolution", (32, 256, 256), 32, "feed_forward:SingleConvolution"),
)
ARCHITECTURES: Mapping[str, BuiltinArchitecture] = {
    architecture.name.casefold(): architecture for architecture in _ALL
}
