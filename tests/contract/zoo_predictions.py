"""The shipped models that are built in code, with random weights, and what they predict of one input."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

import numpy as np
import pytest

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES, Architectures
from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.tasks.predictions import (
    Classifications,
    ClassMaps,
    Detections,
    Images,
    RawOutputs,
    Values,
)
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

MODELS = [
    model
    for model in Catalog().models
    if model.model.architecture is not None
    and model.model.graph_path is None
    and model.inputs[0].type != "text"
]
CLASSES = {"AcousticModel": 8192, "DeepMNIST": 10, "SensorNet": 16, "CIFAR10_LeNet": 10, "DigitsCNN": 10}
TASKS = {
    "DigitsDetector": Detections,
    "DigitsSegmenter": ClassMaps,
    "DigitsDenoiser": Images,
    "DigitsEmbedder": Values,
}
RAW = {"DeepSpeech2": (67, 842), "SingleConvolution": (32, 256, 256)}


# VGG11 and ResNet50 with more layers: to export one takes up to ten seconds and a GB of memory, and a ResNet
# takes seconds even where it is only run
LARGE = {"VGG13", "VGG16", "VGG19", "ResNet101", "ResNet152", "ResNet200", "ResNet269"}


def title(model: ModelManifest) -> str:
    return f"{model.name}-{model.version}-{model.framework.name}"


def each_model_of(models: Iterable[ModelManifest]) -> pytest.MarkDecorator:
    """Gives a test each of these models; those that take long are slow."""
    return pytest.mark.parametrize(
        "model", [pytest.param(model, id=title(model), marks=_marks(model)) for model in models]
    )


def _marks(model: ModelManifest) -> tuple[pytest.MarkDecorator, ...]:
    takes_long = model.framework.name == "ONNXRuntime" or model.name.startswith("ResNet")
    return (pytest.mark.slow,) if model.name in LARGE and takes_long else ()


def require_package(model: ModelManifest) -> None:
    source, _, name = (model.model.architecture or "").rpartition(":")
    if source in ("torchvision", "timm") and importlib.util.find_spec(source) is None:
        pytest.skip(f"{source} is not installed, which builds {name}")


def opened(
    model: ModelManifest, architectures: Architectures = BUILTIN_ARCHITECTURES, *, seed: int = 0
) -> Session:
    options = SessionOptions(weights=Weights.RANDOM, seed=seed, feature_limit=0)
    return open_session(model, options, Registry(), architectures=architectures)


def check_prediction(session: Session, model: ModelManifest) -> None:
    """Predicts one random input."""
    parameters = model.inputs[0].parameters
    batch = np.random.default_rng(3).normal(size=(1, *parameters.dimensions))
    result = session.predict_tensor(batch)
    assert result.failures == ()
    if model.name in RAW:
        assert isinstance(result.outputs, RawOutputs)
        (output,) = result.outputs.tensors.values()
        assert output.shape == (1, *RAW[model.name])
        assert np.isfinite(output).all()
        assert output.std() > 0
    elif model.name in TASKS:
        assert isinstance(result.outputs, TASKS[model.name])
        assert len(result.outputs) == 1
    else:
        assert isinstance(result.outputs, Classifications)
        probabilities = result.outputs.probabilities
        assert probabilities.shape == (1, CLASSES.get(model.name, 1000))
        assert probabilities.sum() == pytest.approx(1, abs=1e-3)
