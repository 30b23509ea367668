"""The models that clients share: what two have in common that share one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from served_fakes import FakeSession, rows

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.serving import served_models
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServedModels, ServingOptions
from inferometer.manifests.errors import MemoryLimitError
from inferometer.manifests.schema import ModelManifest

HALF, FULL = SessionOptions(precision=Precision.FLOAT16), SessionOptions(precision=Precision.FLOAT32)


def manifest(**model: str) -> ModelManifest:
    return ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": "Fake"},
            "inputs": [{"type": "tensor", "parameters": {"dimensions": [2], "element_type": "float32"}}],
            "output": {"type": "raw"},
            "model": model,
        }
    )


def sessions_of(described: ModelManifest, *options: SessionOptions) -> int:
    """How many models are loaded where clients open one with each of the options."""
    made: list[FakeSession] = []

    def open_model(*_: object) -> FakeSession:
        made.append(FakeSession("Tiny"))
        return made[-1]

    models = ServedModels(Registry(), open_model, ServingOptions())
    leases = [models.lease_model(described, each) for each in options]
    for lease in leases:
        lease.release()
    models.close()
    return len(made)


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ((FULL, FULL), 1),
        ((SessionOptions(), FULL), 1),  # which is the default of a model in code
        ((FULL, HALF), 2),
        ((SessionOptions(), SessionOptions(cudnn_benchmark=True)), 2),
        ((SessionOptions(cudnn_benchmark=False), SessionOptions(cudnn_benchmark=True)), 2),
    ],
)
def test_two_precisions_of_a_model_in_code_are_two_models(
    options: tuple[SessionOptions, ...], loaded: int
) -> None:
    assert sessions_of(manifest(architecture="tiny"), *options) == loaded


def test_float32_that_is_asked_for_is_not_the_own_precision_of_a_file() -> None:
    assert sessions_of(manifest(graph_path="tiny.onnx"), SessionOptions(), FULL) == 2


@pytest.mark.parametrize(("instances", "fits"), [(1, True), (3, True), (4, False)])
def test_the_memory_of_every_instance_counts(
    monkeypatch: pytest.MonkeyPatch, instances: int, *, fits: bool
) -> None:
    made: list[FakeSession] = []

    class Measured(FakeSession):
        def __init__(self) -> None:
            super().__init__("Tiny")
            made.append(self)

        def open_another(self, number: int) -> FakeSession:
            return Measured()

    monkeypatch.setattr(
        served_models, "used_bytes", lambda _: 1000 + 100 * sum(not each.closed for each in made)
    )
    registry = SimpleNamespace(find=lambda _: SimpleNamespace(load=lambda: None))
    options = ServingOptions(BatchingOptions(instances=instances), memory_limit_bytes=300)
    models = ServedModels(registry, lambda *_: Measured(), options)  # type: ignore[arg-type]
    described = manifest(graph_path="tiny.onnx")
    refused = pytest.raises(MemoryLimitError, match="takes 1 MiB on cpu")
    with nullcontext() if fits else refused, models.lease_model(described, SessionOptions()) as model:
        assert model.infer({"numbers": rows(1)}).outputs["doubled"].tolist() == [[2, 2]]
    models.close()
    assert models.wait_for_none(20)
    assert [each.closed for each in made] == [True] * instances
