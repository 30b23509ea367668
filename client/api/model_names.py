"""Resolves the model that a benchmark names: a DLBS id, which is an architecture, or a manifest's name."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import UnknownModelError, suggestion
from inferometer.manifests.schema import ModelManifest


def named_model(catalog: Catalog, name: str, version: str | None = None) -> tuple[str, str | None]:
    """Returns the name and the version of a manifest.

    Matches are tried in this order: a manifest with exactly this name, an architecture with this name (at its
    highest version), a manifest whose name differs only in case. So ``alexnet`` is the architecture of
    BVLC-AlexNet, and ``AlexNet`` is another model.

    Raises:
        UnknownModelError: Neither a manifest nor an architecture has this name.
    """
    wanted = name.strip()
    if any(model.name == wanted for model in catalog.models):
        return wanted, version
    built = [model for model in catalog.models if _architecture(model) == wanted.casefold()]
    if built:
        highest = max(built, key=lambda model: Version(model.version))
        return highest.name, version or highest.version
    if any(model.name.casefold() == wanted.casefold() for model in catalog.models):
        return wanted, version
    known = dict.fromkeys((*architectures(catalog), *(model.name for model in catalog.models)))
    raise UnknownModelError(f'unknown model "{name}"; {suggestion(name, known)}')


def architectures(catalog: Catalog) -> Iterator[str]:
    """Yields the architectures that models name, except those from packages."""
    names = {_architecture(model) for model in catalog.models}
    yield from sorted(name for name in names if name and ":" not in name)


def _architecture(model: ModelManifest) -> str:
    return (model.model.architecture or "").casefold()
