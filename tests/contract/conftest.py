"""Fixtures of the suite that all predictors pass.

The frameworks are imported when a test first asks for a model, so that the suite of the stores does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agent.artifacts import Artifacts
from agent.device import CPU, Device
from agent.models.sources import BUILTIN_ARCHITECTURES
from agent.predictor import Predictor, PredictorOptions
from agent.registry import Registry
from manifests.schema import ModelManifest

if TYPE_CHECKING:
    from tiny_models import TinyModel

OpenPredictor = Callable[..., Predictor]


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    from tiny_models import random_weights

    return random_weights(seed=7)


@pytest.fixture(scope="session")
def tiny_models(
    weights: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TinyModel]:
    from tiny_models import write_all

    return write_all(tmp_path_factory.mktemp("tiny"), weights)


@pytest.fixture(params=["PyTorch", "MXNet", "ONNXRuntime"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_predictor(tiny_models: dict[str, TinyModel]) -> Iterator[OpenPredictor]:
    """Loads predictors, of the tiny model unless told otherwise, and closes them at the end."""
    opened: list[Predictor] = []

    def open_one(
        framework: str,
        *,
        manifest: ModelManifest | None = None,
        artifacts: Artifacts | None = None,
        device: Device = CPU,
        threads: int | None = None,
        spare_cores: int = 0,
    ) -> Predictor:
        model = tiny_models[framework]
        manifest = manifest or model.manifest
        artifacts = artifacts or model.artifacts
        if name := manifest.model.architecture:
            artifacts = artifacts.with_architecture(BUILTIN_ARCHITECTURES.find(name, framework))
        predictor_type = Registry().find(framework).load()
        predictor = predictor_type(
            manifest, artifacts, PredictorOptions(device, threads, spare_cores=spare_cores)
        )
        opened.append(predictor)
        predictor.load()
        return predictor

    yield open_one
    for predictor in opened:
        predictor.close()


@pytest.fixture
def images() -> np.ndarray:
    """64 inputs of the tiny model."""
    return np.random.default_rng(11).normal(0, 1, (64, 1, 8, 8)).astype(np.float32)
