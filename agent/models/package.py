"""Packages that hold architectures and need not be installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from importlib import metadata
from types import ModuleType

from manifests.errors import ArtifactError

# What an import raises: one that does not fit the installed framework fails with the framework's errors.
_FAILURES = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def import_package(name: str, architecture: str) -> ModuleType:
    """Imports a package.

    Args:
        name: The package, by whose name it is installed, too.
        architecture: What is wanted of it, for the message.

    Raises:
        ArtifactError: It is not installed, or fails to import, as torchvision does beside a PyTorch that it
            was not built for.
    """
    if importlib.util.find_spec(name) is None:
        raise ArtifactError(
            f'architecture "{architecture}": {name} is not installed; install it with: pip install {name}'
        )
    try:
        with warnings.catch_warnings():
            # torchvision warns of the image decoders that it was built without
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except _FAILURES as error:
        version = ", ".join(installed_version(name).values()) or "of unknown version"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(
            f'architecture "{architecture}": {name} {version} cannot be imported: {reason}; '
            "install versions that fit each other and the framework"
        ) from error


def installed_version(name: str) -> dict[str, str]:
    """Returns the installed version of a package by its name; empty where there is none."""
    try:
        return {name: metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {}
