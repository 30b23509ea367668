"""The choice of the model to open: which version, in which framework."""

from __future__ import annotations

from agent.registry import Registry
from manifests.catalog import Catalog
from manifests.errors import FrameworkUnavailableError
from manifests.schema import ModelManifest


def select_model(
    catalog: Catalog, registry: Registry, name: str, version: str | None = None, framework: str | None = None
) -> ModelManifest:
    """Returns the highest version of a model that an installed framework can run.

    Args:
        catalog: The models.
        registry: The frameworks; of several that have the model, the first installed one is taken.
        name: The model's name; case does not matter.
        version: A version or a constraint; None means any.
        framework: The only framework that may be used; None means any.

    Raises:
        UnknownModelError, UnknownFrameworkError: There is none of that name or version.
        FrameworkUnavailableError: The framework is not installed, or in no version that the model accepts.
    """
    if framework is None:
        try:
            return catalog.find_model(name, version, registry.versions)
        except FrameworkUnavailableError as error:
            named = [m for m in catalog.models if m.name.casefold() == name.strip().casefold()]
            wanted = {m.framework.name.casefold() for m in named}
            missing = [e for e in registry.entries if e.name.casefold() in wanted and not e.installed_version]
            if not missing:
                raise
            commands = " or ".join(entry.install for entry in missing)
            raise FrameworkUnavailableError(f"{error}; install one with: {commands}") from error
    entry = registry.find(framework)
    entry.require_installed()
    return catalog.find_model(name, version, {entry.name: entry.installed_version})
