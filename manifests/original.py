"""The notation of MLModelScope's manifests, where it differs from the schema.

MLModelScope reads YAML into Go's zero values: a field without a value counts as left out. An input layer is a
name or a number, ``dimensions`` may be one number, a checksum may be empty. Output types have other names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

FIRST_INPUT = "data"
"""The default name of an input."""
HOOKS = (
    "before_preprocess",
    "preprocess",
    "after_preprocess",
    "before_postprocess",
    "postprocess",
    "after_postprocess",
)
"""The fields with code."""
OUTPUT_TYPES = {
    "feature": "classification",
    "boundingbox": "object_detection",
    "instancesegment": "instance_segmentation",
    "semanticsegment": "semantic_segmentation",
    "image": "image_enhancement",
}
"""The original names of output types, and the names here."""
MISSPELT = {"probailities_layer": "probabilities_layer"}
"""Fields of outputs as some of its manifests misspell them, and as they are meant."""
_OF_ANY_SIZE = tuple(task for task in OUTPUT_TYPES.values() if task != "classification")


def with_fields_spelt(content: object) -> object:
    """Gives the fields of ``MISSPELT`` their right names, unless these are there too."""
    if not isinstance(content, Mapping):
        return content
    return {new if (new := MISSPELT.get(key, key)) not in content else key: content[key] for key in content}


def without_empty_fields(content: object, fields: Collection[str]) -> object:
    """Removes ``fields`` without a value; other fields stay, and validation rejects them."""
    if not isinstance(content, Mapping):
        return content
    return {key: value for key, value in content.items() if value is not None or key not in fields}


def full_dimensions(content: object) -> object:
    """Returns an image's parameters with three ``dimensions`` in the order of its layout.

    A single number n, with or without brackets, means three channels of n × n. MLModelScope reads dimensions
    as CHW whatever the layout is, so that those that begin with the channels under ``layout: HWC`` are CHW.
    """
    if not isinstance(content, Mapping):
        return content
    dimensions: Any = content.get("dimensions")
    channels = 1 if content.get("color_mode") == "GRAY" else 3
    if content.get("layout") == "HWC" and _begin_with(dimensions, channels):
        return {**content, "dimensions": (*dimensions[1:], channels)}
    if isinstance(dimensions, list | tuple) and len(dimensions) == 1:
        dimensions = dimensions[0]
    if isinstance(dimensions, bool) or not isinstance(dimensions, int):
        return content
    hwc = content.get("layout") == "HWC"
    return {**content, "dimensions": (dimensions, dimensions, 3) if hwc else (3, dimensions, dimensions)}


def _begin_with(dimensions: object, channels: int) -> bool:
    """Returns whether three dimensions begin, and do not end, with the channels."""
    three = isinstance(dimensions, list | tuple) and len(dimensions) == 3
    return three and dimensions[0] == channels != dimensions[2]  # type: ignore[index]


def any_size_where_none_is_given(content: object) -> object:
    """Adds empty dimensions, which mean any size, to images of models that do not classify.

    Otherwise manifests of models for images of any size could not be listed.
    """
    if not isinstance(content, Mapping) or not isinstance(inputs := content.get("inputs"), list | tuple):
        return content
    output = content.get("output")
    kind = output.get("type") if isinstance(output, Mapping) else None
    if task_name(kind) not in _OF_ANY_SIZE:
        return content
    return {**content, "inputs": [_of_any_size(entry) for entry in inputs]}


def task_name(value: object) -> object:
    """Returns the name here of an output type."""
    return OUTPUT_TYPES.get(value.strip(), value.strip()) if isinstance(value, str) else value


def _of_any_size(entry: object) -> object:
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(parameters, Mapping):
        return entry
    if entry.get("type") == "tensor" or parameters.get("dimensions") is not None:
        return entry
    return {**entry, "parameters": {**parameters, "dimensions": ()}}


def layer_name(value: object) -> object:
    """Returns the name of an input given by its number: ``data`` for the first, ``#1`` for the next."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1000:
        return value
    return f"#{value}" if value else FIRST_INPUT


def is_numbered_layer(name: str) -> bool:
    """Returns whether a layer is given by its number, and is not the first."""
    return name[:1] == "#" and name[1:].isdecimal()
