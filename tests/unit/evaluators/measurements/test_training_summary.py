"""The figures of a training run from its raw times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.evaluators.kinds.training.measurement import (
    Bound,
    StepTimes,
    TrainingMeasurement,
    TrainingSummary,
)
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.loading.options import DataOptions

MS = 1_000_000


def column(value: float | NDArray[Any], shape: tuple[int, int]) -> NDArray[np.int64]:
    return np.broadcast_to(np.asarray(value), shape).astype(np.int64)


def measurement(
    *,
    ranks: int = 1,
    steps: int = 4,
    samples: Any = 8,
    whole: Any = 10 * MS,
    wait: Any = 1 * MS,
    copy: Any = 1 * MS,
    compute: Any = 8 * MS,
    communicate: Any = 0,
    prefetch: int = 0,
) -> TrainingMeasurement:
    shape = (ranks, steps)
    parts = {name: column(MS, shape) for name in ("forward_ns", "backward_ns", "update_ns")}
    times = StepTimes(
        samples=column(samples, shape),
        wait_ns=column(wait, shape),
        copy_ns=column(copy, shape),
        compute_ns=column(compute, shape),
        whole_ns=column(whole, shape),
        parts_at=np.arange(steps, dtype=np.int64),
        communicate_ns=column(communicate, shape),
        **parts,
    )
    return TrainingMeasurement(
        TrainingOptions(8, ranks=ranks),
        DataOptions(prefetch=prefetch, workers=int(prefetch > 0)),
        times,
        np.linspace(2, 1, steps)[np.newaxis].repeat(ranks, axis=0),
        int(times.whole_ns.sum(axis=1).max(initial=0)),
    )


def test_throughput_is_all_samples_over_all_time() -> None:
    found = measurement(whole=np.array([[10, 20, 10, 5]]) * MS, samples=np.array([[8, 8, 8, 3]]))
    summary = TrainingSummary.of(found)
    assert summary.throughput_samples_per_s == pytest.approx(27 / 0.045, rel=1e-9)
    assert summary.throughput_samples_per_s * found.elapsed_ns / 1e9 == pytest.approx(27, rel=1e-3)


def test_the_last_smaller_batch_counts_as_what_it_is_and_not_in_the_latency() -> None:
    samples = np.array([[512] * 97 + [336]])
    whole = np.array([[100] * 97 + [50]]) * MS
    found = measurement(steps=98, samples=samples // 64, whole=whole)
    summary = TrainingSummary.of(found)
    assert summary.throughput_samples_per_s == pytest.approx((8 * 97 + 5) / 9.75)
    assert summary.mean_ns == 100 * MS
    assert summary.steps == 98


def test_the_slowest_rank_of_each_step_is_its_time_and_the_slowest_rank_the_throughput() -> None:
    whole = np.array([[10, 30], [20, 10]]) * MS
    summary = TrainingSummary.of(measurement(ranks=2, steps=2, whole=whole))
    assert summary.mean_ns == 25 * MS
    assert summary.throughput_samples_per_s == pytest.approx(32 / 0.040)


def test_the_throughput_lies_in_its_interval_also_with_a_smaller_batch() -> None:
    drawn = np.random.default_rng(1).normal(10, 0.2, (1, 400)) * MS
    samples = np.where(np.arange(400) % 4 == 3, 2, 8)[np.newaxis]
    summary = TrainingSummary.of(measurement(steps=400, whole=drawn, samples=samples))
    assert summary.throughput_interval is not None
    assert summary.throughput_interval.covers(summary.throughput_samples_per_s or 0)
    assert summary.mean_interval_ns is not None
    assert summary.mean_interval_ns.covers(summary.mean_ns or 0)


def test_a_few_steps_give_no_interval_and_no_percentile() -> None:
    summary = TrainingSummary.of(measurement(steps=4))
    assert summary.mean_interval_ns is summary.throughput_interval is summary.p50_ns is None
    assert summary.mean_ns == 10 * MS


def test_without_a_full_batch_there_is_a_throughput_and_no_step_time() -> None:
    summary = TrainingSummary.of(measurement(samples=3))
    assert summary.mean_ns is None
    assert summary.throughput_samples_per_s == pytest.approx(300)


def test_without_steps_there_are_no_figures() -> None:
    summary = TrainingSummary.of(measurement(steps=0))
    assert summary.steps == 0
    assert summary.throughput_samples_per_s is summary.bound is summary.wait_ns is None


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({}, Bound.COMPUTE),
        ({"wait": 20 * MS}, Bound.LOADER),
        ({"copy": 20 * MS}, Bound.COPY),
        ({"communicate": 5 * MS}, Bound.COMMUNICATION),
        # ahead of the steps, a loader that they wait for at all is what holds them up
        ({"prefetch": 2, "wait": 1 * MS}, Bound.LOADER),
        ({"prefetch": 2, "wait": 0.4 * MS}, Bound.COMPUTE),
        ({"prefetch": 0, "wait": 7 * MS}, Bound.COMPUTE),
    ],
)
def test_the_part_that_bounds_a_step(given: dict[str, Any], bound: Bound) -> None:
    assert TrainingSummary.of(measurement(**given)).bound is bound


def test_the_losses_are_the_mean_of_the_ranks() -> None:
    summary = TrainingSummary.of(measurement(ranks=2))
    assert (summary.first_loss, summary.last_loss) == (2, 1)


def test_the_effective_batch_is_that_of_all_devices_and_ranks() -> None:
    assert TrainingOptions(8, devices=2, ranks=4).effective_batch == 64
