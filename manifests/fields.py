"""The types of a manifest's fields, with their validation and notations, including MLModelScope's.

MLModelScope reads YAML into Go's zero values, so a field without a value is treated as omitted.
``dimensions`` may be one number, and a checksum may be empty. Output types have other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.functional_validators import AfterValidator

from inferometer.manifests.versions import Constraint, InvalidConstraintError

OUTPUT_TYPES = {
    "feature": "classification",
    "boundingbox": "object_detection",
    "instancesegment": "instance_segmentation",
    "semanticsegment": "semantic_segmentation",
    "image": "image_enhancement",
}
"""MLModelScope's names of output types, and the names that this program uses."""
MISSPELT = {"probailities_layer": "probabilities_layer"}
"""Output fields that some MLModelScope manifests misspell, and the intended names."""
_OF_ANY_SIZE = tuple(task for task in OUTPUT_TYPES.values() if task != "classification")


def with_fields_spelt(content: object) -> object:
    """Corrects the names of the fields in ``MISSPELT``, unless the correct names are also present."""
    if not isinstance(content, Mapping):
        return content
    return {new if (new := MISSPELT.get(key, key)) not in content else key: content[key] for key in content}


def full_dimensions(content: object) -> object:
    """Returns an image's parameters with three ``dimensions`` in the order of its layout.

    A single number n, with or without brackets, means three channels of n × n. MLModelScope reads dimensions
    as CHW regardless of the layout: if they begin with the channels, they are CHW even with ``layout: HWC``.
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
    """Returns whether three dimensions begin with the number of channels and do not end with it."""
    three = isinstance(dimensions, list | tuple) and len(dimensions) == 3
    return three and dimensions[0] == channels != dimensions[2]  # type: ignore[index]


def any_size_where_none_is_given(content: object) -> object:
    """Adds empty dimensions, which mean any size, to the image inputs of models that do not classify.

    Otherwise, the manifests of models that accept images of any size could not be listed.
    """
    if not isinstance(content, Mapping) or not isinstance(inputs := content.get("inputs"), list | tuple):
        return content
    output = content.get("output")
    kind = output.get("type") if isinstance(output, Mapping) else None
    if task_name(kind) not in _OF_ANY_SIZE:
        return content
    return {**content, "inputs": [_of_any_size(entry) for entry in inputs]}


def task_name(value: object) -> object:
    """Returns the name that this program uses for an output type."""
    return OUTPUT_TYPES.get(value.strip(), value.strip()) if isinstance(value, str) else value


def _of_any_size(entry: object) -> object:
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(parameters, Mapping):
        return entry
    if entry.get("type") == "tensor" or parameters.get("dimensions") is not None:
        return entry
    return {**entry, "parameters": {**parameters, "dimensions": ()}}


def _version_text(value: object) -> object:
    """Turns a number into text: YAML reads ``1.0`` as a number, but a version is text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def check_version(value: str) -> str:
    """Returns the version; raises ValueError if the text is not a version."""
    try:
        Version(value)
    except ValueError:  # InvalidVersion, or a number too long for int
        raise ValueError("a version is written like 1.0 or 2.1.3") from None
    return value


def check_constraint(value: str) -> str:
    """Returns the version constraint; raises ValueError if the text is not a constraint."""
    try:
        Constraint(value)
    except InvalidConstraintError as error:
        raise ValueError(str(error)) from None
    return value


def _two_ends(value: tuple[float, float] | None) -> tuple[float, float] | None:
    """Requires the first number to be less than the second."""
    if value is not None and not value[0] < value[1]:
        raise ValueError("allowed: the value of black and the larger value of white, such as [-1, 1]")
    return value


Name = Annotated[
    str,
    Field(min_length=1, max_length=200),
    BeforeValidator(lambda v: v.strip() if isinstance(v, str) else v),
]
VersionText = Annotated[
    str, BeforeValidator(_version_text), WithJsonSchema({"type": ["string", "number"]}, mode="validation")
]
PerChannel = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=False)], ...],
    BeforeValidator(lambda v: (v,) if isinstance(v, int | float) else v),
    WithJsonSchema({"type": ["number", "array"], "items": {"type": "number"}}, mode="validation"),
]
_TASK = r"^[A-Za-z][A-Za-z0-9_.-]*$"
OutputType = Annotated[
    str,
    Field(max_length=200, pattern=_TASK),
    BeforeValidator(task_name),
    WithJsonSchema(
        {"type": "string", "pattern": _TASK, "examples": [*OUTPUT_TYPES, *OUTPUT_TYPES.values(), "raw"]},
        mode="validation",
    ),
]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
ImageRange = Annotated[tuple[_Finite, _Finite] | None, AfterValidator(_two_ends)]
Layer = int | str
FilePath = Annotated[str | None, AfterValidator(lambda v: v or None)]
# also the first 8 digits of SHA-256, as in torchvision's file names; MLModelScope's MD5 has no prefix
_CHECKSUM = r"^(sha256:([0-9a-fA-F]{64}|[0-9a-fA-F]{8})|sha1:[0-9a-fA-F]{40}|[0-9a-fA-F]{32})?$"
Checksum = Annotated[
    str,
    Field(pattern=_CHECKSUM),
    WithJsonSchema({"type": ["string", "null"], "pattern": _CHECKSUM}, mode="validation"),
]


class Part(BaseModel):
    """The base class of a manifest's parts, which are frozen and reject unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, content: object) -> object:
        """Removes fields without a value, but keeps unknown fields, which validation rejects."""
        if not isinstance(content, Mapping):
            return content
        known = cls.model_fields
        return {key: value for key, value in content.items() if value is not None or key not in known}
