"""A dataset and a system under test that only take the time that they add to the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from inferometer.agent.hardware.environment import CPU, Environment
from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes, SystemDescription
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.tasks.predictions import Classifications, RawOutputs
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.manifests.schema import ModelManifest

CLASSES = ("ant", "bee", "cat")
BATCH_NS, READ_NS, PREPROCESS_NS, POSTPROCESS_NS = 1_000, 1, 10, 100


def manifest(kind: str = "classification") -> ModelManifest:
    return ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": "Fake"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": kind, "parameters": {"labels": list(CLASSES)}},
            "model": {"graph_path": "graph"},
        }
    )


def description(kind: str) -> SystemDescription:
    environment = Environment(
        "host", "x86_64", "", 2, 1, 2, 1, "Linux", "6", "3.11", "0.1.0", {"Fake": "1.0"}, (), None, {}
    )
    return SystemDescription(manifest(kind), {}, "1.0", CPU, 1, 0, False, environment)


class Clock:
    """A clock in nanoseconds that others move."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Numbered(Dataset):
    """Samples ``s0``, ``s1``, … whose classes go round; how often each one's data was read is counted."""

    def __init__(self, size: int, labels: Sequence[str | None] = CLASSES) -> None:
        self.size = size
        self.labels = labels
        self.read: list[int] = []

    @property
    def identity(self) -> DatasetIdentity:
        return DatasetIdentity("vision", "numbered", "1.0", None, self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self.size):
            yield Sample(
                f"s{number}",
                lambda number=number: self._read(number),  # type: ignore[misc]
                self.labels[number % len(self.labels)],
            )

    def _read(self, number: int) -> Tensor:
        self.read.append(number)
        return Tensor(np.zeros(1))


class FakeSystem:
    """Answers "ant" for every sample, taking ``BATCH_NS`` for a batch; ``bad`` samples fail.

    Takes two batches ahead of the one that it answers, as a real one does.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        bad: Iterable[str] = (),
        kind: str = "classification",
        limit: int = 3,
    ) -> None:
        self.clock = clock or Clock()
        self.bad = set(bad)
        self.kind = kind
        self.limit = limit
        self.answered: list[tuple[str, ...]] = []
        self.runs: list[str] = []

    @property
    def description(self) -> SystemDescription:
        return description(self.kind)

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        self.clock.now_ns += BATCH_NS
        for item in inputs:
            item.read()
        self.answered.append(tuple(item.id for item in inputs))
        good = tuple(item.id for item in inputs if item.id not in self.bad)
        failures = tuple(
            InputFailure(item.id, Stage.READ, "is broken") for item in inputs if item.id in self.bad
        )
        ranking = np.tile(np.arange(self.limit, dtype=np.int64), (len(good), 1))
        outputs = (
            Classifications(ranking, np.full(ranking.shape, 0.5, np.float32))
            if self.kind == "classification"
            else RawOutputs({"raw": np.zeros((len(good), 1))})
        )
        times = StageTimes(READ_NS, PREPROCESS_NS, BATCH_NS if good else 0, POSTPROCESS_NS)
        return BatchResult(good, outputs if good else None, failures, times)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        self.runs.append("begun")
        waiting: list[Sequence[Input]] = []
        try:
            for batch in batches:
                waiting.append(batch)
                if len(waiting) > 2:
                    yield self.predict(waiting.pop(0))
            while waiting:
                yield self.predict(waiting.pop(0))
        finally:
            self.runs.append("ended")

    def close(self) -> None:
        pass


def options(batch_size: int = 4, partition_list_size: int = 10, **others: Any) -> BatchOptions:
    return BatchOptions(batch_size, partition_list_size, **{"warmup_num_file_parts": 0, **others})


def after(batches: int, system: FakeSystem) -> Callable[[], bool]:
    """A stop that is asked for once ``batches`` batches are answered."""
    return lambda: len(system.answered) >= batches
