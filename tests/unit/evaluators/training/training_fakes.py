"""A trainer and a loader that only take the time that they add to the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import CPU, Environment, Weights
from inferometer.agent.inference.stages import InputFailure, Stage, SystemDescription
from inferometer.agent.training.trainer import (
    Rank,
    StepParts,
    StepResult,
    Trainer,
    TrainerOptions,
    TrainingBatch,
)
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.loading.loader import LoadedBatch, Loader
from inferometer.manifests.schema import ModelManifest

WAIT_NS, COPY_NS, PARTS = 1_000, 100, StepParts(2_000, 4_000, 500, 1_500)
STEP_NS, OVERHEAD_NS = 8_000, 10
IDENTITY = DatasetIdentity("vision", "fake", "1.0", None, 100)


def manifest(loss: str = "cross_entropy", classes: int = 4) -> ModelManifest:
    return ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": "Fake"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {
                "type": "classification",
                "parameters": {"labels": [f"c{number}" for number in range(classes)]},
            },
            "model": {"architecture": "tiny"},
            "training": {"loss": loss},
        }
    )


def description() -> SystemDescription:
    environment = Environment(
        "host", "x86_64", "", 2, 1, 2, 1, "Linux", "6", "3.11", "0.1.0", {"Fake": "1.0"}, (), None, {}
    )
    return SystemDescription(
        manifest(), {}, "1.0", CPU, 1, 0, False, environment, weights=Weights.RANDOM, seed=0
    )


class Clock:
    """A clock in nanoseconds that others move."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class FakeTrainer(Trainer):
    """Counts what it is given; the loss of step n is 1 / n. Rank n measures n + 1 times as long."""

    def __init__(self, clock: Clock, rank: Rank = Rank(), loss: str = "cross_entropy") -> None:  # noqa: B008
        super().__init__(manifest(loss), Artifacts(), TrainerOptions(rank=rank))
        self.fake_clock = clock
        self.placed: list[TrainingBatch] = []
        self.sizes: list[int] = []
        self.timed: list[int] = []

    def load(self) -> None: ...

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (4,)

    def place(self, batch: TrainingBatch) -> TrainingBatch:
        self.fake_clock.now_ns += COPY_NS
        self.placed.append(batch)
        return batch

    def step(self, batch: Any, *, parts: bool = False) -> StepResult:
        self.fake_clock.now_ns += STEP_NS
        self.sizes.append(len(batch))
        if parts:
            self.timed.append(len(self.sizes) - 1)
        return StepResult(1 / len(self.sizes), PARTS if parts else None)

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """The class that the first number of each sample names."""
        best = inputs.reshape(len(inputs), -1)[:, 0].astype(np.int64)
        return np.eye(4, dtype=np.float32)[best]

    def save(self, path: Path) -> None:
        path.write_text("weights")

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The times, which have several rows, of each further rank are longer; the rest is equal."""
        factors = [1 + number if values.ndim > 1 else 1 for number in range(self.options.rank.count)]
        return np.stack([values * factor for factor in factors])

    @property
    def threads(self) -> int | None:
        return 1

    def close(self) -> None: ...


class FakeLoader(Loader):
    """Batches of these sizes; 0 is one whose samples all failed."""

    def __init__(self, clock: Clock, sizes: Sequence[int], bad: Sequence[str] = ()) -> None:
        self.clock = clock
        self.sizes = sizes
        self.bad = bad
        self.closed_epochs: list[int] = []

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        try:
            for place, size in enumerate(self.sizes):
                self.clock.now_ns += WAIT_NS
                failures = tuple(
                    InputFailure(input_id, Stage.READ, "is broken") for input_id in self.bad if not place
                )
                yield LoadedBatch(
                    np.full((size, 3, 8, 8), place, np.float32), np.arange(size, dtype=np.int64), failures
                )
        finally:
            self.closed_epochs.append(number)

    @property
    def batches(self) -> int:
        return len(self.sizes)

    def close(self) -> None: ...
