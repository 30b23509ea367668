"""``gluon:NAME``: the models of MXNet's model zoo, with parameters in the zoo's published form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repeated_weights import Repeated

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.mxnet.predictor import MXNetPredictor
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.manifests.errors import ArtifactError
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest
from tests.optional_mxnet import mxnet

vision = mxnet.gluon.model_zoo.vision


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("gluon wanted to download")

    monkeypatch.setattr(mxnet.gluon.utils, "download", refuse)
    monkeypatch.setattr(mxnet.gluon.model_zoo.model_store, "download", refuse)


def manifest(architecture: str, side: int) -> ModelManifest:
    return parse_manifest(
        {
            "name": "Zoo",
            "framework": {"name": "MXNet"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, side, side]}}],
            "output": {"type": "raw"},
            "model": {"architecture": architecture, "weights_path": "zoo.params"},
        },
        Path("zoo.yml"),
    )


def predictor(
    architecture: str, weights: Path | None, side: int = 64, options: PredictorOptions | None = None
) -> MXNetPredictor:
    found = BUILTIN_ARCHITECTURES.find(architecture, "MXNet")
    artifacts = Artifacts(weights=weights).with_architecture(found)
    return MXNetPredictor(manifest(architecture, side), artifacts, options or PredictorOptions())


Saved = Callable[[str, int], tuple[Any, Path]]


@pytest.fixture(scope="module")
def saved_by_gluon(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Models of the zoo, each with its parameters in the file that gluon itself has saved."""
    folder = tmp_path_factory.mktemp("zoo")

    @functools.cache
    def save(name: str, side: int) -> tuple[Any, Path]:
        net = vision.get_model(name, pretrained=False)
        net.initialize(Repeated())
        net(mxnet.nd.zeros((1, 3, side, side)))
        path = folder / name / "zoo.params"
        path.parent.mkdir()
        net.save_parameters(str(path))
        return net, path

    return save


@pytest.mark.parametrize(
    ("architecture", "side"),
    [
        ("gluon:resnet18_v1", 64),
        ("gluon:ResNet50_v1", 64),
        ("gluon:mobilenet0.25", 64),
        ("gluon:alexnet", 224),
        ("gluon:inceptionv3", 299),
        # the program's own that are gluon's classes
        ("inception3", 299),
        ("alexnet_owt", 224),
    ],
)
def test_parameters_that_gluon_saved_give_what_gluon_gives(
    saved_by_gluon: Saved, architecture: str, side: int
) -> None:
    name = {"inception3": "inceptionv3", "alexnet_owt": "alexnet"}.get(architecture)
    net, path = saved_by_gluon(name or architecture.partition(":")[2], side)
    batch = np.random.default_rng(1).normal(size=(2, 3, side, side)).astype(np.float32)
    expected = net(mxnet.nd.from_numpy(batch, zero_copy=False)).asnumpy()
    with predictor(architecture, path, side) as opened:
        (output,) = opened.predict({"data": batch}).values()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(output, expected, atol=1e-4 * scale)
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * scale


def test_parameters_of_another_model_are_refused(saved_by_gluon: Saved) -> None:
    _, path = saved_by_gluon("resnet18_v2", 64)
    with pytest.raises(ArtifactError, match=r"zoo\.params: are not the weights of model Zoo") as caught:
        predictor("gluon:resnet18_v1", path).load()
    assert "\n" not in str(caught.value)


def test_random_weights_depend_on_the_seed() -> None:
    batch = np.random.default_rng(1).normal(size=(1, 3, 64, 64)).astype(np.float32)

    def answer(seed: int) -> np.ndarray:
        options = PredictorOptions(weights=Weights.RANDOM, seed=seed)
        with predictor("gluon:mobilenet0.25", None, options=options) as opened:
            return opened.predict({"data": batch}).popitem()[1]

    first, again, other = answer(1), answer(1), answer(2)
    np.testing.assert_array_equal(first, again)
    scale = np.abs(first).max()
    assert np.abs(first - other).max() > 0.1 * scale
    assert scale > 1e-7, "depthwise convolutions have let the activations fade away"


@pytest.mark.parametrize(
    ("name", "nearest"), [("resnet50", '"resnet50_v1"'), ("vgg-16", '"vgg16"'), ("qqqqqq", "alexnet, ")]
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    options = PredictorOptions(weights=Weights.RANDOM)
    with pytest.raises(ArtifactError, match=f'architecture "gluon:{name}": unknown gluon model; ') as caught:
        predictor(f"gluon:{name}", None, options=options).load()
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)
