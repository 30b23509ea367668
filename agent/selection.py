"""The choice of the model to open: which version, in which framework."""

from __future__ import annotations

import re
from functools import partial

from agent.predictor import Weights
from agent.registry import BUILTIN, Registry
from manifests.catalog import Catalog
from manifests.errors import ArtifactError, FrameworkUnavailableError
from manifests.schema import ModelManifest

# Whether an architecture has weights is for its predictor to say where a plug-in brings the framework.
_KNOWN_FRAMEWORKS = frozenset(entry.name.casefold() for entry in BUILTIN)


def select_model(
    catalog: Catalog,
    registry: Registry,
    name: str,
    version: str | None = None,
    framework: str | None = None,
    weights: Weights = Weights.PRETRAINED,
) -> ModelManifest:
    """Returns the model that an installed framework can run with the wanted weights, in its highest version.

    A version that can have the weights comes before a higher one that cannot. With random weights,
    architectures of the program come before those of packages, which need not be installed.

    Args:
        catalog: The models.
        registry: The frameworks; of several that have that version, the first installed one is taken.
        name: The model's name; case does not matter.
        version: A version or a constraint; None means any.
        framework: The only framework that may be used; None means any.
        weights: The weights that it will be opened with.

    Raises:
        UnknownModelError, UnknownFrameworkError: There is none of that name or version.
        FrameworkUnavailableError: The framework is not installed, or in no version that the model accepts.
        ArtifactError: Pretrained weights are wanted, and no manifest that fits names any; the message has the
            versions and frameworks that do.
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
    """How well a model can have the weights; 0 if it cannot."""
    files = manifest.model
    if weights is Weights.PRETRAINED:
        return int(bool(files.graph_path or files.weights_path))
    if files.architecture is None:
        return 0
    return 1 if ":" in files.architecture else 2


def _with_install_commands(
    error: FrameworkUnavailableError, catalog: Catalog, registry: Registry, name: str
) -> FrameworkUnavailableError:
    """The error, with the commands that install what is missing where something is."""
    named = [m for m in catalog.models if m.name.casefold() == name.strip().casefold()]
    wanted = {m.framework.name.casefold() for m in named}
    missing = [e for e in registry.entries if e.name.casefold() in wanted and not e.installed_version]
    if not missing:
        return error
    commands = " or ".join(entry.install for entry in missing)
    return FrameworkUnavailableError(f"{error}; install one with: {commands}")


def _without_weights(catalog: Catalog, chosen: ModelManifest) -> str:
    """Says that a model has no weights, and which of the same name have.

    A name's parts count too: who asks for ``BVLC-AlexNet`` hears of ``AlexNet``.
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
