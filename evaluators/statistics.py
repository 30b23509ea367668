"""Figures from raw times: trimmed mean, percentiles, throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluators.evaluation import Evaluation

Values: TypeAlias = Sequence[float] | NDArray[np.int64] | NDArray[np.float64]

_NS_PER_S = 1_000_000_000


def trimmed_mean(values: Values, share: float = 0.2) -> float:
    """Returns the mean without the lowest and the highest values, by MLModelScope's rule.

    Of n values, sorted and counted from 0, those from floor(share · n) up to but not including
    min(n - 1, n - floor(share · n)) are averaged: so where floor(share · n) is 0, the highest still goes.
    Fewer than three values give their mean, three their median. (``trimmedMean`` in ``num.go`` of
    rai-project/evaluation.)

    Args:
        values: At least one, in any order.
        share: What is dropped at each end, above 0 and below 0.5.

    Raises:
        ValueError: There are no values, or ``share`` is out of range.
    """
    if not 0 < share < 0.5:
        raise ValueError(f"share is {share}; allowed: above 0 and below 0.5")
    ordered = np.sort(_at_least_one(values))
    count = len(ordered)
    if count < 3:
        return float(ordered.mean())
    if count == 3:
        return float(ordered[1])
    dropped = math.floor(count * share)
    return float(ordered[dropped : min(count - 1, count - dropped)].mean())


def percentile(values: Values, percent: float) -> float:
    """Returns a percentile, interpolated linearly between the two nearest values.

    This is type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), the default of NumPy
    and R: 0 gives the lowest value, 100 the highest, 50 the median.

    Args:
        values: At least one, in any order.
        percent: 0…100.

    Raises:
        ValueError: There are no values, or ``percent`` is out of range.
    """
    return float(np.percentile(_at_least_one(values), percent, method="linear"))


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """How long one evaluation's batches took, in nanoseconds a batch, and its throughput.

    The latency of a batch is its predict time: from host memory to host memory, synchronised with the device,
    without reading, pre- and postprocessing. Only batches that held the full batch size count. All figures of
    latency are None where there was no full batch.

    Attributes:
        measured_batches: The full batches, over which latency and throughput are taken.
        mean_ns: The mean.
        trimmed_mean_ns: The mean without the lowest and the highest fifth; see ``trimmed_mean``.
        p50_ns: The median; see ``percentile``.
        p90_ns: The 90th percentile.
        p99_ns: The 99th percentile.
        throughput_inputs_per_s: The inputs of the full batches over the sum of their predict times; None
            without a full batch.
        end_to_end_inputs_per_s: All predicted inputs over the time that passed from the first batch's reading
            to the last one's postprocessing; None when no input was predicted.
    """

    measured_batches: int
    mean_ns: float | None
    trimmed_mean_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    throughput_inputs_per_s: float | None
    end_to_end_inputs_per_s: float | None

    @classmethod
    def of(cls, evaluation: Evaluation) -> LatencySummary:
        """Computes the figures from an evaluation's raw times."""
        batch_size = evaluation.options.batch_size
        full_ns = evaluation.batches.full(batch_size)
        end_to_end = _per_second(int(evaluation.batches.sizes.sum()), evaluation.elapsed_ns)
        if not len(full_ns):
            return cls(0, None, None, None, None, None, None, end_to_end)
        return cls(
            measured_batches=len(full_ns),
            mean_ns=float(full_ns.mean()),
            trimmed_mean_ns=trimmed_mean(full_ns),
            p50_ns=percentile(full_ns, 50),
            p90_ns=percentile(full_ns, 90),
            p99_ns=percentile(full_ns, 99),
            throughput_inputs_per_s=_per_second(batch_size * len(full_ns), int(full_ns.sum())),
            end_to_end_inputs_per_s=end_to_end,
        )


def _per_second(inputs: int, duration_ns: int) -> float | None:
    """Inputs per second; None where there were none, or no time passed that a clock could tell."""
    return inputs * _NS_PER_S / duration_ns if inputs and duration_ns > 0 else None


def _at_least_one(values: Values) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"expected at least one value in a row, found shape {list(array.shape)}")
    return array
