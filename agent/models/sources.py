"""Where architectures come from: the program, packages with models, and files in a user's directories."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.architecture import Architecture
from agent.models.architecture_file import ArchitectureFile
from agent.models.catalogue import ARCHITECTURES, BuiltinArchitecture
from agent.models.package import installed_version
from manifests.errors import ArtifactError, ConfigurationError, suggestion

_BUILT_IN: Mapping[str, str] = {"PyTorch": "PyTorch", "MXNet": "MXNet", "ONNXRuntime": "PyTorch"}
"""The framework that a framework's architectures are built in; ONNX Runtime gets them by export."""


@dataclass(frozen=True, slots=True)
class _Package:
    """A package whose models are named ``prefix:NAME``; ``builder`` is the module with ``build(name)``."""

    prefix: str
    framework: str
    builder: str

    def build(self, name: str, *, initialize: bool) -> Any:
        return importlib.import_module(self.builder).build(name, initialize=initialize)


_PACKAGES: Mapping[str, _Package] = {
    package.prefix: package
    for package in (
        _Package("torchvision", "PyTorch", "agent.models.pytorch.torchvision_models"),
        _Package("timm", "PyTorch", "agent.models.pytorch.timm_models"),
        _Package("gluon", "MXNet", "agent.models.mxnet.gluon_models"),
    )
}


class Architectures:
    """The architectures that models may name: those of the program, of packages and of a user's files.

    ``DIRECTORY/FRAMEWORK/NAME.py``, with the framework in small letters, makes the architecture NAME; of two
    such files the one in the earlier directory counts. Immutable, and thread-safe.

    Args:
        directories: The user's directories. Their files are code: nothing of a directory is executed but the
            one file of an architecture that is built.

    Raises:
        ConfigurationError: A directory does not exist, or is none.
    """

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        for directory in directories:
            if not directory.is_dir():
                wrong = "is no directory" if directory.exists() else "does not exist"
                raise ConfigurationError(f"architecture directory {directory} {wrong}")
        self._directories = tuple(directories)

    def find(self, name: str, framework: str) -> Architecture | None:
        """Finds an architecture, and imports and runs nothing of it.

        Args:
            name: ``NAME``, or ``torchvision:NAME``, ``timm:NAME`` or ``gluon:NAME``; the case of a ``NAME``
                of the program or of a file does not matter.
            framework: The framework that the model runs in.

        Returns:
            None for a framework that a plug-in adds and whose name no file has: its predictor knows what the
            name means.

        Raises:
            ArtifactError: There is none of that name for the framework, or two that are not the same.
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
            return _from_file(name, ArchitectureFile.read(file))
        if ":" in name:
            return _from_package(name, framework)
        if built_in is None or builder not in built_in.frameworks:
            raise ArtifactError(self._unknown(name, framework))
        return _built_in(built_in, builder)

    def _find_file(self, name: str, framework: str) -> Path | None:
        """The file of an architecture; names are compared with what is there, and so lead nowhere else."""
        for directory in self._directories:
            found = [path for path in _files(directory, framework) if path.stem.casefold() == name.casefold()]
            if len(found) > 1:
                raise ArtifactError(f'architecture "{name}": both {found[0]} and {found[1]}; keep one')
            if found:
                return found[0]
        return None

    def _unknown(self, name: str, framework: str) -> str:
        builder = _BUILT_IN[framework]
        known = [a.name for a in ARCHITECTURES.values() if builder in a.frameworks]
        known += [path.stem for directory in self._directories for path in _files(directory, builder)]
        if any(mark in name for mark in "/\\"):
            return (
                f'architecture "{name}": is a path, and a name is wanted; name the directory of the file in '
                "the configuration's architectures"
            )
        places = ", ".join(str(directory / builder.casefold()) for directory in self._directories)
        nor = f" (and no file of that name in {places})" if places else ""
        return f'unknown {framework} architecture "{name}"{nor}; {suggestion(name, known)}'


BUILTIN_ARCHITECTURES = Architectures()
"""Those of the program and of packages, without any user's files."""


def _files(directory: Path, framework: str) -> Iterator[Path]:
    """The files with architectures of a framework in a user's directory, by name."""
    try:
        paths = sorted((directory / framework.casefold()).iterdir())
    except (FileNotFoundError, NotADirectoryError):  # it has architectures of other frameworks
        return
    except OSError as error:
        raise ArtifactError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
    yield from (path for path in paths if path.suffix == ".py" and path.is_file())


def _built_in(found: BuiltinArchitecture, framework: str) -> Architecture:
    def build(*, initialize: bool) -> Any:
        return found.build(framework)

    return Architecture(found.name, build)


def _from_file(name: str, file: ArchitectureFile) -> Architecture:
    def build(*, initialize: bool) -> Any:
        return file.build(name)

    return Architecture(name, build, file.checksum)


def _from_package(name: str, framework: str) -> Architecture:
    prefix, _, model = (part.strip() for part in name.partition(":"))
    builder = _BUILT_IN[framework]
    usable = [package.prefix for package in _PACKAGES.values() if package.framework == builder]
    package = _PACKAGES.get(prefix.casefold())
    if package is None:
        raise ArtifactError(f'architecture "{name}": unknown source "{prefix}"; {suggestion(prefix, usable)}')
    if package.prefix not in usable:
        raise ArtifactError(
            f'architecture "{name}": is a model of {package.framework}, and this one runs in {framework}; '
            f"name {' or '.join(f'{prefix}:NAME' for prefix in usable)}, or one of the program or of a file"
        )

    def build(*, initialize: bool) -> Any:
        return package.build(model, initialize=initialize)

    return Architecture(name, build, versions=installed_version(package.prefix))
