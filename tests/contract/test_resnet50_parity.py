"""ResNet50 gives the same outputs in MXNet, PyTorch and ONNX Runtime with the same weights."""

from __future__ import annotations

import gc
import importlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_architecture_parity import build, build_undefined, fill, randomise

from inferometer.agent.architectures.sources import ARCHITECTURES
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.inference.stages import Inferred
from inferometer.agent.preprocessing.inputs import EncodedImage, Input, Tensors
from inferometer.agent.tasks.predictions import Classifications
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

TOLERANCE = 1e-4
FRAMEWORKS = ("MXNet", "ONNXRuntime", "PyTorch")
RESNET50 = ARCHITECTURES["resnet50"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One set of weights: a PyTorch state dict, and the same arrays as MXNet's parameters."""
    import torch

    folder = tmp_path_factory.mktemp("resnet50")
    module = build_undefined(RESNET50)
    arrays = randomise(module, seed=3)
    with torch.no_grad():
        # Images differ as with a trained model: their softmax is neither flat nor all in one class.
        noise = 1.2 * torch.randn(4, 3, 10, 12, generator=torch.Generator().manual_seed(5))
        images = torch.nn.functional.interpolate(noise, (224, 224), mode="bilinear")
        logits = module(images)
        factor = 2 / (logits - logits.mean(0)).std()
        module.fc.weight *= factor
        module.fc.bias -= (factor * (logits - module.fc.bias) + module.fc.bias).mean(0)
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


def shipped(framework: str, weights: Path) -> ModelManifest:
    """The program's manifest of ResNet50 for a framework, with other weights."""
    (manifest,) = [
        m
        for m in Catalog().models
        if m.name == "ResNet50" and m.framework.name == framework and m.model.architecture == "resnet50"
    ]
    files = {"base_url": "", "weights_path": str(weights), "weights_checksum": "", "is_archive": False}
    changed = manifest.model_copy(update={"model": manifest.model.model_copy(update=files)})
    changed._source = manifest.source
    return changed


def answers(framework: str, weights: Path, images: list[Input]) -> dict[str, np.ndarray]:
    """The model's logits, and the probabilities of the classes in their order; both inputs × classes."""
    logits: list[np.ndarray] = []
    with open_session(shipped(framework, weights), SessionOptions(feature_limit=0), Registry()) as session:

        def infer(batch: Tensors) -> Inferred:
            inferred = session.infer(batch)
            (tensor,) = inferred.outputs.values()
            logits.append(np.array(tensor))
            return inferred

        result = session.predict(images, infer)
    assert not result.failures
    outputs = result.outputs
    assert isinstance(outputs, Classifications)
    probabilities = np.take_along_axis(outputs.probabilities, outputs.indices.argsort(axis=1), axis=1)
    (raw,) = logits
    return {"raw": raw, "classification": probabilities}


@pytest.fixture(scope="module")
def found(weights: dict[str, Path], images: list[Input]) -> dict[str, dict[str, np.ndarray]]:
    importlib.import_module("inferometer.agent.frameworks.mxnet.predictor")
    return {name: answers(name, weights[name], images) for name in FRAMEWORKS}


@pytest.mark.parametrize("output", ["classification", "raw"])
def test_the_frameworks_agree_on_resnet50(found: dict[str, dict[str, np.ndarray]], output: str) -> None:
    expected = found["PyTorch"][output]
    assert expected.shape == (3, 1000)
    scale = 1.0 if output == "classification" else np.abs(expected).max()
    for framework in ("MXNet", "ONNXRuntime"):
        assert np.abs(found[framework][output] - expected).max() <= TOLERANCE * scale, framework
    # or else to agree would say nothing: the answers are large, and the images are told apart
    assert expected.max() > 0.02 * scale
    assert np.abs(expected[0] - expected[1]).max() > 100 * TOLERANCE * scale


def test_other_weights_give_other_answers(
    found: dict[str, dict[str, np.ndarray]], weights: dict[str, Path], images: list[Input], tmp_path: Path
) -> None:
    import torch

    state = torch.load(weights["PyTorch"], weights_only=True)
    state["layer3.2.bn2.running_mean"] += 0.1
    torch.save(state, tmp_path / "other.pth")
    first = found["PyTorch"]["classification"]
    other = answers("PyTorch", tmp_path / "other.pth", images)["classification"]
    assert np.abs(first - other).max() > 10 * TOLERANCE
