"""The names of figures, and the verdict on a ratio for a threshold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from inferometer.manifests.errors import ConfigurationError, suggestion

THROUGHPUT = "throughput"
MAX_QPS = "max_qps"
TOP1 = "top1"
FIGURES = ("p50", "p90", "p99", THROUGHPUT)
"""The default figures of times, in order."""


def percent_of(figure: str) -> float | None:
    """Returns the percentile of a figure such as ``p99.9``; None for another figure."""
    match = re.fullmatch(r"p(\d{1,2}(\.\d+)?)", figure)
    return float(match[1]) if match and float(match[1]) > 0 else None


def higher_is_better(figure: str) -> bool:
    """Returns whether a higher value of a figure is better."""
    return percent_of(figure) is None


def parse_figures(text: str) -> tuple[str, ...]:
    """Returns the distinct names in a comma-separated list of figures.

    Raises:
        ConfigurationError: The list is empty, or has an unknown figure.
    """
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigurationError("figures names none; give some of " + ", ".join((*FIGURES, MAX_QPS, TOP1)))
    for name in names:
        if percent_of(name) is None and name not in (THROUGHPUT, MAX_QPS, TOP1):
            known = suggestion(name, [*FIGURES, MAX_QPS, TOP1])
            raise ConfigurationError(f'unknown figure "{name}"; {known}')
    return names


def listed(figures: Sequence[str]) -> str:
    """Returns names as an enumeration in a sentence."""
    return ", ".join(figures[:-1]) + f" and {figures[-1]}" if len(figures) > 1 else "".join(figures)


class Verdict(str, Enum):
    """The verdict on B compared with A."""

    BETTER = "better"
    """The whole interval is on the good side of the threshold."""
    SAME = "same"
    """The whole interval is within the threshold."""
    WORSE = "worse"
    """The whole interval is on the bad side of the threshold."""
    UNDECIDED = "undecided"
    """The interval crosses the threshold, or there is none."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of B over that of A.

    Attributes:
        figure: The name of the figure.
        a: The figure of A: a latency in nanoseconds, inputs or queries per second, or a fraction.
        b: The figure of B.
        value: The ratio; infinite if only B's percentile falls on queries without a correct answer, and NaN
            if both do, nothing was answered, or it is unknown.
        low: The lower end of its 95 % interval; None if there are too few values for one.
        high: The upper end, likewise.
        threshold: The fraction by which the figure may differ.
        verdict: The verdict.
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
        """Returns a ratio with the verdict on its interval."""
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
