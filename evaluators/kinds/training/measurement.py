"""The measurement of training steps: raw times of every rank, losses, and what bounds a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.loading.options import DataOptions
from inferometer.evaluators.statistics import Interval, TimeFigures, figures_of, rate_interval
from inferometer.evaluators.tasks.metric import Accuracy

_NS_PER_S = 1_000_000_000


class Bound(str, Enum):
    """The part of a step that bounds its time."""

    LOADER = "loader"
    COPY = "copy"
    COMPUTE = "compute"
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The raw times of the measured steps in nanoseconds; int64, (ranks, steps).

    A step lasts from the end of the previous step to its own end, so that nothing between steps is left out:
    ``whole_ns`` is at least ``wait_ns + copy_ns + compute_ns``.

    Attributes:
        samples: The number of samples that the rank trained on.
        wait_ns: The wait for data.
        copy_ns: The copy to the devices; 0 for data that stays there.
        compute_ns: Forward, backward, communication and update, synchronised with the devices.
        whole_ns: The whole step.
        parts_at: int64, (sampled,): the indices of the steps whose parts were timed.
        forward_ns: int64, (ranks, sampled): the forward pass.
        backward_ns: The backward pass, in the same shape.
        communicate_ns: Summing the gradients over devices and ranks, in the same shape.
        update_ns: The weight update, in the same shape.
    """

    samples: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    copy_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    whole_ns: NDArray[np.int64]
    parts_at: NDArray[np.int64]
    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    communicate_ns: NDArray[np.int64]
    update_ns: NDArray[np.int64]

    @property
    def slowest_ns(self) -> NDArray[np.int64]:
        """int64, (steps,): the time of each step on its slowest rank."""
        slowest: NDArray[np.int64] = self.whole_ns.max(axis=0)
        return slowest


@dataclass(frozen=True, slots=True, eq=False)
class TrainingMeasurement:
    """One training run.

    Attributes:
        options: How the model was trained.
        data: The source of the batches.
        times: The raw times of the measured steps.
        losses: float64, (ranks, warm-up and measured steps): the mean loss of each rank's batch in each step.
        elapsed_ns: The duration of the measured steps.
        failures: The samples that could not be read or decoded, and so were not trained on.
        accuracy: The accuracy of the trained model on ``validation``; None if it was not requested.
        validation: The name of the dataset used for ``accuracy``; empty if there is none.
        epochs: The number of passes over the data that were begun.
    """

    kind: ClassVar[str] = "training"

    options: TrainingOptions
    data: DataOptions
    times: StepTimes
    losses: NDArray[np.float64]
    elapsed_ns: int
    failures: tuple[InputFailure, ...] = ()
    accuracy: Accuracy | None = None
    validation: str = ""
    epochs: int = 0

    @property
    def batch_size(self) -> int:
        """The number of samples in a full batch on one device."""
        return self.options.batch_size

    @property
    def full(self) -> NDArray[np.bool_]:
        """bool, (steps,): whether every rank had a full batch in each step."""
        every: NDArray[np.bool_] = (self.times.samples == self.options.batch_size * self.options.devices).all(
            axis=0
        )
        return every

    @property
    def traced_sizes(self) -> NDArray[np.int64]:
        """int64, (steps,): the number of samples in each step on rank 0, the rank that is traced."""
        sizes: NDArray[np.int64] = self.times.samples[0]
        return sizes

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """int64; the whole times of the full steps, on the slowest rank, in order."""
        full: NDArray[np.int64] = self.times.slowest_ns[self.full]
        return full


_PARTS = ("wait_ns", "copy_ns", "compute_ns", "forward_ns", "backward_ns", "communicate_ns", "update_ns")
_DIVERGED = 100
"""The multiple of the first loss above which a run is considered diverged."""

_LATE_LOADER = 0.05
"""If waiting for a loader that works ahead takes more than this share of a step, the loader is its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary(TimeFigures):
    """The figures of a training run: nanoseconds per step, on the slowest rank; None if there are no steps.

    The mean, the percentiles and their intervals are those of the full steps.

    Attributes:
        steps: The number of measured steps.
        throughput_samples_per_s: All samples divided by the sum of the steps' times on the rank with the
            largest sum.
        throughput_interval: Its 95 % interval, whose relative width is that of the full steps' mean.
        wait_ns: The mean wait for data, on the rank that waits longest.
        copy_ns: The mean time to copy, on the rank where it is longest.
        compute_ns: The mean time of forward, backward, communication and update, likewise.
        forward_ns: The mean over the sampled steps, likewise; None if no step was sampled.
        backward_ns: The same for the backward pass.
        communicate_ns: The same for communication.
        update_ns: The same for the update.
        bound: The part that bounds a step.
        first_loss: The mean loss over the ranks in the first step, warm-up included.
        last_loss: The mean loss over the ranks in the last step.
        diverged: Whether the loss of any step is not finite, or more than a hundred times the first loss.
    """

    steps: int
    throughput_samples_per_s: float | None
    throughput_interval: Interval | None
    wait_ns: float | None
    copy_ns: float | None
    compute_ns: float | None
    forward_ns: float | None
    backward_ns: float | None
    communicate_ns: float | None
    update_ns: float | None
    bound: Bound | None
    first_loss: float | None
    last_loss: float | None
    diverged: bool = False

    @classmethod
    def of(cls, measurement: TrainingMeasurement) -> TrainingSummary:
        """Computes the figures from the raw times."""
        times, figures = measurement.times, figures_of(measurement.full_ns)
        total_ns, samples = int(times.whole_ns.sum(axis=1).max(initial=0)), int(times.samples.sum())
        throughput = samples * _NS_PER_S / total_ns if total_ns else None
        losses = measurement.losses.mean(axis=0)
        means_ns: dict[str, Any] = {name: _slowest_mean(getattr(times, name)) for name in _PARTS}
        return cls(
            steps=times.whole_ns.shape[1],
            **figures,
            throughput_samples_per_s=throughput,
            throughput_interval=rate_interval(throughput, figures["mean_ns"], figures["mean_interval_ns"]),
            **means_ns,
            bound=_bound(measurement.data, means_ns),
            first_loss=float(losses[0]) if len(losses) else None,
            last_loss=float(losses[-1]) if len(losses) else None,
            diverged=not bool((np.isfinite(losses) & (losses / _DIVERGED <= losses[:1])).all()),
        )


def _slowest_mean(times_ns: NDArray[np.int64]) -> float | None:
    """Returns the mean over the steps for the rank where it is highest; None if there are no steps."""
    return float(times_ns.mean(axis=1).max()) if times_ns.size else None


def _bound(data: DataOptions, means_ns: Mapping[str, float | None]) -> Bound | None:
    """Returns the part that bounds a step.

    A loader that works ahead of the steps bounds them as soon as they have to wait for it; if parts follow
    one another, the longest one does.
    """
    wait_ns, copy_ns, compute_ns = (means_ns[name] for name in ("wait_ns", "copy_ns", "compute_ns"))
    if wait_ns is None or copy_ns is None or compute_ns is None:
        return None
    whole_ns = wait_ns + copy_ns + compute_ns
    if data.prefetch and wait_ns > _LATE_LOADER * whole_ns:
        return Bound.LOADER
    communication = means_ns["communicate_ns"] or 0.0
    parts = {
        Bound.COMPUTE: compute_ns - communication,
        Bound.LOADER: wait_ns,
        Bound.COPY: copy_ns,
        Bound.COMMUNICATION: communication,
    }
    return max(parts, key=lambda part: parts[part])
