"""Architectures (models built in code) from the program, from packages and from a user's files.

Nothing here imports a framework. The builders of the program's own architectures are classes in
``agent/architectures/FRAMEWORK/``, which are imported when a model is built. A user's file is hashed and
executed as a module of its own, and its class is instantiated.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, explained, one_line, suggestion
from inferometer.manifests.files import check_directories


class Builder(Protocol):
    """Builds a model of the framework's own type: a ``torch.nn.Module`` or a ``gluon.HybridBlock``."""

    def __call__(self, *, initialize: bool) -> Any:
        """Builds the model.

        Unless ``initialize`` is set, the model's weights may be undefined, as a file's weights replace them.

        Raises:
            ArtifactError: The model cannot be built; the message says what is missing, or where the code
                failed.
        """


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model defined in code, found by its name; none of its code has been imported or run yet.

    It can be sent to another process.

    Attributes:
        name: The name as written in the manifest.
        build: Imports what is needed and builds the model.
        checksum: ``sha256:…`` of the user's file that defines it; None for architectures of the program and
            of packages.
        versions: The installed version of the package that defines it, by the package's name.
    """

    name: str
    build: Builder
    checksum: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchitectureFile:
    """A Python file with a class that implements an architecture.

    Exactly the content that was read and hashed is executed. No bytecode is read or written, and the file's
    folder is not searched for modules.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> ArchitectureFile:
        """Reads a file without executing it; raises ArtifactError if it cannot be read."""
        with explained(ArtifactError, f"{path}: cannot be read"):
            return cls(path, path.read_bytes())

    @property
    def checksum(self) -> str:
        """The checksum of the content, as ``sha256:…``."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    def build(self, name: str) -> Any:
        """Executes the file and instantiates its class that ``implements`` a name; case does not matter.

        Raises:
            ArtifactError: The code fails, or the file has no such class or more than one.
        """
        try:
            found = self._implementing(self._execute(), name)
            return found()
        except ArtifactError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise ArtifactError(f"{self._place(error)}: {_reason(error)}") from error

    def _execute(self) -> ModuleType:
        """Runs the file as a module, under a name that no module of the user has."""
        name = f"inferometer_architecture_{hashlib.sha256(self.content).hexdigest()[:16]}"
        module = ModuleType(name)
        module.__file__ = str(self.path)
        sys.modules[name] = module  # where dataclasses look for the types of their fields
        try:
            code = compile(self.content, str(self.path), "exec", dont_inherit=True)
            exec(code, vars(module))  # noqa: S102 - what the user has named for that
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _implementing(self, module: ModuleType, name: str) -> type:
        """Returns the one class that the module itself defines and that implements the name."""
        classes = {
            v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
        }
        found = [c for c in classes if name.casefold() in {n.casefold() for n in _implemented(c)}]
        if len(found) > 1:
            names = " and ".join(sorted(c.__name__ for c in found))
            raise ArtifactError(f'{self.path}: the classes {names} all implement "{name}"; keep one')
        if not found:
            others = sorted(f'{c.__name__} implements "{n}"' for c in classes for n in _implemented(c))
            more = f"; {', '.join(others)}" if others else ""
            raise ArtifactError(f'{self.path}: holds no class with implements = "{name}"{more}')
        return found[0]

    def _place(self, error: BaseException) -> str:
        """Returns the file and the last of its lines that appears in the traceback of an error."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in reversed(frames) if f.filename == str(self.path)), None)
        return f"{self.path}, line {line}" if line else str(self.path)


def _implemented(found: type) -> tuple[str, ...]:
    """Returns the names that a class itself declares in ``implements``, without inherited ones."""
    names = vars(found).get("implements", ())
    return tuple(map(str, names)) if isinstance(names, tuple | list) else (str(names),)


def _reason(error: BaseException) -> str:
    """Returns the type of the error and its message, on one line."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return one_line(f"{type(error).__name__}: {message}" if message else type(error).__name__)


@dataclass(frozen=True, slots=True)
class BuiltinArchitecture:
    """A model that the program itself defines in code.

    Attributes:
        name: The name as written in manifests.
        input_shape: The shape of one input, without the batch: channels × height × width, or features.
        classes: The number of classes, or of other outputs for each input.
        builder: The class that builds it, as ``"module:Class"``, within each framework's folder.
        options: The keyword arguments of the builder.
        frameworks: The frameworks for which the builder exists.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    builder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ("PyTorch", "MXNet")

    def build(self, framework: str) -> Any:
        """Imports the builder for a framework, and builds the model."""
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
"""The number of residual blocks in each stage, by the number of layers with weights."""


def resnet_stages(depth: int) -> tuple[tuple[int, int, int, int], bool]:
    """Returns the blocks of each stage, and whether they are bottlenecks; raises ValueError if unknown."""
    if depth not in RESNET_STAGES:
        raise ValueError(
            f"there is no ResNet with {depth} layers, only with {', '.join(map(str, RESNET_STAGES))}"
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


def import_package(name: str, architecture: str) -> ModuleType:
    """Imports the package that an architecture needs; its name for pip is the same.

    Raises:
        ArtifactError: It is not installed, or fails to import, for example torchvision with a PyTorch that it
            was not built for.
    """
    if find_spec(name) is None:
        raise ArtifactError(
            f'architecture "{architecture}": {name} is not installed; install it with: pip install {name}'
        )
    try:
        with warnings.catch_warnings():
            # torchvision warns of the image decoders that it was built without
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except IMPORT_FAILURES as error:
        version = ", ".join(installed_version(name).values()) or "of unknown version"
        raise ArtifactError(
            f'architecture "{architecture}": {name} {version} cannot be imported: {one_line(error)}; '
            "install versions that are compatible with each other and the framework"
        ) from error


def installed_version(name: str) -> dict[str, str]:
    """Returns the installed version of a package by its name; empty if there is none."""
    try:
        return {name: metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {}


_BUILT_IN: Mapping[str, str] = {"PyTorch": "PyTorch", "MXNet": "MXNet", "ONNXRuntime": "PyTorch"}
"""The framework that builds each framework's architectures; models for ONNX Runtime are exported."""


_PACKAGES: Mapping[str, str] = {"torchvision": "PyTorch", "timm": "PyTorch", "gluon": "MXNet"}
"""The framework whose ``package_models`` builds the models of each package, named ``package:NAME``."""


def is_built_in(name: str) -> bool:
    """Returns whether the program has an architecture with this name; case does not matter."""
    return name.strip().casefold() in ARCHITECTURES


def missing_package(name: str) -> str | None:
    """Returns the package that the architecture ``package:NAME`` requires, if it is not installed.

    Nothing is imported; gluon is a part of MXNet.
    """
    package = name.partition(":")[0].strip().casefold() if ":" in name else "gluon"
    return None if package == "gluon" or find_spec(package) is not None else package


class Architectures:
    """The architectures that models may name, from the program, from packages and from a user's files.

    ``DIRECTORY/FRAMEWORK/NAME.py``, with the framework in lower case, defines the architecture NAME; of two
    such files, the one in the earlier directory is used. Only the file of the requested architecture is
    executed. Immutable and thread-safe.

    Raises:
        ConfigurationError: A directory does not exist, or is not a directory.
    """

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        check_directories(directories, "architecture")
        self._directories = tuple(directories)

    def find(self, name: str, framework: str) -> Architecture | None:
        """Finds an architecture for a framework without importing or running it.

        ``name`` is ``NAME``, or ``torchvision:NAME``, ``timm:NAME`` or ``gluon:NAME``; case does not matter
        if the program or a file defines ``NAME``. Returns None if a plug-in provides the framework and no
        file defines the name; the plug-in's predictor then interprets the name.

        Raises:
            ArtifactError: The framework has no architecture of that name, or the name is ambiguous.
        """
        name = name.strip()
        builder = _BUILT_IN.get(framework)
        file = self._find_file(name, builder or framework)
        if file is None and builder is None:
            return None
        built_in = ARCHITECTURES.get(name.casefold())
        if file is not None:
            if built_in is not None:
                raise ArtifactError(
                    f'{file}: the program has its own architecture "{built_in.name}"; give the file and its '
                    "class another name"
                )
            code = ArchitectureFile.read(file)
            return Architecture(name, partial(_build_file, code, name), code.checksum)
        if ":" in name:
            return _from_package(name, framework)
        if built_in is None or builder not in built_in.frameworks:
            raise ArtifactError(self._unknown(name, framework))
        return Architecture(built_in.name, partial(_build, built_in, builder))

    def _find_file(self, name: str, framework: str) -> Path | None:
        """Returns an architecture's file from the directory's listing, so that no name leads out of it."""
        for directory in self._directories:
            found = [path for path in _files(directory, framework) if path.stem.casefold() == name.casefold()]
            if len(found) > 1:
                raise ArtifactError(f'architecture "{name}": in both {found[0]} and {found[1]}; keep one')
            if found:
                return found[0]
        return None

    def _unknown(self, name: str, framework: str) -> str:
        builder = _BUILT_IN[framework]
        known = [a.name for a in ARCHITECTURES.values() if builder in a.frameworks]
        known += [path.stem for directory in self._directories for path in _files(directory, builder)]
        if any(mark in name for mark in "/\\"):
            return (
                f'architecture "{name}": is a path, not a name; name the directory of the file in '
                "the configuration's architectures"
            )
        places = ", ".join(str(directory / builder.casefold()) for directory in self._directories)
        nor = f" (and no file of that name in {places})" if places else ""
        return f'unknown {framework} architecture "{name}"{nor}; {suggestion(name, known)}'


BUILTIN_ARCHITECTURES = Architectures()
"""The architectures of the program and of packages, without any from a user's files."""


def _files(directory: Path, framework: str) -> Iterator[Path]:
    """Yields the architecture files for a framework in a user's directory, by name."""
    try:
        paths = sorted((directory / framework.casefold()).iterdir())
    except (FileNotFoundError, NotADirectoryError):  # it has architectures of other frameworks
        return
    except OSError as error:
        raise ArtifactError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
    yield from (path for path in paths if path.suffix == ".py" and path.is_file())


def _build_file(code: ArchitectureFile, name: str, *, initialize: bool) -> Any:
    return code.build(name)


def _build(found: BuiltinArchitecture, framework: str, *, initialize: bool) -> Any:
    if initialize or framework != "PyTorch":  # gluon's parameters are undefined in any case
        return found.build(framework)
    pytorch = importlib.import_module("inferometer.agent.architectures.pytorch.feed_forward")
    return pytorch.undefined(lambda: found.build(framework))


def _build_from_package(builder: str, package: str, model: str, *, initialize: bool) -> Any:
    place = f"inferometer.agent.architectures.{builder.lower()}.package_models"
    return importlib.import_module(place).build(package, model, initialize=initialize)


def _from_package(name: str, framework: str) -> Architecture:
    prefix, _, model = (part.strip() for part in name.partition(":"))
    builder = _BUILT_IN[framework]
    usable = [package for package, needed in _PACKAGES.items() if needed == builder]
    package = prefix.casefold()
    if package not in _PACKAGES:
        raise ArtifactError(f'architecture "{name}": unknown source "{prefix}"; {suggestion(prefix, usable)}')
    if package not in usable:
        raise ArtifactError(
            f'architecture "{name}": is built with {_PACKAGES[package]}, but this model runs in {framework}; '
            f"name {' or '.join(f'{prefix}:NAME' for prefix in usable)}, one of the program, or one in a file"
        )

    build = partial(_build_from_package, builder, package, model)
    return Architecture(name, build, versions=installed_version(package))
