"""Manifests written for MLModelScope load unchanged and keep their meaning."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from manifest_content import REMOVED, changed, write
from original_content import EVERY, HEAD_RESNET50, SEED_RESNET50, SEGMENTATION, TORCHSCRIPT_INCEPTION

from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InferometerError, ManifestError
from inferometer.manifests.inputs import ColorMode, CropMethod, ElementType, Interpolation, Layout
from inferometer.manifests.loader import load_manifest, manifest_schema, parse_manifest
from inferometer.manifests.schema import ModelManifest, Transform

SYNSET = "http://models.example/synsets/imagenet/synset.txt"
IMAGE = "inputs.0.parameters"


def read(folder: Path, text: str) -> ModelManifest:
    found = load_manifest(write(folder, "original .yml", text))
    assert isinstance(found, ModelManifest)
    return found


def parsed(content: object) -> ModelManifest:
    found = parse_manifest(content, Path("original.yml"))
    assert isinstance(found, ModelManifest)
    return found


def refusal(content: object) -> str:
    with pytest.raises(ManifestError) as caught:
        parsed(content)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def seed() -> dict[str, Any]:
    content = yaml.safe_load(SEED_RESNET50)
    assert isinstance(content, dict)
    return content


def test_the_seeds_resnet50_means_what_it_says(tmp_path: Path) -> None:
    found = read(tmp_path, SEED_RESNET50)
    assert (found.name, found.version, found.hidden) == ("ResNet50", "1.0", False)
    assert (found.framework.name, found.framework.version) == ("MXNet", "1.3.0")
    assert found.runs_in("1.3.0")
    assert not found.runs_in("1.3.1")
    assert found.container["ppc64le"]["gpu"] == "raiproject/carml-caffe:ppc64le-gpu"
    image = found.inputs[0].parameters
    assert (image.layout, image.color_mode) == (Layout.CHW, ColorMode.RGB)
    assert (image.channels, image.height, image.width) == (3, 224, 224)
    assert (image.mean, image.scale) == ((123.68, 116.779, 103.939), (1.0,))
    assert (image.element_type, image.input_layer) == (ElementType.FLOAT32, "data")
    assert (image.keep_aspect_ratio, image.crop_ratio) == (False, 1.0)
    output = found.output
    assert (output.type, output.description) == ("classification", "the output label")
    assert (output.parameters.features_url, output.parameters.labels) == (SYNSET, ())
    assert output.parameters.features_checksum == "4d234b5833aca44928065a180db3016a"
    assert output.parameters.probabilities_transform is Transform.NONE
    assert found.model.graph_path == "http://models.example/mxnet/resnet50/resnet50-symbol.json"
    assert found.model.weights_checksum == "246423771006aaf77acf68c99852f5b5"
    assert not found.model.is_archive
    assert found.attributes == {"kind": "CNN", "training_dataset": "ImageNet", "manifest_author": "someone"}


def test_the_later_resnet50_v1_means_what_it_says(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD_RESNET50)
    assert found.name == "ResNet50_v1"
    assert found.runs_in("1.9.1")
    assert not found.runs_in("1.0.9")
    image = found.inputs[0].parameters
    assert (image.mean, image.scale) == ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    assert found.output.parameters.probabilities_transform is Transform.SOFTMAX
    assert found.output.parameters.probabilities_layer == 0
    assert found.output.parameters.element_type == "float32"
    files = found.model
    assert files.base_url == "http://models.example/mxnet/gluoncv/resnet50_v1"
    assert (files.graph_path, files.weights_path) == ("model-symbol.json", "model-0000.params")
    assert (files.graph_checksum, files.weights_checksum) == ("", "")
    assert found.attributes["Top1"] == 77.36


def test_a_torchscript_model_means_what_it_says(tmp_path: Path) -> None:
    found = read(tmp_path, TORCHSCRIPT_INCEPTION)
    assert found.runs_in("1.2.0")
    assert not found.runs_in("1.20.0")
    assert found.references == ()
    image = found.inputs[0].parameters
    assert image.dimensions == (3, 299, 299)
    assert (image.mean, image.scale) == ((127.5,), (127.5,))
    assert image.input_layer == "data"
    assert (image.crop_method, image.crop_ratio) == (CropMethod.CENTER, 0.875)
    assert image.keep_aspect_ratio
    assert image.interpolation is Interpolation.BILINEAR
    assert (found.model.weights_path, found.output.parameters.features_checksum) == (None, "")


def test_a_constraint_keeps_its_zeros_when_it_is_a_number(tmp_path: Path) -> None:
    found = read(tmp_path, TORCHSCRIPT_INCEPTION.replace("version: 1.2", "version: 1.10"))
    assert found.framework.version == "1.10"


def test_they_are_listed_and_those_that_are_hidden_are_only_found_by_name(tmp_path: Path) -> None:
    for place, text in enumerate(EVERY):
        write(tmp_path, f"model {place} .yml", text)
    write(tmp_path, "hidden.yml", SEED_RESNET50.replace("ResNet50 ", "Secret ") + "hidden: true\n")
    catalog = Catalog([tmp_path])
    assert catalog.problems == ()
    names = {model.name for model in catalog.models if model.source and model.source.parent == tmp_path}
    assert names == {"ResNet50", "ResNet50_v1", "Inception_v3.0", "DeepLabv3"}
    assert catalog.find_model("secret", None, {"MXNet": "1.3.0"}).hidden


@pytest.mark.parametrize(
    ("dimensions", "layout", "meant"),
    [
        (299, "CHW", (3, 299, 299)),
        ([299], "CHW", (3, 299, 299)),
        ([8], "HWC", (8, 8, 3)),
        ([8, 9, 3], "HWC", (8, 9, 3)),
        ([3, 8, 9], "HWC", (8, 9, 3)),
        ([3, 8, 3], "HWC", (3, 8, 3)),
    ],
)
def test_dimensions_are_three_in_the_order_of_the_layout(
    dimensions: object, layout: str, meant: tuple[int, ...]
) -> None:
    content = changed(changed(seed(), f"{IMAGE}.dimensions", dimensions), f"{IMAGE}.layout", layout)
    assert parsed(content).inputs[0].parameters.dimensions == meant


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("boundingbox", "object_detection"),
        ("semanticsegment", "semantic_segmentation"),
        ("instancesegment", "instance_segmentation"),
        ("image", "image_enhancement"),
        ("object_detection", "object_detection"),
    ],
)
def test_models_of_every_type_can_be_listed_also_without_dimensions(kind: str, name: str) -> None:
    found = parsed({**yaml.safe_load(SEGMENTATION), "output": {"type": kind}})
    assert found.output.type == name
    assert found.inputs[0].parameters.dimensions == ()


def test_a_field_that_some_manifests_misspell_is_meant() -> None:
    output = {"type": "boundingbox", "parameters": {"probailities_layer": 1}}
    assert parsed({**seed(), "output": output}).output.parameters.probabilities_layer == 1
    output["parameters"] = {"probailities_layer": 1, "probabilities_layer": 1}
    assert 'did you mean "probabilities_layer"' in refusal({**seed(), "output": output})


def test_a_classification_needs_dimensions() -> None:
    assert "field inputs.0.parameters.dimensions: is missing" in refusal(
        changed(seed(), f"{IMAGE}.dimensions", REMOVED)
    )


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("licence", "MIT", 'field licence: is not known; did you mean "license"?'),
        ("licence", None, 'field licence: is not known; did you mean "license"?'),
        (f"{IMAGE}.dimension", [3, 8, 8], 'did you mean "dimensions"'),
        ("output.parameters.probabilties_layer", 0, 'did you mean "probabilities_layer"'),
        ("model.grap_path", "x", 'did you mean "graph_path"'),
        ("preproces", "code", 'did you mean "preprocess"'),
        (f"{IMAGE}.dimensions", [1, 3, 224, 224], "without the batch"),
        (f"{IMAGE}.max_dimension", 0, "greater than or equal to 1"),
        ("output.type", "a feature", "'a feature'"),
        ("model.graph_checksum", "123", "pattern"),
        ("name", None, "field name: is missing"),
        ("model.graph_path", "", "needs graph_path"),
    ],
)
def test_what_the_original_does_not_have_is_still_refused(path: str, value: object, said: str) -> None:
    assert said in refusal(changed(seed(), path, value))


def test_what_cannot_be_honoured_is_kept_as_it_was_written() -> None:
    content = seed()
    content["inputs"] = content["inputs"] * 2
    content["inputs"][1] = changed({"x": content["inputs"][1]}, "x.parameters.input_layer", 1)["x"]
    content["preprocess"] = "import os"
    found = parsed(content)
    assert [entry.parameters.input_layer for entry in found.inputs] == ["data", "#1"]
    assert found.preprocess == "import os"
    stored = found.model_dump(mode="json")
    assert ModelManifest.model_validate(stored).model_dump(mode="json") == stored


def test_the_json_schema_allows_what_the_loader_allows() -> None:
    schema = manifest_schema()
    known = schema["$defs"]
    assert {entry["$ref"].rsplit("/", 1)[-1] for entry in schema["anyOf"]} == {
        "ModelManifest",
        "FrameworkManifest",
        "DatasetManifest",
    }
    assert known["ModelManifest"]["additionalProperties"] is False
    image = known["ImageParameters"]["properties"]
    assert image["dimensions"]["type"] == ["integer", "array"]
    assert image["mean"]["type"] == ["number", "array"]
    assert image["input_layer"]["type"] == ["string", "integer"]
    assert "feature" in known["ModelOutput"]["properties"]["type"]["examples"]
    assert known["ModelFiles"]["properties"]["graph_checksum"]["type"] == ["string", "null"]


def places(node: Any, prefix: str = "") -> list[str]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for key, value in pairs for p in (f"{prefix}{key}", *places(value, f"{prefix}{key}."))]


CONTENTS = [yaml.safe_load(text) for text in EVERY]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


def lines_of_refusal(content: object) -> int:
    """The number of lines in which ``content`` is refused; 0 when it is accepted."""
    try:
        parse_manifest(content, Path("original.yml"))
    except InferometerError as error:
        return len(str(error).splitlines())
    return 0


@given(st.data())
def test_any_mutation_is_accepted_or_refused_in_one_line(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(CONTENTS))
    for _ in range(data.draw(st.integers(1, 3))):
        value = data.draw(st.one_of(st.just(REMOVED), VALUES))
        # the place of the first change may be gone, or be no mapping any more
        with suppress(KeyError, IndexError, TypeError, ValueError):
            content = changed(content, data.draw(st.sampled_from(places(content) or ["name"])), value)
    assert lines_of_refusal(content) <= 1
