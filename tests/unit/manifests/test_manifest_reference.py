"""The tables of docs/manifests.md have the fields of the schema, each with its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from inferometer.manifests.schema import DatasetManifest, FrameworkManifest, ModelManifest

PAGE = Path(__file__).parents[3] / "docs" / "manifests.md"
MANIFESTS = {"model": ModelManifest, "dataset": DatasetManifest, "framework": FrameworkManifest}
EMPTY = "–"


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models within a type, such as those of a list or of a choice."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _default(field: FieldInfo) -> str:
    """The default as the page writes it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, BaseModel) or value in (None, "", (), {}):
        return EMPTY
    return f"`{value:g}`" if isinstance(value, int | float) else f"`{value}`"


def _schema_fields(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield before + name, _default(field)
        for part in _parts(field.annotation):
            yield from _schema_fields(part, f"{before}{name}.")


def _described_fields(kind: str) -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    section = rf"^### {kind.capitalize()} fields\n(.*?)(?=^#|\Z)"
    (table,) = re.findall(section, text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.+) \|$", table, re.MULTILINE)
    return [(name.strip("`"), default) for names, default, _ in rows for name in names.split(", ")]


@pytest.mark.parametrize("kind", MANIFESTS)
def test_every_field_is_described_once_with_its_default(kind: str) -> None:
    described = _described_fields(kind)

    # an image and a tensor share some fields
    assert sorted(described) == sorted(set(_schema_fields(MANIFESTS[kind])))
