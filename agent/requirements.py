"""What a manifest asks for, and this program does not do.

A manifest that was written for MLModelScope is listed whatever it asks for. What cannot be honoured is said
when the model is opened, so that nothing means something else than it says.
"""

from __future__ import annotations

from agent.environment import container_architecture
from manifests.errors import ManifestError
from manifests.inputs import ImageParameters, InputParameters
from manifests.original import HOOKS, is_numbered_layer
from manifests.schema import ModelManifest

_POSTPROCESSED = ("classification", "raw")
_SCORES = ("", "float32", "float16")


def unsupported(manifest: ModelManifest, architecture: str = "") -> list[str]:
    """Returns what the model asks for and cannot have, each as one line that begins with the field.

    Args:
        manifest: The model.
        architecture: That of the machine, as container images call it (``amd64``); empty means any.
    """
    found = _of_container(manifest, architecture)
    if len(manifest.inputs) > 1:
        found.append(
            f"field inputs: found {len(manifest.inputs)}; a model with more than one is not supported"
        )
    for place, model_input in enumerate(manifest.inputs):
        found += [f"field inputs.{place}.parameters.{text}" for text in _of_input(model_input.parameters)]
    output = manifest.output
    if output.type not in _POSTPROCESSED:
        found.append(
            f"field output.type: found '{output.type}', which has no postprocessing here; "
            f"supported: {', '.join(_POSTPROCESSED)}"
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


def _of_container(manifest: ModelManifest, architecture: str) -> list[str]:
    made_for = sorted({container_architecture(name) for name in manifest.container})
    if not made_for or not architecture or architecture in made_for:
        return []
    return [
        f"field container: the model was made for {', '.join(made_for)}, and this machine is {architecture}; "
        f"to run it here all the same, add {architecture} to container, or leave container out"
    ]


def _of_input(parameters: InputParameters) -> list[str]:
    found = _of_image(parameters) if isinstance(parameters, ImageParameters) else []
    if is_numbered_layer(parameters.input_layer):
        number = parameters.input_layer[1:]
        found.append(f"input_layer: found {number}; supported: 0, the first input, or an input's name")
    return found


def _of_image(parameters: ImageParameters) -> list[str]:
    found = []
    if not parameters.dimensions:
        found.append("dimensions: is missing; images of any size are not supported")
    elif parameters.channels_first:
        found.append(
            f"dimensions: found {list(parameters.dimensions)}, which is CHW, but layout is HWC; "
            "write dimensions in the order of layout"
        )
    if parameters.max_dimension is not None:
        found.append(
            f"max_dimension: found {parameters.max_dimension}, which gives each image a size of its own; "
            "a model here takes one size: leave it out, and give dimensions"
        )
    return found


def require_supported(manifest: ModelManifest, architecture: str = "") -> ModelManifest:
    """Returns the manifest.

    Args:
        manifest: The model.
        architecture: That of the machine, as container images call it (``amd64``); empty means any.

    Raises:
        ManifestError: It asks for something that cannot be had.
    """
    if found := unsupported(manifest, architecture):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ManifestError(
            f"{manifest.source}: model {manifest.name} {manifest.version} cannot be opened: {found[0]}{more}"
        )
    return manifest
