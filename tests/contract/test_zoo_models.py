"""Every shipped model that is built in code opens with random weights and predicts, in its framework."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest

from agent.predictor import Weights
from agent.registry import Registry
from agent.results import Classifications, RawOutputs
from agent.session import SessionOptions, open_session
from manifests.catalog import Catalog
from manifests.schema import ModelManifest

MODELS = [
    model
    for model in Catalog().models
    if model.model.architecture is not None and model.model.graph_path is None
]
# To export one takes ten seconds and a GB of memory, and they are VGG11 with more layers.
LARGE = {("VGG13", "ONNXRuntime"), ("VGG16", "ONNXRuntime"), ("VGG19", "ONNXRuntime")}
CLASSES = {"AcousticModel": 8192, "DeepMNIST": 10, "SensorNet": 16, "CIFAR10_LeNet": 10, "DigitsCNN": 10}
RAW = {"DeepSpeech2": (67, 842), "SingleConvolution": (32, 256, 256)}
TENSORS = {
    "AcousticModel": (540,),
    "DeepMNIST": (784,),
    "SensorNet": (784,),
    "DeepSpeech2": (1, 200, 161),
    "SingleConvolution": (32, 256, 256),
}


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    yield
    gc.collect()


def title(model: ModelManifest) -> str:
    return f"{model.name}-{model.version}-{model.framework.name}"


def require_package(model: ModelManifest) -> None:
    source, _, name = (model.model.architecture or "").rpartition(":")
    if source in ("torchvision", "timm") and importlib.util.find_spec(source) is None:
        pytest.skip(f"{source} is not installed, which builds {name}")


@pytest.mark.parametrize("model", [m for m in MODELS if (m.name, m.framework.name) not in LARGE], ids=title)
def test_a_model_with_random_weights_predicts_an_input(model: ModelManifest) -> None:
    require_package(model)
    parameters = model.inputs[0].parameters
    batch = np.random.default_rng(3).normal(size=(1, *parameters.dimensions))
    with open_session(model, SessionOptions(weights=Weights.RANDOM, feature_limit=0), Registry()) as session:
        result = session.predict_tensor(batch)
    assert result.failures == ()
    if model.name in RAW:
        assert isinstance(result.outputs, RawOutputs)
        (output,) = result.outputs.tensors.values()
        assert output.shape == (1, *RAW[model.name])
        assert np.isfinite(output).all()
        assert output.std() > 0
    else:
        assert isinstance(result.outputs, Classifications)
        probabilities = result.outputs.probabilities
        assert probabilities.shape == (1, CLASSES.get(model.name, 1000))
        assert probabilities.sum() == pytest.approx(1, abs=1e-3)


def test_onnx_runtime_has_the_models_that_pytorch_has() -> None:
    pytorch, onnxruntime = (
        {
            (m.name, m.version): (m.inputs, m.output, m.model.architecture)
            for m in MODELS
            if m.framework.name == framework
        }
        for framework in ("PyTorch", "ONNXRuntime")
    )
    assert set(pytorch) - set(onnxruntime) == {("DigitsCNN", "1.0")}  # which has a graph there
    for key, described in onnxruntime.items():
        assert described == pytorch[key]


def test_the_models_that_take_no_images_are_there_for_every_framework() -> None:
    tensors = {
        (model.name, model.framework.name, model.inputs[0].parameters.dimensions)
        for model in Catalog().models
        if model.inputs[0].type == "tensor"
    }
    assert tensors == {
        (name, framework, dimensions)
        for name, dimensions in TENSORS.items()
        for framework in ("PyTorch", "MXNet", "ONNXRuntime")
    }
