"""Evaluations of training for tests of the store, the reports and the pictures."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import SystemDescription
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.training.measurement import StepTimes, TrainingMeasurement
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.loading.options import DataOptions

MS = 1_000_000


def make_times(
    whole_ms: float | NDArray[Any],
    *,
    steps: int = 4,
    ranks: int = 1,
    samples: Any = 8,
    communicate_ms: float = 0,
) -> StepTimes:
    """Times of which waiting and copying are a tenth each; every other step is timed in parts."""
    shape = (ranks, steps)
    whole_ns = np.broadcast_to(np.asarray(whole_ms) * MS, shape).astype(np.int64)
    at = np.arange(0, steps, 2, dtype=np.int64)

    def part(ns: float) -> NDArray[np.int64]:
        return np.full((ranks, len(at)), ns, np.int64)

    return StepTimes(
        samples=np.broadcast_to(np.asarray(samples, np.int64), shape).copy(),
        wait_ns=whole_ns // 10,
        copy_ns=whole_ns // 10,
        compute_ns=whole_ns - 2 * (whole_ns // 10),
        whole_ns=whole_ns,
        parts_at=at,
        forward_ns=part(2 * MS),
        backward_ns=part(4 * MS),
        communicate_ns=part(communicate_ms * MS),
        update_ns=part(MS),
    )


def make_training(system: SystemDescription, **changes: Any) -> Evaluation[TrainingMeasurement]:
    """A training; ``changes`` are fields of its measurement, its options, or of ``make_times``."""
    options = TrainingOptions(
        batch_size=changes.pop("batch_size", 8),
        num_batches=changes.get("steps", 4),
        ranks=changes.get("ranks", 1),
        communication="gloo" if changes.get("ranks", 1) > 1 else "",
    )
    made = ("steps", "ranks", "samples", "communicate_ms")
    times = make_times(
        changes.pop("whole_ms", 10.0),
        **{"samples": options.batch_size} | {name: changes.pop(name) for name in made if name in changes},
    )
    status, created = changes.pop("status", Status.COMPLETE), changes.pop("created_at", None)
    ranks, steps = times.whole_ns.shape
    measurement = TrainingMeasurement(
        options=options,
        data=changes.pop("data", DataOptions("synthetic", "host")),
        times=times,
        losses=changes.pop("losses", np.linspace(2, 1, steps + 1)[np.newaxis].repeat(ranks, axis=0)),
        elapsed_ns=int(times.whole_ns.sum(axis=1).max()),
        epochs=1,
        **changes,
    )
    return Evaluation(
        id=str(uuid.uuid4()),
        created_at=created or datetime(2025, 3, 1, 12, 30, 15, 123000, tzinfo=timezone.utc),
        status=status,
        system=system,
        dataset=DatasetIdentity("synthetic", "synthetic data (seed 0)", None, None, 40),
        measurement=measurement,
    )
