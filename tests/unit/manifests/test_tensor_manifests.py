"""Manifests of models with tensor inputs: their meaning, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifest_content import MODEL, REMOVED, changed, write
from test_manifest_schema import lines_of_refusal, paths, refusal, values

from inferometer.agent.inference.requirements import unsupported
from inferometer.manifests.errors import ManifestError
from inferometer.manifests.inputs import TensorElementType, TensorParameters
from inferometer.manifests.loader import load_manifest, manifest_schema, parse_manifest
from inferometer.manifests.schema import ModelManifest

SOURCE = Path("folder") / "tiny.yml"
PARAMETERS = "inputs.0.parameters"
TENSOR: dict[str, Any] = {
    **MODEL,
    "inputs": [
        {
            "type": "tensor",
            "description": "a spectrogram",
            "parameters": {"dimensions": [1, 200, 161], "element_type": "int64", "input_layer": "sound"},
        }
    ],
}


def parsed(content: object) -> ModelManifest:
    found = parse_manifest(content, SOURCE)
    assert isinstance(found, ModelManifest)
    return found


def parameters(content: object) -> TensorParameters:
    found = parsed(content).inputs[0].parameters
    assert isinstance(found, TensorParameters)
    return found


def test_what_it_says_is_what_it_means() -> None:
    found = parameters(TENSOR)
    assert found.dimensions == (1, 200, 161)
    assert (found.element_type, found.input_layer) == (TensorElementType.INT64, "sound")


def test_element_type_and_input_layer_may_be_left_out() -> None:
    found = parameters(changed(TENSOR, PARAMETERS, {"dimensions": [784]}))
    assert found.dimensions == (784,)
    assert (found.element_type, found.input_layer) == (TensorElementType.FLOAT32, "data")


def test_a_field_with_nothing_behind_it_counts_as_left_out() -> None:
    content = changed(changed(TENSOR, f"{PARAMETERS}.element_type", None), "inputs.0.description", None)
    assert parameters(content).element_type is TensorElementType.FLOAT32


def test_it_is_the_same_manifest_after_it_was_sent_as_json() -> None:
    found = parsed(TENSOR)
    assert ModelManifest.model_validate_json(found.model_dump_json()).inputs == found.inputs
    assert ModelManifest.model_validate(found.model_dump(mode="json")).inputs == found.inputs


@pytest.mark.parametrize(
    ("path", "value", "field", "parts"),
    [
        ("dimensions", REMOVED, "dimensions", ["is missing"]),
        ("dimensions", [], "dimensions", ["found []", "at least 1"]),
        ("dimensions", 784, "dimensions", ["found 784; allowed: a list of whole numbers, without the batch"]),
        ("dimensions", "784", "dimensions", ["found '784'; allowed: a list"]),
        ("dimensions", [784, 0], "dimensions.1", ["found 0", "at least 1, or -1 for a dynamic axis"]),
        ("dimensions", [-2], "dimensions.0", ["found -2", "at least 1, or -1"]),
        ("dimensions", [1] * 9, "dimensions", ["at most 8"]),
        (
            "dimensions",
            [2**20, 2**20],
            "dimensions",
            ["has 1099511627776 elements", "at most 268435456 are allowed"],
        ),
        ("dimensions", [2**70], "dimensions.0", ["less than or equal to"]),
        ("element_type", "complex64", "element_type", ["found 'complex64'", "'float64' or 'string'"]),
        ("mean", 3, "mean", ["is not known", "known: dimensions, element_type, input_layer"]),
        ("dimension", [3], "dimension", ['is not known; did you mean "dimensions"?']),
        ("input_layer", "", "input_layer", ["found ''"]),
    ],
)
def test_a_broken_field_is_named_with_what_is_allowed(
    path: str, value: object, field: str, parts: list[str]
) -> None:
    message = refusal(changed(TENSOR, f"{PARAMETERS}.{path}", value))
    assert message.startswith(f"{SOURCE}: field {PARAMETERS}.{field}: ")
    assert "more)" not in message, "there is one problem"
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("tensors", "found 'tensors'; allowed: 'image', 'tensor', 'text'"),
        ("Tensor", "found 'Tensor'; allowed: 'image', 'tensor', 'text'"),
        (7, "found 7; allowed: 'image', 'tensor', 'text'"),
        ({"a": 1}, "found {'a': 1}; allowed: 'image', 'tensor', 'text'"),
        ([], "found []; allowed: 'image', 'tensor', 'text'"),
        (None, "is missing"),
        (REMOVED, "is missing"),
    ],
)
def test_another_type_of_input_is_refused(value: object, text: str) -> None:
    assert refusal(changed(TENSOR, "inputs.0.type", value)) == f"{SOURCE}: field inputs.0.type: {text}"


@pytest.mark.parametrize("value", [None, 3, "tensor", ["tensor"]])
def test_an_input_that_is_no_mapping_is_refused(value: object) -> None:
    assert refusal(changed(TENSOR, "inputs.0", value)).startswith(
        f"{SOURCE}: field inputs.0: found {value!r}"
    )


def test_an_image_takes_no_element_types_of_tensors() -> None:
    message = refusal(changed(MODEL, f"{PARAMETERS}.element_type", "int64"))
    assert message.endswith("found 'int64'; input should be 'float32', 'float16' or 'uint8'")


def test_a_tensor_of_a_model_that_finds_boxes_needs_dimensions_too() -> None:
    content = changed(changed(TENSOR, "output.type", "boundingbox"), f"{PARAMETERS}.dimensions", REMOVED)
    assert refusal(content).endswith(f"field {PARAMETERS}.dimensions: is missing")


def test_an_input_that_is_told_by_its_number_can_be_listed_but_not_opened() -> None:
    assert parameters(changed(TENSOR, f"{PARAMETERS}.input_layer", 0)).input_layer == "data"
    assert unsupported(parsed(TENSOR)) == []
    second = parsed(changed(TENSOR, f"{PARAMETERS}.input_layer", 1))
    assert [text for text in unsupported(second) if f"{PARAMETERS}.input_layer: found 1" in text]


def test_the_json_schema_tells_the_types_apart() -> None:
    known = manifest_schema()["$defs"]
    assert known["TensorInput"]["properties"]["type"]["const"] == "tensor"
    assert known["TensorParameters"]["required"] == ["dimensions"]
    assert set(known["TensorParameters"]["properties"]) == {"dimensions", "element_type", "input_layer"}
    mapping = known["ModelManifest"]["properties"]["inputs"]["items"]["discriminator"]["mapping"]
    assert set(mapping) == {"image", "tensor", "text"}


@pytest.mark.parametrize("number", [2**63, -(2**63), "0x" + "F" * 5000])
@pytest.mark.parametrize("field", ["dimensions: [3]", "input_layer: 3", "type: 3"])
def test_a_number_that_nothing_can_hold_is_refused(tmp_path: Path, field: str, number: object) -> None:
    text = f"name: Tiny\ninputs:\n  - {field.replace('3', str(number))}\n"
    with pytest.raises(ManifestError) as caught:
        load_manifest(write(tmp_path, "tiny.yml", text))
    assert "found a whole number of more than 63 bits" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@given(st.sampled_from(paths(TENSOR)), st.one_of(st.just(REMOVED), values))
def test_any_change_is_accepted_or_refused_in_one_line(path: str, value: object) -> None:
    assert lines_of_refusal(changed(TENSOR, path, value)) <= 1


_INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(st.sampled_from(["image", "tensor"]), values),
        "description": values,
        "parameters": st.one_of(
            values,
            st.fixed_dictionaries(
                {},
                optional={
                    "dimensions": st.one_of(st.lists(st.integers(-1, 2**30), max_size=4), values),
                    "element_type": st.one_of(st.sampled_from(["float32", "uint8", "int64"]), values),
                    "input_layer": st.one_of(st.just("data"), values),
                    "mean": values,
                },
            ),
        ),
    },
)


@given(st.lists(_INPUTS, max_size=2))
def test_any_inputs_are_accepted_or_refused_in_one_line(inputs: list[object]) -> None:
    content = {**TENSOR, "inputs": inputs}
    if lines_of_refusal(content) == 0:
        assert all(entry.parameters.input_layer for entry in parsed(content).inputs)
    else:
        assert lines_of_refusal(content) == 1
