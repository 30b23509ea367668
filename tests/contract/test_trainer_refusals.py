"""What every trainer refuses, in one line, and that it trains on afterwards."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from trainer_fixtures import FRAMEWORKS, batch_of, trainer_of, write_architectures

from inferometer.agent.hardware.environment import Device, DeviceKind, Precision
from inferometer.agent.training.trainer import Rank, TrainingBatch
from inferometer.manifests.errors import (
    ConfigurationError,
    DeviceError,
    InferometerError,
    OutputError,
    TrainingError,
)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architectures(tmp_path_factory.mktemp("architectures"))


@pytest.fixture
def opened(framework: str, directory: Path):  # type: ignore[no-untyped-def]
    """Opens a trainer of the framework; see ``trainer_of``."""
    return lambda name, **options: trainer_of(framework, name, directory, **options)


def assert_one_line(error: InferometerError) -> None:
    message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 600


def wrong_batches(name: str) -> dict[str, tuple[TrainingBatch, str]]:
    """Batches that do not fit, each with a word of the reason."""
    good = batch_of(name, 4)
    inputs, targets = good.inputs, good.targets
    return {
        "a target too high": (TrainingBatch(inputs, np.array([0, 1, 10, 2])), "10"),
        "a target below 0": (TrainingBatch(inputs, np.array([0, -1, 1, 2])), "-1"),
        "targets of another type": (TrainingBatch(inputs, targets.astype(np.int32)), "int32"),
        "too few targets": (TrainingBatch(inputs, targets[:3]), "(3,)"),
        "targets of CTC": (TrainingBatch(inputs, targets[:, np.newaxis]), "(4, 1)"),
        "inputs of another type": (TrainingBatch(inputs.astype(np.float64), targets), "float64"),
        "inputs of another shape": (TrainingBatch(inputs[..., :7], targets), "(4, 1, 8, 7)"),
        "no samples": (TrainingBatch(inputs[:0], targets[:0]), "(0, 1, 8, 8)"),
    }


@pytest.mark.parametrize("wrong", wrong_batches("plain"))
def test_a_batch_that_does_not_fit_is_one_line_and_training_goes_on(opened, wrong):
    batch, reason = wrong_batches("plain")[wrong]
    with opened("plain") as trainer:
        with pytest.raises(TrainingError) as caught:
            trainer.step(trainer.place(batch))
        assert math.isfinite(trainer.step(trainer.place(batch_of("plain", 4))).loss)

    assert_one_line(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        ([[1, 2], [0, 1]], "0 is the blank"),
        ([[1, 2], [5, 1]], "1 to 4"),
        ([[1] * 12, [1, 2] * 6], "23 time steps"),
        ([1, 2], "(2,)"),
    ],
)
def test_labels_that_ctc_cannot_place_are_one_line(opened, targets, reason):
    inputs = batch_of("speech", 2).inputs
    with opened("speech") as trainer, pytest.raises(TrainingError) as caught:
        trainer.step(trainer.place(TrainingBatch(inputs, np.array(targets))))

    assert_one_line(caught.value)
    assert reason in str(caught.value)


def test_scores_of_a_wrong_shape_are_one_line(opened):
    with opened("plain") as trainer, pytest.raises(TrainingError, match=r"\(2, 1, 8, 7\)") as caught:
        trainer.scores(np.zeros((2, 1, 8, 7), np.float32))

    assert_one_line(caught.value)


def test_a_gpu_that_is_not_there_is_a_device_error(opened):
    far = (Device(DeviceKind.GPU, 99),)
    with pytest.raises(DeviceError, match="gpu:99") as caught, opened("linear", devices=far):
        pass

    assert_one_line(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"communication": "pigeon"},
        {"api": "pigeon"},
        {"devices": ()},
        {"rank": Rank(number=1, count=2)},
        {"rank": Rank(number=2, count=2, address="127.0.0.1:1")},
    ],
)
def test_options_that_no_framework_has_are_refused(opened, options):
    with pytest.raises(ConfigurationError) as caught, opened("linear", **options):
        pass

    assert_one_line(caught.value)


def test_float16_on_a_cpu_is_refused_with_what_to_take_instead(opened):
    with (
        pytest.raises(ConfigurationError, match="bfloat16") as caught,
        opened("plain", precision=Precision.FLOAT16),
    ):
        pass
    assert_one_line(caught.value)


def test_a_path_that_cannot_be_written_is_an_output_error(opened, tmp_path):
    with opened("linear") as trainer, pytest.raises(OutputError) as caught:
        trainer.save(tmp_path / "missing" / "trained.params")

    assert_one_line(caught.value)
    assert str(tmp_path / "missing") in str(caught.value)
