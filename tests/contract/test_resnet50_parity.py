"""The shipped ResNet50 gives the same answers in MXNet, PyTorch and ONNX Runtime, given the same weights."""

from __future__ import annotations

import gc
import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_architecture_parity import build, fill, randomise

from agent.inputs import EncodedImage, Input
from agent.models.catalogue import ARCHITECTURES
from agent.registry import Registry
from agent.session import SessionOptions, open_session
from manifests.catalog import Catalog
from manifests.schema import ModelManifest, ModelOutput

TOLERANCE = 1e-4
FRAMEWORKS = ("MXNet", "ONNXRuntime", "PyTorch")
RESNET50 = ARCHITECTURES["resnet50"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One set of weights: a PyTorch state dict, and the same arrays as MXNet's parameters."""
    import torch

    folder = tmp_path_factory.mktemp("resnet50")
    module = build(RESNET50, "pytorch")
    arrays = randomise(module, seed=3)
    with torch.no_grad():
        # Images differ as with a trained model: their softmax is neither flat nor all in one class.
        noise = 1.2 * torch.randn(4, 3, 10, 12, generator=torch.Generator().manual_seed(5))
        images = torch.nn.functional.interpolate(noise, (224, 224), mode="bilinear")
        logits = module(images)
        module.fc.weight *= 2 / (logits - logits.mean(0)).std()
        module.fc.bias -= module(images).mean(0)
    torch.save(module.state_dict(), folder / "resnet50.pth")
    net = build(RESNET50, "mxnet")
    fill(net, RESNET50.input_shape, arrays)
    net.save_parameters(str(folder / "resnet50.params"))
    gc.collect()
    pytorch = folder / "resnet50.pth"
    return {"MXNet": folder / "resnet50.params", "PyTorch": pytorch, "ONNXRuntime": pytorch}


@pytest.fixture(scope="module")
def images() -> list[Input]:
    """Random images, encoded without loss, of another size than the model's."""
    inputs = []
    for seed in range(3):
        content = io.BytesIO()
        # coarse noise, which survives the resizing
        coarse = np.random.default_rng(seed).integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((360, 300)).save(content, "PNG")
        inputs.append(Input(str(seed), EncodedImage(content.getvalue())))
    return inputs


def shipped(framework: str, weights: Path, output: str) -> ModelManifest:
    """The program's manifest of ResNet50 for a framework, with other weights."""
    (manifest,) = [
        m
        for m in Catalog().models
        if m.name == "ResNet50" and m.framework.name == framework and m.model.architecture == "resnet50"
    ]
    files = {"base_url": "", "weights_path": str(weights), "weights_checksum": "", "is_archive": False}
    update: dict[str, Any] = {"model": manifest.model.model_copy(update=files)}
    if output == "raw":
        update["output"] = ModelOutput(type="raw")
    changed = manifest.model_copy(update=update)
    changed._source = manifest.source
    return changed


def answers(framework: str, weights: Path, images: list[Input], output: str = "classification") -> np.ndarray:
    """The probabilities of the classes in their order, or the logits; inputs × classes."""
    options = SessionOptions(feature_limit=0)
    with open_session(shipped(framework, weights, output), options, Registry()) as session:
        result = session.predict(images)
    assert not result.failures
    if output == "raw":
        (tensor,) = result.outputs.tensors.values()
        return np.asarray(tensor)
    outputs = result.outputs
    return np.asarray(np.take_along_axis(outputs.probabilities, outputs.indices.argsort(axis=1), axis=1))


@pytest.mark.parametrize("output", ["classification", "raw"])
def test_the_frameworks_agree_on_resnet50(weights: dict[str, Path], images: list[Input], output: str) -> None:
    importlib.import_module("agent.frameworks.mxnet")
    found = {name: answers(name, weights[name], images, output) for name in FRAMEWORKS}
    expected = found["PyTorch"]
    assert expected.shape == (3, 1000)
    scale = 1.0 if output == "classification" else np.abs(expected).max()
    for framework in ("MXNet", "ONNXRuntime"):
        assert np.abs(found[framework] - expected).max() <= TOLERANCE * scale, framework
    # or else to agree would say nothing: the answers are large, and the images are told apart
    assert expected.max() > 0.02 * scale
    assert np.abs(expected[0] - expected[1]).max() > 100 * TOLERANCE * scale


def test_other_weights_give_other_answers(
    weights: dict[str, Path], images: list[Input], tmp_path: Path
) -> None:
    import torch

    state = torch.load(weights["PyTorch"], weights_only=True)
    state["layer3.2.bn2.running_mean"] += 0.1
    torch.save(state, tmp_path / "other.pth")
    first, other = (answers("PyTorch", path, images) for path in (weights["PyTorch"], tmp_path / "other.pth"))
    assert np.abs(first - other).max() > 10 * TOLERANCE
