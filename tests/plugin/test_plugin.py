"""A plug-in package that imports ``inferometer`` alone: installed, discovered, and evaluated."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import inferometer
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.kinds.registry import find_report

HERE = Path(__file__).parent
IMAGES = 120
Agent = Callable[..., str]
MODEL = """
kind: model
name: LinearDigits
version: "1.0"
framework: {name: Linear, version: ">=1.2"}
inputs:
  - type: image
    parameters:
      dimensions: [1, 16, 16]
      layout: CHW
      color_mode: GRAY
      scale: 255.0
      crop_method: none
      input_layer: data
output:
  type: classification
  parameters: {probabilities_transform: softmax, labels: ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]}
model: {graph_path: linear.npz}
dataset: csv_digits
"""
DATASET = """
kind: dataset
name: csv_digits
version: "1.0"
category: vision
path: digits.csv
"""


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the plug-in's framework and a dataset of its kind: ten patterns under noise."""
    folder = tmp_path_factory.mktemp("manifests")
    generator = np.random.default_rng(7)
    patterns = generator.integers(0, 256, (10, 256))
    labels = generator.integers(0, 10, IMAGES)
    images = np.clip(patterns[labels] + generator.normal(0, 400, (IMAGES, 256)), 0, 255).astype(np.uint8)
    centred = patterns.T / 255 - 0.5
    matrix, bias = centred.astype(np.float32), -(centred**2).sum(axis=0).astype(np.float32) / 2
    np.savez(folder / "linear.npz", matrix=matrix, bias=bias)
    np.savetxt(folder / "digits.csv", np.column_stack([labels, images]), fmt="%d", delimiter=",")
    right = np.argmax(images.astype(np.float32) / 255 @ matrix + bias, axis=1) == labels
    (folder / "right").write_text(str(right.sum()))
    (folder / "model.yml").write_text(MODEL)
    counting = MODEL.replace("LinearDigits", "Counter").replace("type: classification", "type: counting")
    (folder / "counter.yml").write_text(counting)
    errors = abs(np.argmax(images.astype(np.float32) / 255 @ matrix + bias, axis=1) - labels)[labels != 9]
    (folder / "errors").write_text(f"{errors.mean()} {len(errors)}")
    (folder / "dataset.yml").write_text(DATASET)
    return folder


def test_the_plugin_imports_inferometer_alone() -> None:
    tree = ast.parse((HERE / "inferometer_linear.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {module for module in modules if module and module.startswith("inferometer")} == {"inferometer"}


def test_the_framework_is_listed_with_its_version(agent: Agent) -> None:
    rows = json.loads(agent("info", "frameworks", "-f", "json"))

    assert {row["installed_version"] for row in rows if row["name"] == "Linear"} == {"1.2"}


def test_a_model_of_the_framework_is_evaluated_over_a_dataset_of_the_plugin(
    agent: Agent, manifests: Path
) -> None:
    printed = agent(
        "predict", "dataset", "--num_file_parts=-1", "--model_name=LinearDigits", f"--manifests={manifests}"
    )
    right = int((manifests / "right").read_text())

    assert IMAGES / 2 < right < IMAGES
    share = rf"{right / IMAGES:.4f} \[0\.\d+, 0\.\d+\]"
    assert re.search(rf"top-1 +{share}  \({right} of {IMAGES} inputs\)", printed), printed
    (accuracy,) = json.loads(agent("info", "evaluation", "accuracy", "-f", "json"))
    assert accuracy["top1_accuracy"] * IMAGES == pytest.approx(right)
    assert accuracy["evaluated_inputs"] == IMAGES
    (covered,) = json.loads(agent("info", "evaluation", "coverage", "-f", "json"))
    assert covered == {"id": accuracy["id"], "dataset_name": "csv_digits", "dataset_samples": IMAGES}


def test_a_model_of_a_task_of_the_plugin_is_scored_kept_and_reported(agent: Agent, manifests: Path) -> None:
    evaluating = ("predict", "dataset", "--num_file_parts=-1", f"--manifests={manifests}")
    printed = agent(*evaluating, "--model_name=Counter", "--publish_predictions", code=1)
    mean, count = (manifests / "errors").read_text().split()

    found = re.search(r"^MAE +(\d\.\d{4}) digits$", printed, re.MULTILINE)  # too few for an interval
    assert found, printed
    assert float(found[1]) == pytest.approx(float(mean), abs=1e-4)
    assert re.search(rf"^metric +counting 1.2, over {count} inputs$", printed, re.MULTILINE), printed
    (row,) = json.loads(agent("info", "evaluation", "accuracy", "-f", "json"))
    assert (row["task"], row["definition"], row["score_name"]) == ("counting", "counting 1.2", "MAE")
    assert row["score"] == pytest.approx(float(mean))
    assert row["evaluated_inputs"] == int(count) == IMAGES - row["failed_inputs"]
    assert (row["top1_accuracy"], row["score_unit"]) == (None, "digits")


def test_the_report_is_in_the_help(agent: Agent) -> None:
    assert "coverage" in agent("info", "evaluation", "--help")
    assert "the dataset of each evaluation" in agent("info", "evaluation", "coverage", "--help")


@pytest.fixture(params=[None, "raise OSError('libcudart.so.12: cannot open shared object file')", "def"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that announces a dataset and a report, and cannot be imported."""
    if request.param is not None:
        (tmp_path / "broken_module.py").write_text(request.param)
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[inferometer.postprocessors]\nspeech = broken_module:Speech\n"
        "[inferometer.datasets]\nrec = broken_module:Records\n"
        "[inferometer.reports]\ncost = broken_module:Cost\nlatency = broken_module:Latency\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_dataset_that_cannot_be_imported_is_named(broken: None, tmp_path: Path) -> None:
    (tmp_path / "images.rec").write_bytes(b"0")

    with pytest.raises(inferometer.DatasetError, match=r"images\.rec: broken_module:Records cannot be imp"):
        open_path(tmp_path / "images.rec", "vision")


def test_a_task_that_cannot_be_imported_is_named(broken: None) -> None:
    assert "speech" in POSTPROCESSORS
    with pytest.raises(inferometer.ConfigurationError, match='"speech", broken_module:Speech, cannot be imp'):
        POSTPROCESSORS.find("speech")


def test_a_report_that_cannot_be_imported_is_named(broken: None) -> None:
    with pytest.raises(inferometer.ConfigurationError, match="report cost: broken_module:Cost cannot"):
        find_report("cost")


def test_a_plugin_replaces_no_report_of_the_program(broken: None) -> None:
    assert find_report("latency").name == "latency"


@pytest.mark.parametrize("name", inferometer.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(inferometer, name) is not None
    assert name in dir(inferometer)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Predictr'"):
        inferometer.Predictr  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_name_is_documented() -> None:
    docs = HERE.parents[1] / "docs"
    pages = "".join((docs / page).read_text(encoding="utf-8") for page in ("plugins.md", "library.md"))

    assert [name for name in inferometer.__all__ if f"`{name}`" not in pages] == []
