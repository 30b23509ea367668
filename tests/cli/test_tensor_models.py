"""Models with tensor inputs and models without classes, through the command line, locally and remote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
RAW = "not counted: the model's output is raw, without classes"


def run(model: str, framework: str, path: Path, *arguments: str) -> tuple[str, ...]:
    return (
        "predict",
        "dataset",
        f"--model_name={model}",
        f"--framework_name={framework}",
        "--weights=random",
        f"--dataset_path={path}",
        "--num_file_parts=-1",
        *arguments,
    )


def make_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    array = np.random.default_rng(0).normal(size=(10, 784)).astype(np.float32)
    return make_npz(tmp_path / "digits.npz", inputs=array, labels=np.arange(10))


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    array = np.random.default_rng(0).normal(size=(3, 32, 256, 256)).astype(np.float32)
    return make_npz(tmp_path / "maps.npz", x=array)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_dataset_of_tensors_runs_here(agent, digits, framework):
    answer = agent(*run("DeepMNIST", framework, digits, "--batch_size=4"))
    assert answer.code == 0, answer.stderr
    assert answer.figure("failures") == "0"
    assert "over 2 full batches" in answer.figure("latency")
    assert answer.figure("accuracy") == "not counted: the weights are random (seed 0)"


def test_tensors_travel_to_an_agent_and_raw_outputs_back(agent, served_agent, digits, maps):
    for framework in FRAMEWORKS:
        answer = agent(*run("SensorNet", framework, digits, "--batch_size=4", f"--agent={served_agent}"))
        assert answer.code == 0, answer.stderr
        assert answer.figure("failures") == "0"
        assert "over 2 full batches" in answer.figure("latency")
    raw = agent(*run("SingleConvolution", "PyTorch", maps, "--batch_size=2", f"--agent={served_agent}"))
    wrong = agent(*run("SingleConvolution", "PyTorch", digits, f"--agent={served_agent}"))
    assert raw.code == 0, raw.stderr
    assert raw.figure("accuracy") == RAW
    assert "over 1 full batches" in raw.figure("latency")
    assert wrong.code == 1
    assert "tensor has shape [784]; the model takes [32, 256, 256]" in wrong.stderr


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_raw_outputs_have_latency_and_no_accuracy(agent, maps, framework):
    answer = agent(*run("SingleConvolution", framework, maps, "--batch_size=1", "--publish_predictions"))
    assert answer.code == 0, answer.stderr
    assert answer.figure("accuracy") == RAW
    assert "over 3 full batches" in answer.figure("latency")
    assert "--publish_predictions stores nothing: the model's output has no classes" in answer.stderr
    (row,) = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert (row["top1_accuracy"], row["top5_accuracy"], row["evaluated_inputs"]) == ("", "", "0")
    (row,) = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert float(row["latency_ms_mean"]) > 0
    assert (row["model_name"], row["batch_size"]) == ("SingleConvolution", "1")


def test_weights_that_mean_something_do_not_give_raw_outputs_an_accuracy(agent, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    torch.save({"convolution.weight": torch.ones(32, 32, 3, 3)}, folder / "ones.pt")
    manifest = {
        "name": "Ones",
        "framework": {"name": "PyTorch"},
        "inputs": [{"type": "tensor", "parameters": {"dimensions": [32, 4, 4]}}],
        "output": {"type": "raw"},
        "model": {"architecture": "single_convolution", "weights_path": "ones.pt"},
    }
    (folder / "ones.yml").write_text(yaml.safe_dump(manifest))
    data = make_npz(tmp_path / "d.npz", inputs=np.ones((2, 32, 4, 4), np.uint8), labels=np.array(["a", "b"]))
    answer = agent(
        f"--manifests={folder}",
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--model_name=Ones",
        f"--dataset_path={data}",
    )
    assert answer.code == 0, answer.stderr
    assert answer.figure("accuracy") == RAW
    assert answer.figure("failures") == "0"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 28, 28), np.uint8)}, "found a decoded image of shape [28, 28]"),
        ({"inputs": np.zeros((2, 28, 28), np.uint8)}, "tensor has shape [28, 28]; the model takes [784]"),
        ({"inputs": np.full((2, 784), 1e300)}, "tensor of float64 has a value that float32 cannot hold"),
    ],
)
def test_inputs_that_do_not_fit_fail_each_with_its_reason(agent, tmp_path, arrays, message):
    answer = agent(*run("DeepMNIST", "PyTorch", make_npz(tmp_path / "d.npz", **arrays)))
    assert answer.code == 1
    assert answer.figure("failures") == "2"
    assert "failed: every input; the first: 0 in preprocess: " in answer.stderr
    assert message in answer.stderr


def test_image_files_are_no_tensors(agent, tmp_path):
    for label in "01":
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("L", (28, 28)).save(tmp_path / "images" / label / "a.png")
    answer = agent(*run("DeepMNIST", "PyTorch", tmp_path / "images"))
    assert answer.code == 1
    assert "the model takes tensors of float32 of shape [784]; found an encoded image of" in answer.stderr


def test_a_model_that_takes_tensors_is_exported(agent, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "sensor.onnx"
    answer = agent("export", "--model_name=SensorNet", "--weights=random", "-o", path)
    assert answer.code == 0, answer.stderr
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"data": np.zeros((5, 784), np.float32)})
    assert scores.shape == (5, 16)


def test_what_the_manifest_says_of_its_input_is_checked(agent, tmp_path):
    path = tmp_path / "bad.yml"
    path.write_text(
        "name: Bad\nframework: {name: PyTorch}\noutput: {type: raw}\nmodel: {architecture: deep_mnist}\n"
        "inputs:\n  - type: tensor\n    parameters: {dimensions: [784], layout: CHW}\n"
    )
    answer = agent("manifest", "check", path)
    assert answer.code != 0
    assert "field inputs.0.parameters.layout: is not known" in answer.stdout + answer.stderr
