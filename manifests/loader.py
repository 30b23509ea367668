"""Reads manifests as safe YAML, validates them against the schema, and writes them.

Errors are located. Ambiguous YAML constructs are
rejected. PyYAML parses in Python or, five times as fast, in C with libyaml. The two differ for some texts,
and in their messages: libyaml is used where they agree, and PyYAML's own parser for whatever libyaml rejects.
A new manifest, written for a model's file, contains comments that say what the user has to fill in.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from inferometer.manifests.errors import InferometerError, ManifestError, shown_value, suggestion
from inferometer.manifests.inputs import (
    DYNAMIC_AXIS,
    ColorMode,
    ElementType,
    ImageParameters,
    InputParameters,
)
from inferometer.manifests.schema import DatasetManifest, FrameworkManifest, Manifest, ModelManifest

_MAX_NUMBER_BITS = 63
_MOST_ALIASED = 100_000
_CHARACTERS_OF_A_VALUE = 64
"""Longer texts count as several values."""
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
# what PyYAML raises, beside its own errors, for invalid values of a tag and for deep nesting
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
# what libyaml accepts and PyYAML does not, or reads as another value; found with random texts
_READ_DIFFERENTLY = re.compile(r"[!?\t\ufeff]|(?<!\S)[^\s|>]*[|>]\S*#")


class InvalidYamlError(ValueError):
    """A text is not valid YAML, or uses constructs that manifests do not allow."""


def parse_yaml(text: str, *, libyaml: bool = yaml.__with_libyaml__) -> Any:
    """Parses YAML into mappings, lists, text, numbers, booleans, dates and None.

    - ``version: 1.10`` stays text; YAML reads it as the number 1.1.
    - A repeated field is an error; YAML uses the last one.
    - An alias stands for its value. More than 100,000 values in aliases are an error, since a few lines of
      aliases can expand beyond the memory, and so is an alias within its own value.
    - An integer of more than 63 bits is an error: no database accepts it.

    Whether libyaml is used affects only the speed.

    Raises:
        InvalidYamlError: The text is not valid; the message is one line.
    """
    if libyaml and not _READ_DIFFERENTLY.search(text):
        try:
            return yaml.load(text, _LibyamlLoader)  # noqa: S506 - a safe loader
        except _YAML_ERRORS:
            pass  # PyYAML reports the error with its position
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise InvalidYamlError("is nested too deep") from error
    except _YAML_ERRORS as error:
        raise InvalidYamlError(" ".join(str(error).split())) from error


class _StrictLoader(yaml.SafeLoader):
    """The loader written in Python; see ``parse_yaml``."""

    _composed = _aliased = 0
    """The values so far, with those that aliases stand for, and the number of those."""

    @cached_property
    def _sizes(self) -> dict[str | None, int]:
        """The number of values in each complete value, by its anchor."""
        return {}

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        if number.bit_length() > _MAX_NUMBER_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"found a whole number of more than {_MAX_NUMBER_BITS} bits", node.start_mark
            )
        return number

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._composed  # type: ignore[no-untyped-call] # as types-PyYAML has it
        node = super().compose_node(parent, index)
        anchor = getattr(event, "anchor", None)
        if not isinstance(event, yaml.AliasEvent):
            self._composed += 1 + len(node.value) // _CHARACTERS_OF_A_VALUE if node else 1
            self._sizes[anchor] = self._composed - before
            return node
        size = self._sizes.get(anchor, 0)
        self._composed, self._aliased = self._composed + size, self._aliased + size
        if not size or self._aliased > _MOST_ALIASED:
            many = f"; aliases expand to more than {_MOST_ALIASED:,} values; write out some of them"
            reason = many if size else " within its own value"
            raise yaml.composer.ComposerError(
                None,
                None,
                f"found the alias *{anchor}{reason}",
                event.start_mark,  # type: ignore[arg-type]
            )
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for place, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"found the field {key.value} twice", key.start_mark
                )
            seen.add((key.tag, key.value))
            if key.value == "version" and value.tag in _NUMBER_TAGS:
                text = yaml.ScalarNode("tag:yaml.org,2002:str", value.value, value.start_mark, value.end_mark)
                node.value[place] = (key, text)
        return node


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


class _LibyamlLoader(_StrictLoader):
    """The loader of ``parse_yaml`` with libyaml's parser.

    libyaml's composer is not used: it recurses in C, so deep nesting would crash the process.
    """

    def __init__(self, text: str) -> None:
        from yaml._yaml import CParser  # only available if PyYAML was built with libyaml

        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._parser = CParser(text)

    def check_event(self, *choices: Any) -> bool:
        return self._parser.check_event(*choices)

    def peek_event(self) -> yaml.Event | None:
        return self._parser.peek_event()

    def get_event(self) -> yaml.Event | None:
        return self._parser.get_event()

    def dispose(self) -> None:
        self._parser.dispose()


_KINDS: dict[str, type[Manifest]] = {
    "model": ModelManifest,
    "framework": FrameworkManifest,
    "dataset": DatasetManifest,
}
_MAX_BYTES = 4 * 1024 * 1024


def load_manifest(path: Path) -> Manifest:
    """Reads the manifest in the file ``path``; a manifest without ``kind`` describes a model.

    Raises:
        ManifestError: The file cannot be read, is not YAML or does not fit the schema. The message names the
            file, the field, the value and what is allowed.
    """
    return parse_manifest(read_yaml(path, "a manifest", ManifestError), path)


def read_yaml(path: Path, what: str, error_class: type[InferometerError]) -> Any:
    """Returns the content of a file as ``parse_yaml`` does.

    Raises:
        InferometerError: The file cannot be read, is not YAML, or is too large for ``what``. It is of the
            class ``error_class``.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise error_class(f"{path}: is not a file")
        if status.st_size > _MAX_BYTES:
            raise error_class(f"{path}: larger than {_MAX_BYTES} bytes, the limit for {what}")
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_class(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # invalid YAML, or invalid UTF-8
        raise error_class(f"{path}: cannot be read as YAML: {error}") from error


def manifest_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of all manifests, for editors and other programs.

    The loader checks more: the schema does not express relations between fields.
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

    Raises a ManifestError that names ``source`` if the content does not fit the schema.
    """
    if not isinstance(content, dict):
        raise ManifestError(
            f"{source}: holds {shown_value(content)}; allowed: a mapping of fields such as name and version"
        )
    kind = content.get("kind", "model")
    schema = _KINDS.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise ManifestError(f"{source}: field kind: found {shown_value(kind)}; allowed: {', '.join(_KINDS)}")
    try:
        manifest = schema.model_validate(content)
    except ValidationError as error:
        raise ManifestError(f"{source}: {_explain(error, schema)}") from error
    manifest._source = source
    return manifest


def _explain(error: ValidationError, schema: type[Manifest]) -> str:
    """Describes one of the errors, and states how many more there are."""
    found = error.errors(include_url=False)
    # a list that is too short is no problem if its own items are invalid
    inner = {each["loc"][:length] for each in found for length in range(len(each["loc"]))}
    problems = [each for each in found if each["type"] != "too_short" or each["loc"] not in inner]
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
        text = f"field {field}: found {shown_value(tag)}; allowed: {first['ctx']['expected_tags']}"
    elif first["type"] == "extra_forbidden":
        text = f"field {field}: is not known; {suggestion(str(location[-1]), fields_beside)}"
    else:
        reason = first["msg"].removeprefix("Value error, ")
        text = f"field {field}: found {shown_value(first['input'])}; {reason[:1].lower()}{reason[1:]}"
    return text + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _locate(schema: type[Manifest], place: tuple[int | str, ...]) -> tuple[list[int | str], list[str]]:
    """Returns the path of a problem in the manifest, and the known fields at the same level.

    Inside a union, pydantic's ``place`` also contains the tag that selected one of its types.
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
    """Returns the JSON Schema for a kind of manifest, which takes 20 ms to create."""
    return schema.model_json_schema()


def _field_name(part: int | str) -> str:
    return part if isinstance(part, str) and part.isidentifier() else shown_value(part)


_LABELS = "  # labels: [cat, dog]   # in the order of the outputs; or features_url: labels.txt, one a line"


def _output(task: Mapping[str, Any], sure: str, reason: str) -> Iterator[str]:
    """Yields the output: a task that is certain or likely, or else a comment beside ``type: raw``."""
    yield f"# {sure}: {task['type']}, because {reason}"
    yield "output:"
    dumped = yaml.safe_dump(task, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    if "labels" not in task["parameters"]:
        dumped.append(_LABELS)
    if sure != "guess":
        yield from (f"  {line}" for line in dumped)
        return
    yield "  type: raw   # the output tensors unchanged, so that no accuracy is counted"
    if task["type"] != "raw":
        yield from (f"  # {line}" for line in dumped)


def manifest_text(
    manifest: ModelManifest,
    folder: Path,
    target: Path,
    checksums: Mapping[str, str],
    task: tuple[Mapping[str, Any], str, str],
    fixed_batch: int | None = None,
) -> str:
    """Returns the YAML of a manifest whose inputs were inferred from a file.

    Args:
        manifest: The manifest, which gives its files as names in ``folder``.
        folder: The folder of the files.
        target: The folder of the manifest, to which paths are relative.
        checksums: The checksum of each file, by the file's name.
        task: The output that the file suggests, how sure that is, and the reason.
        fixed_batch: The only batch size that the model accepts; None if it accepts any.
    """

    def lines() -> Iterator[str]:
        files = manifest.model
        yield f"name: {_scalar(manifest.name)}"
        yield 'version: "1.0"              # of the model; fill it in if there are several'
        yield "framework:"
        yield f"  name: {_scalar(manifest.framework.name)}"
        yield '  version: "*"              # the versions that it runs in, such as ">=1.17"'
        if fixed_batch:
            yield f"# the model takes batches of {fixed_batch} only: --batch_size={fixed_batch}"
        yield "inputs:"
        for model_input in manifest.inputs:
            parameters = model_input.parameters
            dynamic = f", {DYNAMIC_AXIS} for a dynamic axis" if DYNAMIC_AXIS in parameters.dimensions else ""
            yield f"  - type: {model_input.type}"
            yield "    parameters:"
            yield f"      dimensions: {list(parameters.dimensions)}   # without the batch{dynamic}"
            yield f"      element_type: {parameters.element_type.value}"
            yield f"      input_layer: {_scalar(parameters.input_layer)}"
            yield from (f"      {line}" for line in _preprocessing(parameters))
        yield from _output(*task)
        yield "model:"
        for field, name in (("graph", files.graph_path), ("weights", files.weights_path)):
            if name is not None:
                path = Path(os.path.relpath(folder / name, target)).as_posix()
                yield f"  {field}_path: {_scalar(path)}   # relative to this file"
                yield f"  {field}_checksum: {checksums[name]}"
        yield "# dataset: my_images          # the default of --dataset_name"
        yield "# description: what it does, and where it comes from"
        yield "# license: that of the model"

    return "\n".join(lines()) + "\n"


def _preprocessing(parameters: InputParameters) -> Iterator[str]:
    """Yields the preprocessing of images, which is assumed because a model's file does not declare it."""
    if not isinstance(parameters, ImageParameters):
        yield "# type image, with its parameters, takes pictures: see docs/manifests.md"
        return
    yield f"layout: {parameters.layout.value}"
    grey = parameters.color_mode is ColorMode.GRAY
    yield f"color_mode: {parameters.color_mode.value}" + ("" if grey else "           # or BGR")
    if parameters.element_type is not ElementType.UINT8:
        yield "# fill in what the model was trained with: (pixel - mean) / scale, with pixels in 0…255"
        yield "mean: 0                   # one number" + ("" if grey else ", or red, green and blue")
        yield "scale: 255"
    yield "keep_aspect_ratio: true   # resize the shorter side; false resizes both"
    yield "crop_method: center       # center, topleft, or none: the whole image is resized"
    yield "crop_ratio: 1             # resize to dimensions / crop_ratio, then crop; 0.875 for many models"


def _scalar(text: str) -> str:
    return yaml.safe_dump(text, allow_unicode=True, width=10_000).splitlines()[0]
