"""``agent manifest``: valid manifests, and unsupported features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inferometer.agent.artifacts.locations import cached_path
from inferometer.manifests.files import BUILTIN

MODEL = """\
name: Old
framework: {name: MXNet, version: '>=1.1.0'}
version: 1.0
inputs: [{type: image, parameters: {dimensions: [3, 8, 8], mean: 127}}]
output: {type: %s}
model: {base_url: 'http://models.example/old', graph_path: old.json, graph_checksum: }
"""


def test_a_valid_manifest_is_said_to_be_what_it_is(agent, tmp_path: Path) -> None:
    good, data = tmp_path / "good.yml", tmp_path / "data.yml"
    good.write_text(MODEL % "feature")
    data.write_text("{kind: dataset, name: pets, path: pets.zip}")
    answer = agent("manifest", "check", good, data)
    assert (answer.code, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        f"{good}: model Old 1.0 for MXNet >=1.1.0",
        "  its files cannot run code",
        f"{data}: dataset pets 1.0",
    ]


@pytest.mark.parametrize(
    ("framework", "files", "said"),
    [
        ("ONNXRuntime", "graph_path: a.onnx", "its files cannot run code"),
        ("PyTorch", "graph_path: a.pt", "its graph is TorchScript, a program whose operators"),
        ("PyTorch", "architecture: resnet50", "its weights cannot run code; its architecture, resnet50"),
        ("Other", "graph_path: a", "the plug-in for Other decides what its files can do"),
    ],
)
def test_what_of_a_model_can_run_code_is_said(agent, tmp_path: Path, framework, files, said) -> None:
    path = tmp_path / "model.yml"
    text = (MODEL % "raw").replace("name: MXNet", f"name: {framework}")
    path.write_text(text[: text.index("model: ")] + f"model: {{{files}}}\n")
    answer = agent("manifest", "check", path)
    assert answer.code == 0, answer.stderr
    assert answer.stdout.splitlines()[1].startswith(f"  {said}")


def test_what_would_be_refused_on_opening_is_said_and_is_no_error(agent, tmp_path: Path) -> None:
    path = tmp_path / "boxes.yml"
    path.write_text(MODEL % "speech" + "preprocess: |\n  import os\n")
    answer = agent("manifest", "check", path)
    assert answer.code == 0
    lines = answer.stdout.splitlines()
    assert lines[2].startswith("  cannot be opened: field output.type: found 'speech'")
    assert lines[3] == "  cannot be opened: field preprocess: holds code, and code in a manifest is never run"


def test_every_bad_manifest_is_said_and_the_good_ones_are_checked_too(agent, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text(MODEL % "raw")
    bad.write_text(MODEL % "raw" + "licence: MIT\n")
    answer = agent("manifest", "check", bad, tmp_path / "absent.yml", good)
    assert answer.code == 2
    first, second = answer.stderr.splitlines()
    assert first == f'{bad}: field licence: is not known; did you mean "license"?'
    assert second.startswith(f"{tmp_path / 'absent.yml'}: cannot be read")
    assert answer.stdout.startswith(f"{good}: model Old")


def test_of_a_directory_all_manifests_are_checked(agent, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    good, bad = tmp_path / "deeper" / "good.yaml", tmp_path / "bad.yml"
    good.write_text(MODEL % "raw")
    bad.write_text("name: Bad\n")
    (tmp_path / "notes.txt").write_text("no manifest")
    answer = agent("manifest", "check", tmp_path)
    assert answer.code == 2
    assert answer.error.startswith(f"{bad}: field ")
    assert answer.stdout.splitlines()[0] == f"{good}: model Old 1.0 for MXNet >=1.1.0"


def test_a_directory_without_manifests_is_an_error(agent, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "good.yml").write_text(MODEL % "raw")
    answer = agent("manifest", "check", tmp_path / "empty", tmp_path / "good.yml")
    assert answer.code == 2
    assert answer.error.startswith(f"{tmp_path / 'empty'}: holds no manifest")
    assert answer.stdout.startswith(f"{tmp_path / 'good.yml'}: model Old")


def test_without_a_file_there_is_nothing_to_check(agent) -> None:
    answer = agent("manifest", "check")
    assert answer.code == 2
    assert "FILE" in answer.error


def test_the_schema_is_json(agent) -> None:
    answer = agent("manifest", "schema")
    assert answer.code == 0
    schema = json.loads(answer.stdout)
    assert schema["$schema"].endswith("2020-12/schema")
    assert "graph_path" in schema["$defs"]["ModelFiles"]["properties"]


def test_a_model_with_something_unsupported_is_listed_and_refused_when_it_is_opened(
    agent, tmp_path: Path
) -> None:
    path = tmp_path / "boxes.yml"
    path.write_text((MODEL % "speech").replace("MXNet", "ONNXRuntime"))
    listed = agent("info", "models", "--manifests", tmp_path, "-f", "csv")
    assert "Old" in {row["name"] for row in listed.rows}
    (tmp_path / "data").mkdir()
    answer = agent(
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--model_name=Old",
        "--manifests",
        tmp_path,
        "--dataset_name=digits_validation",
    )
    assert answer.code == 2
    assert "model Old 1.0 cannot be opened: field output.type: found 'speech'" in answer.stderr


DIGITS = """\
name: OldDigits
framework: {name: MXNet, version: '>=1.1.0'}
version: 1.0
container: {amd64: {cpu: 'raiproject/carml-mxnet:amd64-cpu'}}
references:
inputs:
  - type: image
    parameters:
      input_layer: 0
      color_mode: GRAY
      dimensions: [1, 16, 16]
      mean: 78
      scale: 96
output:
  type: feature
  parameters:
    probabilities_transform: softmax
    features_url: http://127.0.0.1:1/synsets/digits.txt
    features_checksum:
model:
  base_url: http://127.0.0.1:1/digits
  graph_path: "digits_cnn-symbol.json "
  weights_path: digits_cnn-0000.params
  is_archive: false
  graph_checksum:
  weights_checksum:
"""


@pytest.mark.usefixtures("needs_mxnet")
def test_a_model_in_the_originals_notation_runs_as_the_same_one_in_ours(
    agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    own = BUILTIN / "models" / "DigitsCNN"
    (tmp_path / "old.yml").write_text(DIGITS)
    (tmp_path / "digits.txt").write_text("\n".join(str(digit) for digit in range(10)) + "\n")
    few = ("--dataset_name=digits_validation", "--num_file_parts=2", "-b", "32", "--publish=false")
    old = ("predict", "dataset", "--model_name=OldDigits", "--manifests", tmp_path, *few)

    missing = agent(*old)
    assert missing.code == 4
    url = "http://127.0.0.1:1/digits/digits_cnn-symbol.json"
    assert f"field model.graph_path: {url} cannot be downloaded: Connection refused" in missing.error
    assert f"put it at {cached_path(tmp_path / 'cache', url)}" in missing.error

    for name in ("digits_cnn-symbol.json", "digits_cnn-0000.params"):
        shutil.copy(own / name, tmp_path)
    ours = agent("predict", "dataset", "--model_name=DigitsCNN", "--framework_name=MXNet", *few)
    found = agent(*old)
    assert (found.code, ours.code) == (0, 0)
    assert found.figure("top-1") == ours.figure("top-1")
    assert found.figure("top-5") == ours.figure("top-5")

    (tmp_path / "digits.txt").write_text("\n".join("abcdefghij"))
    assert "is none of the 10 classes of the model" in agent(*old).stderr
