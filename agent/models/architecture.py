"""The architectures that are built in code, by name; nothing here imports a framework.

A framework's builders are classes in ``agent/models/FRAMEWORK/``, which its predictor imports when a model is
opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from manifests.errors import ArtifactError, suggestion


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model that is built in code.

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

    def load_builder(self, framework: str) -> Callable[[], Any]:
        """Imports what builds the model in a framework, with its options."""
        module, _, name = self.builder.partition(":")
        package = importlib.import_module(f"agent.models.{framework.lower()}.{module}")
        return partial(getattr(package, name), **self.options)


def _image(name: str, side: int, builder: str, classes: int = 1000, **options: Any) -> Architecture:
    return Architecture(name, (3, side, side), classes, builder, options)


_ALL = (
    Architecture("DigitsCNN", (1, 16, 16), 10, "digits_cnn:DigitsCNN", frameworks=("PyTorch",)),
    Architecture("acoustic_model", (540,), 8192, "fully_connected:AcousticModel"),
    Architecture("deep_mnist", (784,), 10, "fully_connected:DeepMNIST"),
    Architecture("sensor_net", (784,), 16, "fully_connected:SensorNet"),
    _image("alexnet", 227, "alexnet:AlexNet"),
    _image("alexnet_owt", 227, "alexnet:AlexNetOWT"),
    _image("overfeat", 231, "overfeat:OverFeat"),
    _image("googlenet", 224, "googlenet:GoogLeNet"),
    _image("inception3", 299, "inception3:Inception3"),
    _image("inception4", 299, "inception4:Inception4"),
    _image("inception_resnet_v2", 299, "inception_resnet_v2:InceptionResNetV2"),
    *(_image(f"resnet{d}", 224, "resnet:ResNet", depth=d) for d in (18, 34, 50, 101, 152, 200, 269)),
    *(_image(f"vgg{d}", 224, "vgg:VGG", depth=d) for d in (11, 13, 16, 19)),
    Architecture("deep_speech2", (1, 200, 161), 842, "deep_speech2:DeepSpeech2"),
    _image("cifar10_lenet", 32, "cifar10_lenet:Cifar10LeNet", classes=10),
    Architecture("single_convolution", (32, 256, 256), 32, "single_convolution:SingleConvolution"),
)
ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name.casefold(): architecture for architecture in _ALL
}


def find_architecture(name: str, framework: str) -> Architecture:
    """Returns the architecture of a name that a framework can build; case does not matter.

    Raises:
        ArtifactError: There is none; the message has the nearest names.
    """
    known: Iterable[str] = (a.name for a in ARCHITECTURES.values() if framework in a.frameworks)
    found = ARCHITECTURES.get(name.strip().casefold())
    if found is None or framework not in found.frameworks:
        raise ArtifactError(f'unknown {framework} architecture "{name}"; {suggestion(name, known)}')
    return found
