"""The types of a manifest's fields, with their notation and validation."""

from __future__ import annotations

from typing import Annotated

from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.functional_validators import AfterValidator

from inferometer.manifests.original import OUTPUT_TYPES, layer_name, task_name, without_empty_fields
from inferometer.manifests.versions import Constraint, InvalidConstraintError

MAX_TENSOR_ELEMENTS = 2**28
"""The most elements of one input: 1 GiB of float32, far more than any model requires."""

DYNAMIC_AXIS = -1
"""What stands for a dynamic axis in the dimensions of a tensor."""


def _size_of_axis(value: int) -> int:
    if value < 1 and value != DYNAMIC_AXIS:
        raise ValueError(f"should be at least 1, or {DYNAMIC_AXIS} for a dynamic axis")
    return value


def _version_text(value: object) -> object:
    """YAML reads ``1.0`` as a number; a version is text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def check_version(value: str) -> str:
    """Returns the version; raises ValueError if it is none."""
    try:
        Version(value)
    except ValueError:  # InvalidVersion, or a number too long for int
        raise ValueError("a version is written like 1.0 or 2.1.3") from None
    return value


def check_constraint(value: str) -> str:
    """Returns the version constraint; raises ValueError if it is none."""
    try:
        Constraint(value)
    except InvalidConstraintError as error:
        raise ValueError(str(error)) from None
    return value


def _two_ends(value: tuple[float, float] | None) -> tuple[float, float] | None:
    """Requires that the first number is below the second."""
    if value is not None and not value[0] < value[1]:
        raise ValueError("allowed: the value of black and the larger one of white, such as [-1, 1]")
    return value


def _list_only(value: object) -> object:
    """Requires a list, because for an image one number means its height and width."""
    if not isinstance(value, list | tuple):
        raise ValueError("allowed: a list of whole numbers, without the batch")
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
InputLayer = Annotated[
    Name, BeforeValidator(layer_name), WithJsonSchema({"type": ["string", "integer"]}, mode="validation")
]
Dimensions = Annotated[
    tuple[Annotated[int, Field(ge=1, le=16384)], ...],
    WithJsonSchema({"type": ["integer", "array"], "items": {"type": "integer"}}, mode="validation"),
]
TensorDimensions = Annotated[
    tuple[Annotated[int, Field(le=MAX_TENSOR_ELEMENTS), AfterValidator(_size_of_axis)], ...],
    Field(min_length=1, max_length=8),
    BeforeValidator(_list_only),
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
    """The base class of a manifest's parts: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, content: object) -> object:
        return without_empty_fields(content, cls.model_fields)
