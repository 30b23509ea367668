"""The notation of MLModelScope's manifests, where YAML's values are not those of the schema's fields.

Its YAML was read into Go's zero values: a field with nothing behind it counts as left out. An input layer is
a name or a number, ``dimensions`` may be one number, a checksum may be empty. ``feature`` is the first name
of the output type ``classification``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

FIRST_INPUT = "data"
"""The name of an input that a manifest does not name."""
HOOKS = (
    "before_preprocess",
    "preprocess",
    "after_preprocess",
    "before_postprocess",
    "postprocess",
    "after_postprocess",
)
"""The fields that hold code."""


def without_empty_fields(content: object, fields: Collection[str]) -> object:
    """Leaves out those of ``fields`` that have nothing behind them; others stay, to be refused."""
    if not isinstance(content, Mapping):
        return content
    return {key: value for key, value in content.items() if value is not None or key not in fields}


def full_dimensions(content: object) -> object:
    """Writes the single value n of ``dimensions``, with or without brackets, as three channels of n × n."""
    if not isinstance(content, Mapping):
        return content
    dimensions: Any = content.get("dimensions")
    if isinstance(dimensions, list | tuple) and len(dimensions) == 1:
        dimensions = dimensions[0]
    if isinstance(dimensions, bool) or not isinstance(dimensions, int):
        return content
    hwc = content.get("layout") == "HWC"
    return {**content, "dimensions": (dimensions, dimensions, 3) if hwc else (3, dimensions, dimensions)}


def any_size_where_none_is_given(content: object) -> object:
    """Gives an image without dimensions empty ones, which mean any size, where the model does not classify.

    Without this, a manifest of a model that takes images of any size could not be listed.
    """
    if not isinstance(content, Mapping) or not isinstance(inputs := content.get("inputs"), list | tuple):
        return content
    output = content.get("output")
    kind = output.get("type") if isinstance(output, Mapping) else None
    if kind not in ("boundingbox", "semanticsegment", "instancesegment", "image"):
        return content
    return {**content, "inputs": [_of_any_size(entry) for entry in inputs]}


def _of_any_size(entry: object) -> object:
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(parameters, Mapping):
        return entry
    if entry.get("type") == "tensor" or parameters.get("dimensions") is not None:
        return entry
    return {**entry, "parameters": {**parameters, "dimensions": ()}}


def layer_name(value: object) -> object:
    """Gives a name to an input that is told by its number: ``data`` to the first, ``#1`` to the next."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1000:
        return value
    return f"#{value}" if value else FIRST_INPUT


def is_numbered_layer(name: str) -> bool:
    """Whether a layer was told by its number, and is not the first."""
    return name[:1] == "#" and name[1:].isdecimal()
