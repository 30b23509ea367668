"""What follows from a ratio, given by how much the figure may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from evaluators.comparing.figures import higher_is_better


class Verdict(str, Enum):
    """What a ratio says of B beside A, given by how much they may differ."""

    BETTER = "better"
    """The whole interval is on the good side of the threshold."""
    SAME = "same"
    """The whole interval is within the threshold."""
    WORSE = "worse"
    """The whole interval is on the bad side of the threshold."""
    UNDECIDED = "undecided"
    """The interval reaches over the threshold, or there is none."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of B over that of A.

    Attributes:
        figure: Its name; see ``figures``.
        a: The figure of A: a latency in nanoseconds, inputs or queries a second, or a share.
        b: That of B.
        value: The ratio; infinite where only B's percentile falls on queries without a right answer, and not
            a number where both do, nothing was answered, or it is not known.
        low: The lower end of its 95 % interval; None where there is too little for one.
        high: The upper end, likewise.
        threshold: The share by which the figure may differ.
        verdict: What follows.
    """

    figure: str
    a: float
    b: float
    value: float
    low: float | None
    high: float | None
    threshold: float
    verdict: Verdict

    @classmethod
    def judged(
        cls,
        figure: str,
        sides: tuple[float, float],
        value: float,
        interval: tuple[float | None, float | None],
        threshold: float,
    ) -> Ratio:
        """Makes a ratio with the verdict that follows from its interval."""
        low, high = interval
        return cls(figure, *sides, value, low, high, threshold, _verdict(figure, low, high, threshold))


def _verdict(figure: str, low: float | None, high: float | None, threshold: float) -> Verdict:
    if low is None or high is None or not math.isfinite(threshold):
        return Verdict.UNDECIDED
    above, below = Verdict.WORSE, Verdict.BETTER
    if higher_is_better(figure):
        above, below = below, above
    if low > 1 + threshold:
        return above
    if high < 1 / (1 + threshold):
        return below
    within = 1 / (1 + threshold) <= low and high <= 1 + threshold
    return Verdict.SAME if within else Verdict.UNDECIDED
