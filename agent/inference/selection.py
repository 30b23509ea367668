"""The choice of the model to open: its version, its framework, and whether this program supports it.

Manifests of MLModelScope are always listed. Opening a model reports what is not supported, so that no
field of a manifest is silently ignored. ``describe_unloaded`` describes a model for uses that need only
its manifest.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

from inferometer.agent.hardware.environment import CPU, container_architecture, read_environment
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.registry import BUILTIN, Registry
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.preprocessing.model_preprocessor import model_preprocessor_of
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, FrameworkUnavailableError, ManifestError, suggestion
from inferometer.manifests.fields import HOOKS, is_numbered_layer
from inferometer.manifests.schema import ImageParameters, InputParameters, ModelManifest, TensorElementType

_WITHOUT_STRINGS = ("mxnet", "pytorch")
_SCORES = ("", "float32", "float16")


def unsupported(manifest: ModelManifest, architecture: str = "") -> list[str]:
    """Returns the unsupported requirements of a model, each as one line that begins with the field.

    ``architecture`` is that of the machine as container images name it (``amd64``); empty means any.
    """
    found = []
    made_for = sorted({container_architecture(name) for name in manifest.container})
    if made_for and architecture and architecture not in made_for:
        found.append(
            f"field container: the model was made for {', '.join(made_for)}, and this machine is "
            f"{architecture}; to run it here all the same, add {architecture} to container, or leave "
            "container out"
        )
    names = Counter(each.name for each in manifest.tensors)
    found += [
        f"field inputs: found input_layer '{name}' {times} times; each needs a name of its own"
        for name, times in names.items()
        if times > 1
    ]
    if manifest.framework.name.casefold() in _WITHOUT_STRINGS and any(
        model_input.parameters.element_type is TensorElementType.STRING for model_input in manifest.inputs
    ):
        found.append(
            f"field inputs.parameters.element_type: found 'string', which {manifest.framework.name} does not "
            "take; supported: ONNXRuntime"
        )
    for place, model_input in enumerate(manifest.inputs):
        wanting = _of_input(model_input.parameters, names.total())
        found += [f"field inputs.{place}.parameters.{text}" for text in wanting]
    output = manifest.output
    if output.type not in POSTPROCESSORS:
        found.append(
            f"field output.type: found '{output.type}', which has no postprocessing here; "
            f"{suggestion(output.type, POSTPROCESSORS.names())}"
        )
    elif output.type == "classification" and output.parameters.element_type not in _SCORES:
        found.append(
            f"field output.parameters.element_type: found '{output.parameters.element_type}'; "
            "a classification's scores are float32 or float16"
        )
    for hook in HOOKS:
        if getattr(manifest, hook):
            found.append(f"field {hook}: holds code, and code in a manifest is never run")
    return found


def code_of(manifest: ModelManifest) -> str:
    """Describes in one line which of a model's files can run code when opened; see ``docs/security.md``."""
    files, framework = manifest.model, manifest.framework.name.casefold()
    if files.architecture:
        return f"its weights cannot run code; its architecture, {files.architecture}, is code on this machine"
    if framework == "pytorch" and (files.graph_path or "").casefold().endswith(".pt2"):
        return "its graph has PyTorch's operators, of which none opens a file; its files cannot run code"
    if framework == "pytorch":
        return "its graph is TorchScript, a program whose operators can read and write files"
    if framework in {"mxnet", "onnxruntime"}:
        return "its files cannot run code"
    return f"the plug-in for {manifest.framework.name} decides what its files can do"


def _of_input(parameters: InputParameters, inputs: int) -> list[str]:
    found = []
    if isinstance(parameters, ImageParameters) and parameters.any_size and parameters.crop_ratio != 1:
        found.append(
            f"crop_ratio: found {parameters.crop_ratio:g}; images of any size are not cropped: leave it "
            "out, or give dimensions without max_dimension"
        )
    if is_numbered_layer(parameters.input_layer) and int(parameters.input_layer[1:]) >= inputs:
        number = parameters.input_layer[1:]
        found.append(
            f"input_layer: found {number}, and the manifest has {inputs} "
            f"input{'' if inputs == 1 else 's'}; supported: 0, the first input, and on, or an input's name"
        )
    return found


def unsupported_here(manifest: ModelManifest) -> list[str]:
    """Returns the unsupported requirements of a model on this machine."""
    return unsupported(manifest, container_architecture())


def require_supported(manifest: ModelManifest, architecture: str = "") -> ModelManifest:
    """Returns the manifest; raises ManifestError for unsupported requirements."""
    if found := unsupported(manifest, architecture):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ManifestError(
            f"{manifest.source}: model {manifest.name} {manifest.version} cannot be opened: {found[0]}{more}"
        )
    return manifest


# for the framework of a plug-in, its predictor knows whether an architecture has weights
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
