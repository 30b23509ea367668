"""The number of batches to measure: the requested one, or enough for the target, fixed from a pilot."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.evaluators.precision.intervals import (
    AUTOCORRELATION_TIMES,
    batches_for_interval,
    serial_percentile_interval,
)
from inferometer.evaluators.statistics import percentile

TIME_BUDGET_S = 30.0
"""The default time budget of a target, in seconds."""
_PILOT_S = 1.0
_PILOT_MARGIN = 3
_LENGTH_MARGIN = 1.3


class LengthPlan:
    """The plan of how many more batches to measure, until the target or the minimum is reached.

    For a target, the length is fixed from a pilot (Stein, "A Two-Sample Test for a Linear Hypothesis Whose
    Power is Independent of the Variance", Annals of Mathematical Statistics 16, 1945): an interval that is
    checked repeatedly until it is narrow covers less than its nominal level. The pilot is the first second,
    and three times as many batches as an interval needs. Its interval of p50, which shrinks with the square
    root of the number of batches, gives the number. That number has a margin of 1.3² for the error of the
    pilot.

    Args:
        options: The requested minimums, target and time budget.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._planned: int | None = None
        self._until_s = math.inf

    def spent(self, elapsed_s: float) -> bool:
        """Returns whether the time budget of what is measured now is spent."""
        return elapsed_s >= self._until_s

    def more(self, full_ns: NDArray[np.int64], elapsed_s: float) -> int:
        """Returns how many more batches to measure now; 0 if it is enough, or the time budget is spent.

        Args:
            full_ns: The predict times of the full batches until now, in order.
            elapsed_s: The time since the first batch was read.
        """
        options, count = self._options, len(full_ns)
        if not count:
            return 0
        budget_s, per_s = options.time_budget_s, count / max(elapsed_s, 1e-9)
        least = options.min_batches
        if elapsed_s < options.min_duration_s:
            least = max(least, count + 1, math.ceil(options.min_duration_s * per_s))
        if count < least:  # which was asked for, however long it takes
            self._until_s = math.inf if budget_s is None else budget_s
            wanted = least
        else:
            self._until_s = TIME_BUDGET_S if budget_s is None else budget_s
            wanted = self._for_target(full_ns, elapsed_s, per_s)
        left = (self._until_s - elapsed_s) * per_s
        return max(0, wanted - count if left > wanted - count else math.ceil(left))

    def _for_target(self, full_ns: NDArray[np.int64], elapsed_s: float, per_s: float) -> int:
        """Returns the number of batches for the target, or for its pilot; 0 without a target."""
        target_percent, count = self._options.target_ci_percent, len(full_ns)
        if target_percent is None:
            return 0
        if self._planned is None:
            pilot = _PILOT_MARGIN * batches_for_interval(full_ns)
            if count < pilot:
                # few looks, as each may take a correlation for shorter than it is
                return max(pilot, 2 * count if count > AUTOCORRELATION_TIMES else 0)
            if elapsed_s < _PILOT_S:
                return max(count + 1, math.ceil(_PILOT_S * per_s))
            self._planned = _length(full_ns, target_percent / 100)
        return self._planned


def reached(full_ns: NDArray[np.int64], target_percent: float) -> bool:
    """Returns whether the interval of p50 is within a target, in percent of p50."""
    share = half_width(full_ns)
    return share is not None and 100 * share <= target_percent


def _length(full_ns: NDArray[np.int64], target: float) -> int:
    share = half_width(full_ns) or 0.0
    return max(len(full_ns), math.ceil(len(full_ns) * (_LENGTH_MARGIN * share / target) ** 2))


def half_width(full_ns: NDArray[np.int64]) -> float | None:
    """Returns the longer side of the interval of p50, as a share of p50; None if there is no interval."""
    if len(full_ns) < batches_for_interval(full_ns):
        return None
    found, p50_ns = serial_percentile_interval(full_ns, 50), percentile(full_ns, 50)
    if found is None:
        return None
    return max(found.high - p50_ns, p50_ns - found.low) / p50_ns if p50_ns else 0.0
