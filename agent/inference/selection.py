"""The choice of the model to open: its version and its framework.

``describe_unloaded`` describes a model for uses that need only its manifest.
"""

from __future__ import annotations

import re
from functools import partial

from inferometer.agent.hardware.environment import CPU, Weights, container_architecture, read_environment
from inferometer.agent.inference.registry import BUILTIN, Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.preprocessing.model_preprocessor import model_preprocessor_of
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, FrameworkUnavailableError
from inferometer.manifests.schema import ModelManifest

_KNOWN_FRAMEWORKS = frozenset(entry.name.casefold() for entry in BUILTIN)


def select_model(
    catalog: Catalog,
    registry: Registry,
    name: str,
    version: str | None = None,
    framework: str | None = None,
    weights: Weights = Weights.PRETRAINED,
) -> ModelManifest:
    """Returns the highest version of a model that an installed framework can run with the requested weights.

    A version with the weights precedes a higher one without. For random weights, architectures of the program
    precede those of packages, which may not be installed. Of several frameworks with that version, the first
    installed one of the registry is selected. The case of names does not matter; ``version`` may be a
    constraint.

    Raises:
        UnknownModelError, UnknownFrameworkError: The name or version is unknown.
        FrameworkUnavailableError: The framework is not installed, or in no version that the model accepts.
        ArtifactError: Pretrained weights are requested, and no matching manifest names any; the message lists
            the versions and frameworks that do.
    """
    preference = partial(_suitability, weights=weights)
    if framework is None:
        try:
            chosen = catalog.find_model(name, version, registry.versions, preference)
        except FrameworkUnavailableError as error:
            raise _with_install_commands(error, catalog, registry, name) from error
    else:
        entry = registry.find(framework)
        entry.require_installed()
        chosen = catalog.find_model(name, version, {entry.name: entry.installed_version}, preference)
    built_in = chosen.framework.name.casefold() in _KNOWN_FRAMEWORKS
    if built_in and weights is Weights.PRETRAINED and not _suitability(chosen, weights):
        raise ArtifactError(_without_weights(catalog, chosen))
    return chosen


def _suitability(manifest: ModelManifest, weights: Weights) -> int:
    """Returns how well a model suits the weights; 0 if it cannot have them."""
    files = manifest.model
    if weights is Weights.PRETRAINED:
        return int(bool(files.graph_path or files.weights_path))
    if files.architecture is None:
        return 0
    return 1 if ":" in files.architecture else 2


def _with_install_commands(
    error: FrameworkUnavailableError, catalog: Catalog, registry: Registry, name: str
) -> FrameworkUnavailableError:
    """Returns the error, with the commands that install missing frameworks."""
    named = [m for m in catalog.models if m.name.casefold() == name.strip().casefold()]
    wanted = {m.framework.name.casefold() for m in named}
    missing = [e for e in registry.entries if e.name.casefold() in wanted and not e.installed_version]
    if not missing:
        return error
    commands = " or ".join(entry.install for entry in missing)
    return FrameworkUnavailableError(f"{error}; install one with: {commands}")


def _without_weights(catalog: Catalog, chosen: ModelManifest) -> str:
    """Returns the error for a model without weights, with models of the same name that have them.

    The parts of a name count too: for ``BVLC-AlexNet`` the message includes ``AlexNet``.
    """
    names = {chosen.name.casefold(), *re.split(r"[-_\s]", chosen.name.casefold())}
    others: dict[str, list[str]] = {}
    for model in catalog.models:
        if model.name.casefold() in names and _suitability(model, Weights.PRETRAINED):
            others.setdefault(f"{model.name} {model.version}", []).append(model.framework.name)
    have = "".join(f"; {model} has them for {', '.join(names)}" for model, names in others.items())
    return (
        f"model {chosen.name} {chosen.version} for {chosen.framework.name} has no published weights{have}; "
        "--weights=random is enough to measure speed"
    )


def describe_unloaded(
    manifest: ModelManifest, registry: Registry, *, preprocess_threads: int = 0, overlap: bool = False
) -> SystemDescription:
    """Describes a model without its files, on the CPU of this machine, whose framework does not run.

    Raises:
        ManifestError: The manifest requires something that is not supported, or other hardware.
        UnknownFrameworkError: The framework is unknown.
        FrameworkUnavailableError: The library that decodes the model's images is not installed.
    """
    require_supported(manifest, container_architecture())
    preprocessor = model_preprocessor_of(manifest)
    return SystemDescription(
        manifest=manifest,
        checksums={},
        framework_version=registry.find(manifest.framework.name).installed_version or "",
        device=CPU,
        threads=None,
        preprocess_threads=preprocess_threads,
        overlap=overlap,
        environment=read_environment(registry.versions, preprocessor.libraries),
    )
