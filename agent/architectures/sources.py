"""The sources of architectures: the program, packages with models, and files in a user's directories."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inferometer.agent.architectures.architecture import Architecture
from inferometer.agent.architectures.architecture_file import ArchitectureFile
from inferometer.agent.architectures.catalogue import ARCHITECTURES, BuiltinArchitecture
from inferometer.agent.architectures.package import installed_version
from inferometer.manifests.errors import ArtifactError, suggestion
from inferometer.manifests.files import check_directories

_BUILT_IN: Mapping[str, str] = {"PyTorch": "PyTorch", "MXNet": "MXNet", "ONNXRuntime": "PyTorch"}
"""The framework that builds the architectures of each framework; ONNX Runtime receives them by export."""


_PACKAGES: Mapping[str, str] = {"torchvision": "PyTorch", "timm": "PyTorch", "gluon": "MXNet"}
"""The framework of each package whose models are named ``package:NAME``; ``PACKAGE_models`` builds them."""


def is_built_in(name: str) -> bool:
    """Returns whether the program has an architecture of this name; case does not matter."""
    return name.strip().casefold() in ARCHITECTURES


def missing_package(name: str) -> str | None:
    """Returns the package that an architecture ``package:NAME`` requires and that is not installed.

    Nothing is imported; gluon is a part of MXNet.
    """
    package = name.partition(":")[0].strip().casefold() if ":" in name else "gluon"
    return None if package == "gluon" or find_spec(package) is not None else package


class Architectures:
    """The architectures that models may name: those of the program, of packages and of a user's files.

    ``DIRECTORY/FRAMEWORK/NAME.py``, with the framework in small letters, makes the architecture NAME; of two
    such files the one in the earlier directory is used. Only the file of the requested architecture is
    executed. Immutable and thread-safe.

    Raises:
        ConfigurationError: A directory does not exist, or is not a directory.
    """

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        check_directories(directories, "architecture")
        self._directories = tuple(directories)

    def find(self, name: str, framework: str) -> Architecture | None:
        """Finds an architecture for a framework without importing or running it.

        ``name`` is ``NAME``, or ``torchvision:NAME``, ``timm:NAME`` or ``gluon:NAME``; the case of a ``NAME``
        of the program or of a file does not matter. None means that no file of a plug-in's framework has the
        name: its predictor interprets the name.

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
            return Architecture(name, lambda *, initialize: code.build(name), code.checksum)
        if ":" in name:
            return _from_package(name, framework)
        if built_in is None or builder not in built_in.frameworks:
            raise ArtifactError(self._unknown(name, framework))
        return _built_in(built_in, builder)

    def _find_file(self, name: str, framework: str) -> Path | None:
        """Returns the file of an architecture, from the directory's list, so that no name leads out of it."""
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
    """Yields the files with architectures of a framework in a user's directory, by name."""
    try:
        paths = sorted((directory / framework.casefold()).iterdir())
    except (FileNotFoundError, NotADirectoryError):  # it has architectures of other frameworks
        return
    except OSError as error:
        raise ArtifactError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
    yield from (path for path in paths if path.suffix == ".py" and path.is_file())


def _built_in(found: BuiltinArchitecture, framework: str) -> Architecture:
    def build(*, initialize: bool) -> Any:
        if initialize or framework != "PyTorch":  # gluon's parameters are undefined in any case
            return found.build(framework)
        pytorch = importlib.import_module("inferometer.agent.architectures.pytorch.undefined")
        return pytorch.undefined(lambda: found.build(framework))

    return Architecture(found.name, build)


def _from_package(name: str, framework: str) -> Architecture:
    prefix, _, model = (part.strip() for part in name.partition(":"))
    builder = _BUILT_IN[framework]
    usable = [package for package, needed in _PACKAGES.items() if needed == builder]
    package = prefix.casefold()
    if package not in _PACKAGES:
        raise ArtifactError(f'architecture "{name}": unknown source "{prefix}"; {suggestion(prefix, usable)}')
    if package not in usable:
        raise ArtifactError(
            f'architecture "{name}": is a model of {_PACKAGES[package]}, and this one runs in {framework}; '
            f"name {' or '.join(f'{prefix}:NAME' for prefix in usable)}, or one of the program or of a file"
        )

    def build(*, initialize: bool) -> Any:
        place = f"inferometer.agent.architectures.{builder.lower()}.{package}_models"
        return importlib.import_module(place).build(model, initialize=initialize)

    return Architecture(name, build, versions=installed_version(package))
