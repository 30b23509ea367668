"""The job of a training, with a trainer that only counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_fakes import Clock, FakeTrainer, description, manifest

from inferometer.agent.training.trainer import Rank
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.kinds.training import job
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.kinds.training.request import TrainingOptions, TrainingRequest
from inferometer.manifests.errors import OutputError

STEPS = 3


class FullDisk(FakeTrainer):
    """Cannot save."""

    def save(self, path: Path) -> None:
        raise OutputError(f"{path}: cannot be written: No space left on device")


def trained(
    trainer: FakeTrainer, path: Path, callbacks: JobCallbacks | None = None
) -> Iterator[Evaluation[TrainingMeasurement]]:
    resources: Any = SimpleNamespace(
        catalog=None, cache=None, registry=None, architectures=None, find_model=lambda _: manifest()
    )
    request = TrainingRequest(
        options=TrainingOptions(batch_size=4, num_batches=STEPS, parts_every=0), save_path=path
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "check_trainer", lambda *_: None)
        patch.setattr(job, "open_trainer", lambda *_, **__: (trainer, description()))
        yield from job.train(request, resources, Rank(), callbacks)


def test_a_disk_that_is_full_at_the_end_loses_the_weights_and_not_the_evaluation(tmp_path: Path) -> None:
    evaluations = trained(FullDisk(Clock()), tmp_path / "weights")

    evaluation = next(evaluations)
    assert evaluation.status is Status.COMPLETE
    assert evaluation.measurement.times.samples.shape == (1, STEPS)
    with pytest.raises(OutputError, match="No space left"):
        next(evaluations)


def test_the_weights_of_an_interrupted_training_are_not_saved(tmp_path: Path) -> None:
    trainer = FakeTrainer(Clock())
    callbacks: JobCallbacks = JobCallbacks(stop_requested=lambda: len(trainer.sizes) == 2)

    [evaluation] = trained(trainer, tmp_path / "weights", callbacks)

    assert evaluation.status is Status.INTERRUPTED
    assert not (tmp_path / "weights").exists()


def test_the_weights_of_a_whole_training_are_saved(tmp_path: Path) -> None:
    [evaluation] = trained(FakeTrainer(Clock()), tmp_path / "weights")

    assert evaluation.status is Status.COMPLETE
    assert (tmp_path / "weights").read_text() == "weights"
