"""The rules to stop measuring an operator: a narrow interval, noise that stays, or a number of runs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.operators.measurement import OperatorOptions, Stop
from inferometer.evaluators.precision.intervals import AUTOCORRELATION_TIMES, batches_for_interval
from inferometer.evaluators.precision.length import half_width

MOST_TIMES = 100_000
"""The maximum number of times that a row keeps."""
_PILOT_MARGIN = 3
_LENGTH_MARGIN = 1.3
_PILOT_SHARE, _MOST_PILOT_S = 0.2, 1.0
_NOISE_SHARE, _MOST_NOISE_S = 0.3, 2.0
_NOISE_LOOK = 4
_NARROWER = 0.8


class StopRules:
    """The rules that decide when to check the times next, or why to stop.

    For a target, the length is fixed from a pilot as ``precision.length.LengthPlan`` fixes it, by looks at
    few and growing lengths: an interval that is checked after every run covers less than its nominal level.
    The pilot has three times as many times as an interval needs, and ends with 20 % of the budget, or a
    second.

    Whether the interval gets narrower is checked whenever there are four times as many times, which halve the
    interval of times that are independent: if a fifth is not gained, what remains is noise that no further
    run removes (nvbench's second criterion, which keeps it from measuring for hours). So is a correlation
    that is as long as the run, and still is with twice as many times. Neither counts before 30 % of the
    budget, or two seconds: what disturbs the first milliseconds passes.

    Args:
        options: The requested target, time budget or number of runs.
        block: The runs in a time.
    """

    def __init__(self, options: OperatorOptions, block: int) -> None:
        self._target = options.target_percent
        self._wanted = None if options.runs is None else max(1, math.ceil(options.runs / block))
        self._planned: int | None = None
        self._seen: tuple[int, float] | None = None
        self._without = False
        self._pilot_s = min(_PILOT_SHARE * options.budget_s, _MOST_PILOT_S)
        self._noise_s = min(_NOISE_SHARE * options.budget_s, _MOST_NOISE_S)

    @property
    def first_look(self) -> int:
        """How many times to measure before the first look."""
        if self._wanted is not None:
            return self._wanted
        return MOST_TIMES if self._target is None else _PILOT_MARGIN * AUTOCORRELATION_TIMES

    def look(self, times_ns: NDArray[np.int64], elapsed_s: float) -> Stop | int:
        """Returns why to stop, or how many times to measure before the next look.

        Args:
            times_ns: All until now, in order.
            elapsed_s: The time since the warm-up began.
        """
        count = len(times_ns)
        if self._wanted is not None or self._target is None or count >= MOST_TIMES:
            return Stop.COUNT
        found = self._for_target(times_ns, elapsed_s, self._target / 100)
        return found if isinstance(found, Stop) else min(found, MOST_TIMES)

    def _for_target(self, times_ns: NDArray[np.int64], elapsed_s: float, target: float) -> Stop | int:
        count = len(times_ns)
        share = half_width(times_ns)
        if self._planned is None:
            pilot = _PILOT_MARGIN * batches_for_interval(times_ns)
            if count < pilot and elapsed_s < self._pilot_s:
                return 2 * count
            if share is None:
                if self._without and elapsed_s >= self._noise_s:
                    return Stop.NOISE
                self._without = True
                return 2 * count
            self._planned = self._length(count, share, target)
            if self._planned <= count:
                return Stop.TARGET
            self._seen = count, share
        elif share is not None and self._seen is not None:
            if count >= self._planned:
                if share <= target:
                    return Stop.TARGET
                self._planned = max(2 * count, self._length(count, share, target))
            if count >= _NOISE_LOOK * self._seen[0]:
                if share > _NARROWER * self._seen[1] and elapsed_s >= self._noise_s:
                    return Stop.NOISE
                self._seen = count, share
        return self._next(count)

    def _next(self, count: int) -> int:
        looks = [] if self._planned is None else [self._planned]
        if self._seen is not None:
            looks.append(_NOISE_LOOK * self._seen[0])
        return min((look for look in looks if look > count), default=2 * count)

    @staticmethod
    def _length(count: int, share: float, target: float) -> int:
        return max(count, math.ceil(count * (_LENGTH_MARGIN * share / target) ** 2))
