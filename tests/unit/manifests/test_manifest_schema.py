"""The schema: the meaning of valid manifests, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifest_content import DATASET, MODEL, REMOVED, changed

from inferometer.manifests.errors import ManifestError
from inferometer.manifests.inputs import (
    ColorMode,
    CropMethod,
    ElementType,
    ImageParameters,
    Interpolation,
    Layout,
)
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import DatasetManifest, FrameworkManifest, ModelManifest, Transform

SOURCE = Path("folder") / "tiny.yml"
IMAGE = "inputs.0.parameters"


def refusal(content: object) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(content, SOURCE)
    message = str(caught.value)
    assert message.startswith(f"{SOURCE}: ")
    assert len(message.splitlines()) == 1
    return message


def image(**parameters: object) -> ImageParameters:
    return ImageParameters.model_validate({"dimensions": [3, 8, 8], **parameters})


def test_a_good_model_has_what_its_manifest_says_and_the_documented_defaults() -> None:
    found = parse_manifest(MODEL, SOURCE)
    assert isinstance(found, ModelManifest)
    assert (found.name, found.version, found.source) == ("Tiny", "1.0", SOURCE)
    assert (found.framework.name, found.framework.version) == ("MXNet", ">=1.9, <2")
    parameters = found.inputs[0].parameters
    assert (parameters.channels, parameters.height, parameters.width) == (3, 224, 200)
    assert parameters.mean == (123.68, 116.779, 103.939)
    assert parameters.scale == (58.0,)
    assert (parameters.layout, parameters.color_mode) == (Layout.CHW, ColorMode.RGB)
    assert (parameters.element_type, parameters.interpolation) == (
        ElementType.FLOAT32,
        Interpolation.BILINEAR,
    )
    assert (parameters.crop_method, parameters.crop_ratio) == (CropMethod.CENTER, 1.0)
    assert not parameters.keep_aspect_ratio
    assert found.output.parameters.probabilities_transform is Transform.NONE
    assert found.output.parameters.labels == ("cat", "dog")


def test_a_manifest_without_a_kind_is_a_models() -> None:
    assert isinstance(parse_manifest(changed(MODEL, "kind", REMOVED), SOURCE), ModelManifest)


def test_datasets_and_frameworks_have_their_own_schema() -> None:
    dataset = parse_manifest(DATASET, SOURCE)
    assert isinstance(dataset, DatasetManifest)
    assert (dataset.category, dataset.path) == ("vision", "pets.zip")
    framework = parse_manifest({"kind": "framework", "name": "MXNet", "version": ">=1.9"}, SOURCE)
    assert isinstance(framework, FrameworkManifest)


def test_height_and_width_follow_the_layout() -> None:
    parameters = image(dimensions=[10, 20, 3], layout="HWC")
    assert (parameters.channels, parameters.height, parameters.width) == (3, 10, 20)


@pytest.mark.parametrize(("written", "version"), [(1.5, "1.5"), (2, "2"), ("1.10", "1.10"), (" 1.0 ", "1.0")])
def test_a_version_is_text(written: object, version: str) -> None:
    found = parse_manifest(changed(MODEL, "version", written), SOURCE)
    assert isinstance(found, ModelManifest)
    assert found.version == version


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("name", REMOVED, ["field name", "missing"]),
        ("framework.name", REMOVED, ["field framework.name", "missing"]),
        (f"{IMAGE}.dimensions", REMOVED, [f"field {IMAGE}.dimensions", "missing"]),
        ("framwork", {"name": "x"}, ["field framwork", 'did you mean "framework"']),
        ("model.graph_pth", "a", ["field model.graph_pth", 'did you mean "graph_path"']),
        (f"{IMAGE}.layer_name", "x", [f"field {IMAGE}.layer_name", 'did you mean "input_layer"?']),
        (f"{IMAGE}.means", [1], [f"field {IMAGE}.means", 'did you mean "mean"']),
        ("output.parameters.label", [], ["field output.parameters.label", 'did you mean "labels"']),
        ("qqqq", 1, ["field qqqq", "known:", "inputs", "license"]),
        ("name", [1], ["field name", "[1]", "string"]),
        ("name", "  ", ["field name", "at least 1 character"]),
        ("name", "x" * 300, ["field name", "at most 200 characters"]),
        ("version", "one", ["field version", "'one'", "2.1.3"]),
        ("version", True, ["field version", "True", "string"]),
        ("version", "9" * 5000, ["field version", "999", "2.1.3"]),
        ("framework.version", ">>1", ["field framework.version", "'>>1'", ">=1.1.0"]),
        ("inputs", [], ["field inputs", "[]", "at least 1"]),
        ("inputs.0.type", "sound", ["field inputs.0.type", "'sound'", "'image'"]),
        ("output.type", "a box", ["field output.type", "a box"]),
        (f"{IMAGE}.dimensions", [224, 224], ["dimensions", "[224, 224]", "3 items"]),
        (f"{IMAGE}.dimensions", [3, 0, 8], ["dimensions.1", "0", "greater than or equal to 1"]),
        (f"{IMAGE}.dimensions", [3, "a", 8], ["dimensions.1", "'a'", "integer"]),
        (f"{IMAGE}.dimensions", [1, 8, 8], ["[1, 8, 8]", "have 1 channels", "RGB has 3"]),
        (f"{IMAGE}.dimensions", [224, 200, 3], ["[224, 200, 3]", "CHW", "224 channels"]),
        (f"{IMAGE}.color_mode", "GRAY", ["have 3 channels", "GRAY has 1"]),
        (f"{IMAGE}.color_mode", "PINK", ["color_mode", "'PINK'", "'RGB', 'BGR' or 'GRAY'"]),
        (f"{IMAGE}.scale", 0, ["scale", "[0.0]", "must not contain 0"]),
        (f"{IMAGE}.scale", [1, 2, 0], ["scale", "[1.0, 2.0, 0.0]", "must not contain 0"]),
        (f"{IMAGE}.mean", [1, 2], ["mean has 2 values", "1 or 3"]),
        (f"{IMAGE}.scale", [1, 2], ["scale has 2 values", "1 or 3"]),
        (f"{IMAGE}.mean", [], ["mean has 0 values", "1 or 3"]),
        (f"{IMAGE}.mean", float("nan"), ["mean.0", "nan", "finite"]),
        (f"{IMAGE}.scale", float("inf"), ["scale.0", "inf", "finite"]),
        (f"{IMAGE}.mean", "grey", ["mean", "'grey'"]),
        (f"{IMAGE}.element_type", "uint8", ["uint8", "mean is [123.68", "scale [58.0]", "allowed: 0 and 1"]),
        (f"{IMAGE}.element_type", "float64", ["'float64'", "'float32', 'float16' or 'uint8'"]),
        (f"{IMAGE}.crop_ratio", 0, ["crop_ratio", "0", "greater than 0"]),
        (f"{IMAGE}.crop_ratio", 1.1, ["crop_ratio", "1.1", "less than or equal to 1"]),
        (f"{IMAGE}.keep_aspect_ratio", "perhaps", ["keep_aspect_ratio", "'perhaps'", "boolean"]),
        ("model", {}, ["field model", "graph_path", "architecture"]),
        ("model.graph_checksum", "sha256:12", ["graph_checksum", "'sha256:12'", "pattern"]),
        ("model.graph_checksum", "sha1:12345678", ["graph_checksum", "'sha1:12345678'", "pattern"]),
        ("model.graph_checksum", "sha256:" + "0" * 40, ["graph_checksum", "pattern"]),
        ("container", {"amd64": "image"}, ["container.amd64", "'image'", "dictionary"]),
        ("kind", "modle", ["field kind", "'modle'", "model, framework, dataset"]),
        ("kind", ["model"], ["field kind", "['model']", "model, framework, dataset"]),
    ],
)
def test_a_bad_manifest_names_file_field_what_was_found_and_what_is_allowed(
    path: str, value: object, said: list[str]
) -> None:
    message = refusal(changed(MODEL, path, value))
    assert [part for part in said if part not in message] == []
    assert len(message) < 500


def test_a_misspelt_field_is_told_before_the_missing_one_that_was_meant() -> None:
    content = changed(MODEL, "framework", REMOVED)
    message = refusal({**content, "framwork": {"name": "MXNet"}})
    assert 'field framwork: is not known; did you mean "framework"?' in message
    assert message.endswith("(and 1 more)")


@pytest.mark.parametrize("content", [None, [1, 2], "text", 3, [MODEL]])
def test_what_is_no_mapping_is_refused(content: object) -> None:
    assert "allowed: a mapping of fields" in refusal(content)


@pytest.mark.parametrize(
    ("mean", "scale"), [(1.0, 1.0), (0, 2), ([0, 0, 1], 1), (0, [1, 1, 255]), (127.5, 127.5)]
)
def test_uint8_with_a_mean_or_a_scale_is_refused(mean: object, scale: object) -> None:
    with pytest.raises(ValueError, match="uint8 takes the pixels as they are"):
        image(element_type="uint8", mean=mean, scale=scale)


@pytest.mark.parametrize(("mean", "scale"), [(0, 1), ([0, 0, 0], [1, 1, 1])])
def test_uint8_with_neutral_mean_and_scale_is_allowed(mean: object, scale: object) -> None:
    assert image(element_type="uint8", mean=mean, scale=scale).element_type is ElementType.UINT8


def test_a_manifest_does_not_change() -> None:
    found = parse_manifest(MODEL, SOURCE)
    with pytest.raises(ValueError, match="frozen"):
        found.name = "Other"  # type: ignore[attr-defined]


def test_a_field_with_a_line_break_in_its_name_is_said_in_one_line() -> None:
    assert "two" in refusal({**MODEL, "one\ntwo": 1})


def test_a_long_value_is_said_shortly() -> None:
    assert len(refusal(changed(MODEL, "inputs", "x" * 100_000))) < 300


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4)
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def lines_of_refusal(content: object) -> int:
    """The number of lines in which ``content`` is refused; 0 when it is accepted."""
    try:
        parse_manifest(content, SOURCE)
    except ManifestError as error:
        return len(str(error).splitlines())
    return 0


def paths(node: Any, prefix: str = "") -> list[str]:
    """Every place in a manifest."""
    items: list[tuple[Any, Any]] = []
    if isinstance(node, dict):
        items = list(node.items())
    elif isinstance(node, list):
        items = list(enumerate(node))
    return [place for key, value in items for place in (f"{prefix}{key}", *paths(value, f"{prefix}{key}."))]


@given(st.sampled_from(paths(MODEL)), st.one_of(st.just(REMOVED), values))
def test_any_change_of_a_manifest_is_accepted_or_refused_in_one_line(path: str, value: object) -> None:
    assert lines_of_refusal(changed(MODEL, path, value)) <= 1


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(MODEL)), st.text(max_size=6)), values, max_size=6))
def test_any_mapping_is_accepted_or_refused_in_one_line(content: dict[str, object]) -> None:
    assert lines_of_refusal(content) <= 1
