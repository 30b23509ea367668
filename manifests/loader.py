"""The loader of a manifest file: safe YAML, validated against the schema, with located errors."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from inferometer.manifests.errors import ManifestError, suggestion
from inferometer.manifests.schema import DatasetManifest, FrameworkManifest, Manifest, ModelManifest
from inferometer.manifests.strict_yaml import parse_yaml

_KINDS: dict[str, type[Manifest]] = {
    "model": ModelManifest,
    "framework": FrameworkManifest,
    "dataset": DatasetManifest,
}
_MAX_BYTES = 4 * 1024 * 1024
_SHOWN_CHARACTERS = 60


def load_manifest(path: Path) -> Manifest:
    """Reads the manifest in the file ``path``; one without ``kind`` is a model's.

    Raises:
        ManifestError: The file cannot be read, is not YAML or does not fit the schema. The message names the
            file, the field, the value and what is allowed.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise ManifestError(f"{path}: is no file")
        if status.st_size > _MAX_BYTES:
            raise ManifestError(f"{path}: larger than {_MAX_BYTES} bytes, which no manifest is")
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # invalid YAML, or invalid UTF-8
        raise ManifestError(f"{path}: cannot be read as YAML: {error}") from error
    return parse_manifest(content, path)


def manifest_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of all manifests, for editors and other programs.

    The loader checks more: the schema has no relations between fields.
    """
    kinds = Annotated[ModelManifest | FrameworkManifest | DatasetManifest, Field(union_mode="left_to_right")]
    schema = TypeAdapter[Any](kinds).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "inferometer manifest",
        **schema,
    }


def parse_manifest(content: object, source: Path) -> Manifest:
    """Validates ``content``, as parsed from YAML, against the schema.

    Raises ManifestError, which names ``source``, if the content does not fit the schema.
    """
    if not isinstance(content, dict):
        raise ManifestError(
            f"{source}: holds {_shown(content)}; allowed: a mapping of fields such as name and version"
        )
    kind = content.get("kind", "model")
    schema = _KINDS.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise ManifestError(f"{source}: field kind: found {_shown(kind)}; allowed: {', '.join(_KINDS)}")
    try:
        manifest = schema.model_validate(content)
    except ValidationError as error:
        raise ManifestError(f"{source}: {_explain(error, schema)}") from error
    manifest._source = source
    return manifest


def _explain(error: ValidationError, schema: type[Manifest]) -> str:
    """Describes one error, and the number of further ones."""
    problems = _distinct(error.errors(include_url=False))
    # a misspelt field takes precedence over the missing one that it stands for
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    location, fields_beside = _locate(schema, first["loc"])
    if first["type"].startswith("union_tag"):
        location.append(first["ctx"]["discriminator"].strip("'"))
    field = ".".join(map(_field_name, location)) or "(the whole)"
    tag = first["input"].get(location[-1]) if first["type"] == "union_tag_invalid" else None
    if first["type"] in ("missing", "union_tag_not_found") or (
        first["type"] == "union_tag_invalid" and tag is None
    ):
        text = f"field {field}: is missing"
    elif first["type"] == "union_tag_invalid":
        text = f"field {field}: found {_shown(tag)}; allowed: {first['ctx']['expected_tags']}"
    elif first["type"] == "extra_forbidden":
        text = f"field {field}: is not known; {suggestion(str(location[-1]), fields_beside)}"
    else:
        reason = first["msg"].removeprefix("Value error, ")
        text = f"field {field}: found {_shown(first['input'])}; {reason[:1].lower()}{reason[1:]}"
    return text + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _distinct(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Removes the error that a list is too short if its items are invalid."""
    inner = {other["loc"][:length] for other in problems for length in range(len(other["loc"]))}
    return [problem for problem in problems if problem["type"] != "too_short" or problem["loc"] not in inner]


def _locate(schema: type[Manifest], place: tuple[int | str, ...]) -> tuple[list[int | str], list[str]]:
    """Returns the path of a problem in the manifest, and the known fields beside it.

    Inside a union, pydantic's ``place`` also contains the tag that selected a part.
    """
    node: Any = _json_schema(schema)
    definitions = node.get("$defs", {})
    location: list[int | str] = []
    beside: list[str] = []
    for part in place:
        if "discriminator" in node:
            node = {"$ref": node["discriminator"]["mapping"].get(part, "")}
        else:
            location.append(part)
            beside = list(node.get("properties", {}))
            node = (
                node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
            )
        while "$ref" in node:
            node = definitions.get(node["$ref"].rsplit("/", 1)[-1], {})
    return location, beside


@cache
def _json_schema(schema: type[Manifest]) -> dict[str, Any]:
    """Returns the JSON Schema of a kind of manifest, which takes 20 ms to make."""
    return schema.model_json_schema()


def _field_name(part: int | str) -> str:
    return part if isinstance(part, str) and part.isidentifier() else _shown(part)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
