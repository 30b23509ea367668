"""Fixtures of the suites that all predictors and all stores pass.

The frameworks are imported when a test first asks for a model, so that the suite of the stores does without.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import CPU, Device, PredictorOptions
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import Registry
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.schema import ModelManifest
from tests.contract.store_fixtures import StoreBackend, mongodb_backend

if TYPE_CHECKING:
    from tiny_models import TinyModel

OpenPredictor = Callable[..., Predictor]


@pytest.fixture(scope="module", params=["sqlite", "mongodb"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreBackend]:
    """A place for databases, the same for the tests of a file."""
    directory = tmp_path_factory.mktemp("databases")
    if request.param == "sqlite":
        yield StoreBackend(None, directory)
    else:
        with mongodb_backend(directory) as mongodb:
            yield mongodb


@pytest.fixture
def name(backend: StoreBackend) -> Iterator[str]:
    """The name of a database that nobody else has."""
    name = f"test_{uuid.uuid4().hex}"
    yield name
    if backend.address and "MONGODB_URI" in os.environ:
        with backend.documents(name) as documents:
            documents.client.drop_database(name)


@pytest.fixture
def store(backend: StoreBackend, name: str) -> Iterator[EvaluationStore]:
    """A store with an empty database."""
    store = backend.open(name)
    yield store
    store.close()


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
        **options: Any,
    ) -> Predictor:
        model = tiny_models[framework]
        manifest = manifest or model.manifest
        artifacts = artifacts or model.artifacts
        if name := manifest.model.architecture:
            artifacts = artifacts.with_architecture(BUILTIN_ARCHITECTURES.find(name, framework))
        predictor_type = Registry().find(framework).load()
        predictor = predictor_type(manifest, artifacts, PredictorOptions(device, threads, **options))
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
