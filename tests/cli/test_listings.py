"""``agent info models``: which models are listed, which can run, and what the listing imports."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from inferometer.agent.architectures import sources
from inferometer.agent.inference.registry import FrameworkEntry

MODEL = """\
name: {name}
framework: {{name: ONNXRuntime, version: '{needs}'}}
inputs: [{{type: image, parameters: {{dimensions: [3, 8, 8]}}}}]
output: {{type: {output}}}
model: {{{files}}}
hidden: {hidden}
"""
LOADED = """
import contextlib, io, sys
from inferometer.client.cli.main import run
with contextlib.redirect_stdout(io.StringIO()) as text:
    assert run(["info", "models", "-f", "csv"]) == 0
assert "ResNet50" in text.getvalue()
print(*sys.modules)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a manifest into a directory that the command line takes manifests from."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("AGENT_MANIFESTS", str(folder))

    def write(
        name: str,
        *,
        needs: str = "*",
        files: str = "graph_path: a.onnx",
        hidden: str = "false",
        output: str = "raw",
    ) -> Path:
        path = folder / f"{name}.yml"
        path.write_text(MODEL.format(name=name, needs=needs, files=files, hidden=hidden, output=output))
        return path

    return write


def listed(agent, *arguments: str) -> dict[str, dict[str, str]]:
    answer = agent("info", "models", "-f", "csv", "--framework_name=ONNXRuntime", *arguments)
    assert (answer.code, answer.stderr) == (0, "")
    return {row["name"]: row for row in answer.rows}


def test_hidden_models_are_listed_on_request(agent, write) -> None:
    write("Seen")
    write("Unseen", hidden="true")
    assert {"Seen", "Unseen"} & set(listed(agent)) == {"Seen"}
    assert {"Seen", "Unseen"} <= set(listed(agent, "--include_hidden"))
    assert set(listed(agent, "--model_name=unseen", "--include_hidden")) == {"Unseen"}


def test_one_model_is_listed_by_its_name(agent, write) -> None:
    write("Seen")
    assert list(listed(agent, "--model_name= SEEN")) == ["Seen"]
    answer = agent("info", "models", "--model_name=ResNet5O")
    assert answer.code == 2
    assert answer.error.startswith('agent: unknown model "ResNet5O"; did you mean "ResNet50"')


def test_what_is_built_in_code_runs_in_onnx_runtime_only_beside_pytorch(
    agent, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("File").with_name("a.onnx").touch()
    write("Newer", needs=">=99")
    write("Code", files="architecture: resnet18")
    names = ("File", "Newer", "Code")

    def runnable() -> list[str]:
        rows = listed(agent)
        return [rows[name]["runnable"] for name in names]

    assert runnable() == ["true", "false", "true"]
    version = FrameworkEntry.installed_version.fget
    without = property(lambda entry: None if entry.name == "PyTorch" else version(entry))
    monkeypatch.setattr(FrameworkEntry, "installed_version", without)
    assert runnable() == ["true", "false", "false"]


def test_a_model_that_cannot_run_here_is_listed_with_its_obstacle(agent, write) -> None:
    write("Gone")
    write("Newer", needs=">=99")
    write("Strange", files="architecture: resnet18", output="speech")
    write("Unknown", files="architecture: resnet19")
    write("Code", files="architecture: resnet18")

    rows = listed(agent)

    obstacles = {name: rows[name]["obstacle"] for name in ("Gone", "Newer", "Strange", "Unknown", "Code")}
    assert obstacles["Gone"] == "its files are missing"
    assert obstacles["Newer"].startswith("needs ONNXRuntime >=99; installed is ")
    assert obstacles["Strange"].startswith("field output.type: found 'speech'")
    assert 'unknown ONNXRuntime architecture "resnet19"' in obstacles["Unknown"]
    assert obstacles["Code"] == ""
    assert all((rows[name]["runnable"] == "true") == (not told) for name, told in obstacles.items())


def test_a_model_of_a_package_runs_only_beside_it(agent, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def googlenet(*more: str) -> list[tuple[str, str]]:
        rows = agent(
            "info", "models", "--name=GoogLeNet", "--framework_name=PyTorch", "-f", "csv", *more
        ).rows
        return [(row["version"], row["obstacle"]) for row in rows]

    installed = importlib.util.find_spec("torchvision") is not None
    obstacle = "" if installed else "needs the package torchvision"
    assert googlenet() == [("1.1", obstacle), ("1.0", "")]
    run = ("predict", "dataset", "--model_name=GoogLeNet", "--weights=random", "--model_version=1.1")
    image_folder = tmp_path / "images" / "tench"
    image_folder.mkdir(parents=True)
    Image.new("RGB", (224, 224)).save(image_folder / "a.png")
    opened = agent(*run, "--framework_name=PyTorch", "--publish=no", f"--dataset_path={image_folder.parent}")
    assert (opened.code == 0) is installed, opened.stderr
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    assert googlenet() == [("1.1", "needs the package torchvision"), ("1.0", "")]
    assert [version for version, _ in googlenet("--runnable")] == ["1.0"]
    assert [version for version, _ in googlenet("--runnable=false")] == ["1.1"]


def test_a_manifest_that_changes_is_listed_as_it_is_now(agent, write) -> None:
    path = write("Mine", needs=">=1.1")
    assert listed(agent)["Mine"]["framework_constraint"] == ">=1.1"
    write("Mine", needs=">=1.2")
    assert listed(agent)["Mine"]["framework_constraint"] == ">=1.2"
    path.write_text("name: Mine\n")
    for _ in range(2):
        answer = agent("info", "models", "-f", "json")
        assert answer.code == 0
        assert answer.error.startswith(f"warning: left out {path}: field ")
        assert "Mine" not in {row["name"] for row in json.loads(answer.stdout)}


def test_a_second_listing_loads_no_framework_no_schema_and_no_yaml(write) -> None:
    heavy = {"torch", "mxnet", "onnxruntime", "numpy", "pydantic", "yaml", "grpc"}
    loaded = [
        subprocess.run(
            [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()
        for _ in range(2)
    ]
    assert heavy & set(loaded[0]) <= {"pydantic", "yaml"}
    assert heavy & set(loaded[1]) == set()
