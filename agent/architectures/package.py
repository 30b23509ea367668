"""Imports of optional packages that hold architectures."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from importlib import metadata
from types import ModuleType

from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, one_line


def import_package(name: str, architecture: str) -> ModuleType:
    """Imports a package, whose name is also the one that pip installs, for an architecture.

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
    except IMPORT_FAILURES as error:
        version = ", ".join(installed_version(name).values()) or "of unknown version"
        raise ArtifactError(
            f'architecture "{architecture}": {name} {version} cannot be imported: {one_line(error)}; '
            "install versions that fit each other and the framework"
        ) from error


def installed_version(name: str) -> dict[str, str]:
    """Returns the installed version of a package by its name; empty where there is none."""
    try:
        return {name: metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {}
