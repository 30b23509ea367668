"""Opening a trainer: what is refused, what the description says, and what a failed start leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import (
    CPU,
    Device,
    DeviceKind,
    FrameworkDetails,
    PredictorOptions,
    Weights,
)
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.training.trainer import (
    PlacedBatch,
    Rank,
    StepResult,
    Trainer,
    TrainerOptions,
    TrainingBatch,
    open_trainer,
)
from inferometer.manifests.errors import (
    ArtifactError,
    ArtifactUnavailableError,
    ConfigurationError,
    FrameworkUnavailableError,
    ManifestError,
    TrainingError,
    UnknownFrameworkError,
)
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest

MODULE = "a_framework_of_the_opening_tests"
RANDOM = TrainerOptions(PredictorOptions(weights=Weights.RANDOM, seed=7))


class EchoTrainer(Trainer):
    """A trainer without a framework, which remembers every one that was made."""

    made: ClassVar[list[EchoTrainer]] = []
    closed = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made.append(self)

    def load(self) -> None:
        if self.options.rank.count > 1:
            raise TrainingError("the other ranks did not come")

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (3,)

    def place(self, batch: TrainingBatch) -> PlacedBatch:
        return self.checked(batch)

    def step(self, batch: PlacedBatch, *, parts: bool = False) -> StepResult:
        return StepResult(0.0)

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        return np.zeros((len(inputs), 3), np.float32)

    def save(self, path: Path) -> None: ...

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return values[np.newaxis]

    def details(self) -> FrameworkDetails:
        return FrameworkDetails(build="of echoes")

    @property
    def threads(self) -> int | None:
        return 3

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[EchoTrainer]:
    """The trainers that are made."""
    module = ModuleType(MODULE)
    module.EchoTrainer = EchoTrainer  # type: ignore[attr-defined]
    module.NoTrainer = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(EchoTrainer, "made", [])
    return EchoTrainer.made


def registry(trainer: str = f"{MODULE}:EchoTrainer", distribution: str = "numpy") -> Registry:
    return Registry(
        [FrameworkEntry("Echo", "none:None", (distribution,), "pip install echo", trainer=trainer)]
    )


def manifest(framework: str = "Echo", **more: Any) -> ModelManifest:
    fields = {
        "name": "Deep",
        "framework": {"name": framework},
        "inputs": [{"type": "tensor", "parameters": {"dimensions": [5]}}],
        "output": {"type": "raw"},
        "model": {"architecture": "echoes"},
    }
    return parse_manifest(fields | more, Path("deep.yml"))


def test_a_trainer_is_loaded_and_described(trainers):
    trainer, said = open_trainer(manifest(), RANDOM, registry())

    assert trainers == [trainer]
    assert trainer.closed == 0
    assert (said.framework_version, said.device, said.threads) == (np.__version__, CPU, 3)
    assert (said.weights, said.seed, said.preprocess_threads) == (Weights.RANDOM, 7, 0)
    assert said.environment.build == "of echoes"
    assert said.environment.frameworks == {"Echo": np.__version__}


def test_the_device_that_is_described_is_the_first(trainers):
    devices = (Device(DeviceKind.GPU, 1), Device(DeviceKind.GPU, 2))
    _, said = open_trainer(manifest(), TrainerOptions(RANDOM.predictor, devices), registry())

    assert said.device == devices[0]


def test_pretrained_weights_have_no_seed_and_must_be_there(trainers, tmp_path):
    model = {"architecture": "echoes", "weights_path": "weights"}
    deep = manifest(model=model)
    deep._source = tmp_path / "deep.yml"
    with pytest.raises(ArtifactUnavailableError, match="weights is missing"):
        open_trainer(deep, TrainerOptions(), registry())
    assert trainers == []

    (tmp_path / "weights").write_bytes(b"all of them")
    trainer, said = open_trainer(deep, TrainerOptions(), registry())
    assert trainer.artifacts.weights == tmp_path / "weights"
    assert said.seed is None
    assert list(said.checksums) == ["weights"]


def test_a_trainer_that_cannot_be_loaded_is_closed(trainers):
    options = TrainerOptions(RANDOM.predictor, rank=Rank(0, 2))
    with pytest.raises(TrainingError, match="did not come"):
        open_trainer(manifest(), options, registry())

    assert [each.closed for each in trainers] == [1]


def test_a_model_that_is_read_from_a_file_is_refused(trainers):
    deep = manifest(model={"graph_path": "deep.onnx"})
    with pytest.raises(ArtifactError, match=r"Deep 1\.0 for Echo is read from a file; only a model that is"):
        open_trainer(deep, RANDOM, registry())

    assert trainers == []


def test_a_framework_that_trains_nothing_is_refused_in_one_line():
    with pytest.raises(ConfigurationError, match=r"cannot train models; .*PyTorch, MXNet") as caught:
        open_trainer(manifest("onnxruntime"), RANDOM, Registry())

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (registry(distribution="no-such-framework"), "is not installed"),
        (registry("no_such_module:Trainer"), "cannot be imported"),
        (registry(f"{MODULE}:absent"), "cannot be imported"),
        (registry(f"{MODULE}:NoTrainer"), "is not a Trainer"),
    ],
)
def test_a_trainer_that_is_not_there_is_one_line(trainers, found, reason):
    with pytest.raises(FrameworkUnavailableError, match=reason) as caught:
        open_trainer(manifest(), RANDOM, found)

    assert "\n" not in str(caught.value)


def test_what_a_session_refuses_is_refused():
    with pytest.raises(UnknownFrameworkError, match="PyTorch"):
        open_trainer(manifest("Pytroch"), RANDOM, Registry())
    with pytest.raises(ManifestError, match="before_preprocess"):
        open_trainer(manifest(before_preprocess="def run(): ..."), RANDOM, registry())
