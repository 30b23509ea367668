"""``agent export``, and models that are exported from PyTorch for ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.manifests.catalog import Catalog


def probabilities(framework: str, model: str, options: SessionOptions, batch: np.ndarray) -> np.ndarray:
    """The probabilities in the order of the classes, inputs × classes."""
    registry = Registry()
    manifest = select_model(Catalog(), registry, model, framework=framework, weights=options.weights)
    with open_session(manifest, options, registry) as session:
        outputs = session.predict([Input(str(i), Tensor(item)) for i, item in enumerate(batch)]).outputs
    return np.take_along_axis(outputs.probabilities, outputs.indices.argsort(axis=1), axis=1)


@pytest.mark.parametrize("model", ["ResNet18", "GoogLeNet"])
def test_onnx_runtime_draws_the_weights_that_pytorch_draws(model):
    options = SessionOptions(weights=Weights.RANDOM, seed=5, feature_limit=0)
    batch = np.random.default_rng(2).normal(size=(3, 3, 224, 224)).astype(np.float32)
    pytorch = probabilities("PyTorch", model, options, batch)
    np.testing.assert_allclose(probabilities("ONNXRuntime", model, options, batch), pytorch, atol=1e-5)
    assert pytorch.std(axis=0).max() > 0  # the inputs are told apart


def test_exported_file_gives_what_the_shipped_one_gives(agent, tmp_path):
    path = tmp_path / "digits.onnx"
    answer = agent("export", "--model_name=digitscnn", "-o", path)
    assert answer.code == 0, answer.stderr
    assert str(path) in answer.stdout
    batch = np.random.default_rng(1).normal(size=(7, 1, 16, 16)).astype(np.float32)
    shipped = next(m for m in Catalog().models if m.model.graph_path and m.framework.name == "ONNXRuntime")
    answers = [
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(
            None, {"data": batch}
        )[0]
        for file in (path, shipped.source.parent / shipped.model.graph_path)
    ]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".export")] == []


def test_the_version_is_chosen_by_the_weights(agent, tmp_path):
    answer = agent("export", "--model_name=GoogLeNet", "--weights=random", "-o", tmp_path / "net.onnx")
    assert answer.code == 0, answer.stderr
    assert "GoogLeNet 1.0 to" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--model_name=DigitCNN", "-o", "x.onnx"), 2, "DigitsCNN"),
        (("--model_name=ResNet200", "-o", "x.onnx"), 4, "--weights=random"),
        (("--model_name=DigitsCNN", "-o", "nowhere/x.onnx"), 7, "nowhere"),
        (("--model_name=DigitsCNN", "-o", "."), 7, "exists"),
        (("--model_name=DigitsCNN",), 2, "--output"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    agent, tmp_path, monkeypatch, arguments, code, part
):
    monkeypatch.chdir(tmp_path)
    answer = agent("export", *arguments)
    assert answer.code == code
    assert part in answer.error
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".onnx"] == []
