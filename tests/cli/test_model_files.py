"""Models without a manifest on the command line: files of each kind, wrong files, and a file's manifest."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto
from PIL import Image

from inferometer.agent.artifacts import downloads
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.cli.conftest import Agent, Answer
from tests.model_files import TinyNet, save_onnx, save_program, save_script, save_symbol

EXAMPLE = torch.zeros(2, 3, 8, 8)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind; tests change none of them."""
    folder = tmp_path_factory.mktemp("models")
    save_onnx(folder / "net.onnx")
    save_onnx(folder / "one.onnx", (1, 3, 8, 8))
    save_program(TinyNet(), folder / "net.pt2", EXAMPLE)
    save_program(TinyNet(), folder / "two.pt2", EXAMPLE, any_batch=False)
    save_script(TinyNet(), folder / "traced.pt", EXAMPLE)
    save_script(TinyNet(), folder / "scripted.pt")
    torch.save(TinyNet().state_dict(), folder / "state.pt")
    save_symbol(folder)
    return folder


@pytest.fixture
def predict(agent: Agent) -> Callable[..., Answer]:
    def call(path: Path, *arguments: str, command: str = "dataset") -> Answer:
        length = ("--min_batches=3",) if command == "dataset" else ()
        return agent("predict", command, f"--model_path={path}", *length, *arguments)

    return call


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("net.onnx", (), "input image, float32 (batch, 3, 8, 8)"),
        ("net.pt2", (), "input data, float32 (batch, 3, 8, 8)"),
        ("traced.pt", (), "input data, float32 (batch, 3, 8, 8)"),
        ("scripted.pt", ("--input_shape=3,8,8",), "input data, float32 (batch, 3, 8, 8)"),
        ("net-symbol.json", ("--input_shape=3x8x8",), "input data, float32 (batch, 3, 8, 8)"),
        ("net-0000.params", ("--input_shape", "3,8,8"), "input data, float32 (batch, 3, 8, 8)"),
    ],
)
def test_a_file_is_evaluated_without_a_manifest_or_data(agent, predict, files, name, arguments, said) -> None:
    answer = predict(files / name, "--batch_size=4", *arguments)

    assert answer.code == 0, answer.stderr
    assert said in answer.stderr.splitlines()[0]
    assert "over 64 synthetic tensors, seed 0, 64 inputs" in answer.stdout
    assert ("PyTorch has deprecated TorchScript" in answer.stderr) == (name in {"traced.pt", "scripted.pt"})
    assert answer.figure("failures") == "0"
    assert "per batch of 4, over 16 full batches" in answer.figure("latency")
    shown = json.loads(agent("info", "evaluation", "show", "-f", "json").stdout)
    assert shown["model_name"] == ("net" if name.startswith("net") else name.removesuffix(".pt"))
    assert all(checksum.startswith("sha256:") for checksum in shown["checksums"].values())
    assert set(shown["checksums"]) == ({"graph", "weights"} if name.startswith("net-") else {"graph"})
    text = agent("info", "evaluation", "show").stdout
    assert f"manifest inferred from {'net-symbol.json' if name.startswith('net-') else name}" in text


def test_a_fixed_batch_is_the_default_and_the_only_one(predict, files) -> None:
    answer = predict(files / "one.onnx", "--publish=false")
    assert answer.code == 0, answer.stderr
    assert "float32 (batch, 3, 8, 8), batches of 1 only" in answer.stderr
    assert "per batch of 1, " in answer.figure("latency")
    assert "per batch of 2, " in predict(files / "two.pt2", "--publish=false").figure("latency")

    wrong = predict(files / "one.onnx", "--batch_size=8")
    assert wrong.stderr.splitlines()[-1] == "agent: model one takes batches of 1 only; found 8"
    load = predict(files / "two.pt2", command="workload")
    assert load.stderr.splitlines()[-1] == "agent: model two takes batches of 2 only; found 1"


def test_a_file_is_put_under_load_and_named(agent, predict, files) -> None:
    arguments = ("--duration=0.2", "--initial_qps=50", "--allow_invalid", "--model_name=Mine")
    answer = predict(files / "net.pt2", *arguments, command="workload")
    assert answer.code == 0, answer.stderr
    [row] = agent("info", "evaluations", "-f", "csv").rows
    assert (row["model_name"], row["kind"]) == ("Mine", "workload")


def test_a_file_runs_in_fresh_processes(agent, predict, files) -> None:
    answer = predict(files / "net.onnx", "--repeat=2", "--batch_size=8")
    assert answer.code == 0, answer.stderr
    assert "over 2 processes" in answer.figure("processes")


def test_images_are_preprocessed_where_the_shape_tells_how(predict, files, tmp_path) -> None:
    images = tmp_path / "images" / "cat"
    images.mkdir(parents=True)
    for name in ("1", "2", "3", "4"):
        Image.fromarray(np.full((9, 12, 3), 200, np.uint8)).save(images / f"{name}.png")

    answer = predict(
        files / "net.onnx", f"--dataset_path={images.parent}", "--batch_size=2", "--publish=false"
    )
    assert answer.code == 0, answer.stderr
    assert answer.figure("failures") == "0"
    assert answer.stderr.splitlines()[0].endswith(
        "assumed of images: CHW, RGB, pixels 0…1, resized and cropped; to correct this, write a "
        "manifest with agent manifest init"
    )
    listed = tmp_path / "list.txt"
    listed.write_text("images/cat/1.png\nimages/cat/2.png\n")
    answer = predict(files / "net.onnx", f"--urls_file_path={listed}", "--batch_size=1", command="urls")
    assert answer.code == 0, answer.stderr

    flat = save_onnx(tmp_path / "flat.onnx", ("batch", 7))
    wrong = predict(flat, f"--dataset_path={images.parent}")
    assert wrong.code != 0
    assert "does not say how an image becomes a tensor; agent manifest init" in wrong.error
    np.savez(tmp_path / "flat.npz", inputs=np.zeros((8, 7), np.float32))
    right = predict(flat, f"--dataset_path={tmp_path / 'flat.npz'}", "--batch_size=4", "--publish=false")
    assert (right.code, right.figure("failures")) == (0, "0")


def test_weights_beside_an_onnx_file_are_recorded_and_others_refused(agent, predict, tmp_path) -> None:
    assert predict(save_onnx(tmp_path / "net.onnx", outside="net.bin")).code == 0
    shown = json.loads(agent("info", "evaluation", "show", "-f", "json").stdout)
    assert set(shown["checksums"]) == {"graph", "weights"}

    (tmp_path / "away").mkdir()
    moved = tmp_path / "away" / "net.onnx"
    content = (tmp_path / "net.onnx").read_bytes()
    moved.write_bytes(content.replace(b"net.bin", b"../n.bi"))
    assert "takes its weights from ../n.bi; accepted: one file beside it" in predict(moved).error


def test_the_newest_parameters_of_a_symbol_are_taken(agent, predict, tmp_path) -> None:
    symbol = save_symbol(tmp_path, 3, 12)
    answer = predict(symbol, "--input_shape=3,8,8", "--batch_size=4", "--publish=false")
    assert answer.code == 0, answer.stderr
    assert "of 2 files of parameters, net-0012.params" in answer.stderr.splitlines()


class Whole:
    """Pickles to a call, as a module that torch.save wrote may."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.onnx": (lambda path: None, "missing.onnx: does not exist"),
    "folder.onnx": (lambda path: path.mkdir(), "is a folder; name a model's file: .pt2"),
    "net.h5": (lambda path: path.touch(), "no framework reads files with such a name; accepted: .pt2"),
    "text.onnx": (lambda path: path.write_text("a text\n" * 9), "text.onnx: is not an ONNX model: "),
    "empty.onnx": (lambda path: path.touch(), "empty.onnx: is not an ONNX model: it is empty"),
    "cut.onnx": (lambda path: path.write_bytes(save_onnx(path).read_bytes()[:-20]), "is not an ONNX model: "),
    "constant.onnx": (
        lambda path: save_onnx(path, inputs=()),
        "has no inputs; accepted: a model with inputs",
    ),
    "open.onnx": (
        lambda path: save_onnx(path, ("batch", 3, "height", "width")),
        "input image has the shape (batch, 3, ?, ?), in which not only the batch is open; give input_shape",
    ),
    "none.onnx": (lambda path: save_onnx(path, None), "input image has no shape; give input_shape"),
    "flat.onnx": (lambda path: save_onnx(path, ("batch",)), "has the shape (batch); accepted: a batch"),
    "wide.onnx": (
        lambda path: save_onnx(path, element_type=TensorProto.UINT64),
        "input image is uint64; accepted: float32, float16",
    ),
    "text.pt": (
        lambda path: path.write_text("a text"),
        "is neither a TorchScript archive nor an exported program",
    ),
    "state.pt": (
        lambda path: torch.save(TinyNet().state_dict(), path),
        "is a state dict of 4 entries: weights without their network. Save the network too: torch.export",
    ),
    "whole.pt": (lambda path: torch.save(TinyNet(), path), "holds pickled Python objects, which are not"),
    "legacy.pt": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "holds pickled Python objects"),
    "evil.pt": (lambda path: torch.save(Whole(path.parent / "ran"), path), "holds pickled Python objects"),
    "text.pt2": (
        lambda path: path.write_text("a text"),
        "is neither a TorchScript archive nor an exported program",
    ),
    "script.pt2": (lambda path: save_script(TinyNet(), path), "is TorchScript, but .pt2 is for programs"),
    "text.json": (lambda path: path.write_text("a text"), "text.json: is not an MXNet symbol: "),
    "lone-symbol.json": (
        lambda path: save_symbol(path.parent).rename(path),
        "has no parameter file next to it; expected lone-0000.params",
    ),
    "lone-0000.params": (
        lambda path: path.touch(),
        "no symbol beside it; its name would be lone-symbol.json",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_clear_line(predict, tmp_path, name) -> None:
    make, said = WRONG[name]
    make(tmp_path / name)

    answer = predict(tmp_path / name)

    assert answer.code != 0
    assert answer.stdout == ""
    assert said in answer.error
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--input_shape=3,8,9",), "has the shape (batch, 3, 8, 8); found inputs of (batch, 3, 8, 9)"),
        (("--input_shape=3,0",), "3,0 is not a shape; separate sizes by commas"),
        (("--model_version=1",), "model_version chooses a manifest"),
        (("--agent=localhost:1",), "model_path works only in this process and cannot be"),
        (("--framework_name=PyTorch",), "is for ONNXRuntime; found framework_name PyTorch"),
        (("--framework_name=",), "is for ONNXRuntime; found framework_name"),
        (("--weights=random",), "only a model that is built in code (architecture) can have random weights"),
        (("--synthetic", "--dataset_name=digits_validation"), "synthetic needs no dataset"),
    ],
)
def test_options_that_exclude_a_file_are_one_clear_line(predict, files, arguments, said) -> None:
    answer = predict(files / "net.onnx", *arguments)
    assert answer.code != 0
    assert said in answer.stderr.splitlines()[-1]


def test_a_missing_file_suggests_one_that_is_there(predict, files) -> None:
    assert 'does not exist; did you mean "net.onnx" or ' in predict(files / "nett.onnx").error


def test_models_with_a_manifest_run_on_random_tensors(agent, files) -> None:
    of_sensors = ("predict", "dataset", "--model_name=SensorNet", "--weights=random", "--batch_size=2")
    asked = agent(*of_sensors)
    assert "names no dataset; give dataset_name" in asked.error
    assert "or, to measure only its speed, synthetic" in asked.error
    answer = agent(*of_sensors, "--synthetic", "--min_batches=1")
    assert (answer.code, answer.figure("failures")) == (0, "0"), answer.stderr
    assert "per batch of 2, over 32 full batches" in answer.figure("latency")
    parts = agent(*of_sensors, "--synthetic", "--num_file_parts=40")
    assert "over 40 full batches" in parts.figure("latency")
    assert (
        "input_shape is only for a model_path" in agent(*of_sensors, "--synthetic", "--input_shape=1").error
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("net.onnx", ()), ("one.onnx", ()), ("net.pt2", ()), ("net-symbol.json", ("--input_shape=3,8,8",))],
)
def test_the_manifest_of_a_file_is_valid_and_runs(agent, files, tmp_path, name, arguments) -> None:
    target = tmp_path / "mine.yml"
    answer = agent("manifest", "init", files / name, "-o", target, "--name=no", *arguments)
    assert (answer.code, answer.stdout) == (0, f"written     {target}\n")
    assert "assumed of images" in answer.stderr

    manifest = load_manifest(target)
    assert isinstance(manifest, ModelManifest)
    assert (manifest.name, manifest.inputs[0].parameters.dimensions) == ("no", (3, 8, 8))
    assert "cannot be opened" not in agent("manifest", "check", target).stdout
    text = target.read_text()
    assert "# fill in what the model was trained with" in text
    assert ("takes batches of 1 only: --batch_size=1" in text) == (name == "one.onnx")
    ran = agent(
        *("--manifests", tmp_path, "predict", "dataset", "--model_name=no", "--synthetic"),
        *("--batch_size=1", "--min_batches=1", "--publish=false"),
    )
    assert (ran.code, ran.figure("failures")) == (0, "0"), ran.stderr


def test_a_manifest_is_not_replaced_unless_asked(agent, tmp_path) -> None:
    model = save_onnx(tmp_path / "my net.onnx", ("batch", 7))
    assert agent("manifest", "init", model).code == 0
    assert (
        "exists; overwrite it (--overwrite), or name another file" in agent("manifest", "init", model).error
    )
    assert agent("manifest", "init", model, "--overwrite").code == 0
    assert "type: tensor" in (tmp_path / "my net.yml").read_text()
    assert agent("manifest", "check", tmp_path / "my net.yml").code == 0
    assert "does not exist" in agent("manifest", "init", tmp_path / "other.onnx").error


@pytest.mark.parametrize("output", ["my net.yml", "other.yml"])
def test_an_existing_manifest_is_refused_before_the_model_is_hashed(
    agent, tmp_path, monkeypatch, output
) -> None:
    model, hashed = save_onnx(tmp_path / "my net.onnx", ("batch", 7)), []
    monkeypatch.setattr(downloads, "digest", lambda path: hashed.append(path) or "0" * 64)
    (tmp_path / output).touch()
    options = () if output.startswith(model.stem) else ("-o", tmp_path / output)

    answer = agent("manifest", "init", model, *options)

    assert (answer.code, hashed) == (7, [])
    assert f"{output} exists; overwrite it (--overwrite), or name another file" in answer.error


def test_the_check_of_a_manifest_says_what_can_run_code(agent, files, tmp_path) -> None:
    said = {}
    for name in ("net.pt2", "traced.pt"):
        agent("manifest", "init", files / name, "-o", tmp_path / f"{name}.yml")
        said[name] = agent("manifest", "check", tmp_path / f"{name}.yml").stdout
    assert "its files cannot run code" in said["net.pt2"]
    assert "TorchScript, a program whose operators can read and write files" in said["traced.pt"]
