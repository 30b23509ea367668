"""Requirements of manifests that this program does not support.

MLModelScope's manifests are always listed. Opening a model reports whatever is not supported, so that no
field of a manifest is silently ignored. The list of models loads this module, so it does not load NumPy.
"""

from __future__ import annotations

from collections import Counter

from inferometer.agent.hardware.environment import container_architecture
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import ManifestError, suggestion
from inferometer.manifests.inputs import ImageParameters, InputParameters, is_numbered_layer
from inferometer.manifests.schema import HOOKS, ModelManifest

_REFUSED = {"mxnet": ("string", "int16", "uint16", "uint32"), "pytorch": ("string",)}
"""The element types of inputs that a framework lacks."""
_SCORES = ("", "float32", "float16")


def unsupported(manifest: ModelManifest, architecture: str = "") -> list[str]:
    """Returns the unsupported requirements of a model, each as one line that begins with the field.

    ``architecture`` is the machine's, under its name in container images (``amd64``); empty means any.
    """
    found = []
    made_for = sorted({container_architecture(name) for name in manifest.container})
    if made_for and architecture and architecture not in made_for:
        found.append(
            f"field container: the model was made for {', '.join(made_for)}, but this machine is "
            f"{architecture}; to run it here all the same, add {architecture} to container, or leave "
            "container out"
        )
    names = Counter(each.name for each in manifest.tensors)
    found += [
        f"field inputs: found input_layer '{name}' {times} times; each needs a name of its own"
        for name, times in names.items()
        if times > 1
    ]
    refused = _REFUSED.get(manifest.framework.name.casefold(), ())
    found += [
        f"field inputs.parameters.element_type: found '{name}', which {manifest.framework.name} does not "
        "accept; supported: ONNXRuntime"
        for name in dict.fromkeys(each.parameters.element_type.value for each in manifest.inputs)
        if name in refused
    ]
    for place, model_input in enumerate(manifest.inputs):
        wanting = _of_input(model_input.parameters, names.total())
        found += [f"field inputs.{place}.parameters.{text}" for text in wanting]
    output = manifest.output
    if output.type not in POSTPROCESSORS and not manifest.generates:
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
    """Describes in one line which files of a model can run code when opened; see ``docs/security.md``."""
    files, framework = manifest.model, manifest.framework.name.casefold()
    if manifest.generates:
        return "its files cannot run code; its chat template, if it has one, runs in Jinja's sandbox"
    if files.architecture:
        return f"its weights cannot run code; its architecture, {files.architecture}, is code on this machine"
    if framework == "pytorch" and (files.graph_path or "").casefold().endswith(".pt2"):
        return "its graph has PyTorch's operators, none of which opens a file; its files cannot run code"
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
            f"input{'' if inputs == 1 else 's'}; supported: a number from 0, the first, or an input's name"
        )
    return found


def unsupported_here(manifest: ModelManifest) -> list[str]:
    """Returns the requirements of a model that are not supported on this machine."""
    return unsupported(manifest, container_architecture())


def require_supported(
    manifest: ModelManifest, architecture: str = "", *, generates: bool = False
) -> ModelManifest:
    """Returns the manifest; raises ManifestError if it has unsupported requirements.

    Raises ConfigurationError if it generates text, unless the caller wants one that ``generates``.
    """
    if not generates:
        manifest.require_predictions()
    if found := unsupported(manifest, architecture):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ManifestError(
            f"{manifest.source}: model {manifest.name} {manifest.version} cannot be opened: {found[0]}{more}"
        )
    return manifest
