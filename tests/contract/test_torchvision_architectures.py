"""torchvision itself, if installed: its state dicts match its models and inferometer's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_architecture_parity import randomise

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.pytorch.predictor import PyTorchPredictor
from inferometer.agent.hardware.environment import PredictorOptions
from inferometer.manifests.errors import ArtifactError
from inferometer.manifests.loader import parse_manifest

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def models() -> Any:
    """``torchvision.models``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchvision
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be used: {error}")
    return torchvision.models


def predictor(architecture: str, side: int, weights: Path) -> PyTorchPredictor:
    manifest = parse_manifest(
        {
            "name": "Published",
            "framework": {"name": "PyTorch"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, side, side]}}],
            "output": {"type": "raw"},
            "model": {"architecture": architecture, "weights_path": weights.name},
        },
        weights.with_suffix(".yml"),
    )
    found = BUILTIN_ARCHITECTURES.find(architecture, "PyTorch")
    artifacts = Artifacts(weights=weights).with_architecture(found)
    return PyTorchPredictor(manifest, artifacts, PredictorOptions())


@pytest.mark.parametrize(
    ("name", "architectures", "side"),
    [
        ("resnet18", ("torchvision:resnet18", "resnet18"), 224),
        ("resnet50", ("torchvision:resnet50", "resnet50"), 224),
        ("alexnet", ("torchvision:alexnet", "alexnet_owt"), 224),
        ("vgg11", ("torchvision:vgg11", "vgg11"), 224),
        ("vgg16", ("torchvision:vgg16", "vgg16"), 224),
        ("googlenet", ("torchvision:googlenet",), 224),
        ("inception_v3", ("torchvision:inception_v3", "inception3"), 299),
    ],
)
def test_a_state_dict_of_torchvisions_gives_what_torchvision_gives(
    models: Any, tmp_path: Path, name: str, architectures: tuple[str, ...], side: int
) -> None:
    options = {"aux_logits": True, "init_weights": False} if name in {"googlenet", "inception_v3"} else {}
    published = models.get_model(name, weights=None, **options).eval()
    randomise(published, seed=2)
    torch.save(published.state_dict(), tmp_path / "published.pth")
    batch = np.random.default_rng(3).normal(size=(2, 3, side, side)).astype(np.float32)
    with torch.inference_mode():
        expected = published(torch.from_numpy(batch)).numpy()
    for architecture in architectures:
        with predictor(architecture, side, tmp_path / "published.pth") as opened:
            output = opened.predict({"data": batch})["output0"]
        np.testing.assert_allclose(output, expected, atol=TOLERANCE * np.abs(expected).max())


def test_the_state_dict_of_another_model_is_refused(models: Any, tmp_path: Path) -> None:
    torch.save(models.get_model("resnet18", weights=None).state_dict(), tmp_path / "published.pth")
    with pytest.raises(ArtifactError, match=r"published\.pth: are not the weights of model Published"):
        predictor("torchvision:resnet34", 224, tmp_path / "published.pth").load()
