"""The stability of the times of a run: pauses, drift and several levels, each by a published test."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LEAST_BATCHES = 60
"""The minimum number of times to judge: 20 sections of fewer times would hold less than 3 each."""
PAUSE_SPREADS = 8.0
"""The excess of a pause over the median, in distances from the median to the 90th percentile.

Of exponential times one in 800,000 does, of normal ones none.
"""
PAUSE_FACTOR = 2.0
"""The minimum length of a pause in medians, even if the other times hardly vary."""
PAUSES_SHARE = 0.01
"""Pauses count where they make the run longer by this share; below, they hardly move the mean."""
SECTIONS = 20
DRIFT_SHARE = 0.05
"""Drift counts where the trend changes the times by this share of their median over the run."""
DRIFT_Z = 3.29
"""The trend's distance from none in standard deviations: two-sided 0.1 %."""
MINOR_SHARE = 0.05
"""Each of two levels has at least this share of the times; fewer are outliers."""
LEVELS_APART = 0.10
"""The minimum relative difference of two levels."""
ASHMANS_D = 4.5
"""The distance of two levels in their standard deviations.

Two is enough where the two parts are known (Ashman, Bird and Zepf, 1994). A split of one level in two already
gives a normal distribution 2.7 and a uniform one 3.5. Of samples of 60, 4 % of uniform ones and 2 % of those
that are correlated at 0.9 exceed 4.5; longer ones do not.
"""

_OF_ROUNDS = 0.9


def instabilities(times_ns: NDArray[np.int64], round_size: int = 1) -> tuple[str, ...]:
    """Returns why the times of equal batches, in the order of the run, are unstable; empty if stable.

    Pauses are found first, and left out of the two other tests.

    Args:
        times_ns: int64, at least ``LEAST_BATCHES``.
        round_size: The batches of a round, whose inputs are prepared together. The first batch of a round
            finds cold caches, so a level of first batches alone is an artefact of measuring.
    """
    times = times_ns.astype(np.float64)
    paused = _paused(times)
    steady = times[~paused]
    return tuple(filter(None, (_pauses(times, paused), _drift(steady), _levels(steady, round_size))))


def _paused(times: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns which times are pauses."""
    median, high = np.percentile(times, (50, 90))
    longest = max(PAUSE_FACTOR * median, median + PAUSE_SPREADS * (high - median))
    paused: NDArray[np.bool_] = times > longest
    return paused


def _pauses(times: NDArray[np.float64], paused: NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(paused))
    if not count:
        return ""
    median = float(np.median(times))
    share = float((times[paused] - median).sum() / times.sum())
    if share < PAUSES_SHARE:
        return ""
    batches = "1 batch" if count == 1 else f"{count} batches"
    least = float(times[paused].min()) / median
    return f"pauses: {batches} took at least {least:.3g} times the median, {100 * share:.2g} % of the time"


def _drift(times: NDArray[np.float64]) -> str:
    """Returns a trend of the medians of sections, by the test of Mann (1945) and Kendall.

    The variance is that of Yue and Wang (2004) for correlated values: the correlation of neighbours, which
    the trend of Theil (1950) and Sen (1968) would raise, is that of the medians without it, and is corrected
    for its bias in short series (Kendall, 1954).
    """
    medians = np.array([np.median(section) for section in np.array_split(times, SECTIONS)])
    place = np.arange(SECTIONS)
    low, high = np.triu_indices(SECTIONS, 1)
    differences = medians[high] - medians[low]
    slope = float(np.median(differences / (high - low)))
    median = float(np.median(medians))
    change = slope * (SECTIONS - 1) / median
    if abs(change) < DRIFT_SHARE:
        return ""
    score = float(np.sign(differences).sum())
    variance = SECTIONS * (SECTIONS - 1) * (2 * SECTIONS + 5) / 18 * _inflation(medians - slope * place)
    if abs(score) - 1 < DRIFT_Z * math.sqrt(variance):
        return ""
    return f"drift: the times {'grew' if change > 0 else 'fell'} by {100 * abs(change):.2g} % over the run"


def _inflation(values: NDArray[np.float64]) -> float:
    """Returns the factor by which the correlation of neighbours raises the variance of a sum."""
    centred = values - values.mean()
    spread = float(centred @ centred)
    if not spread:
        return 1.0
    count = len(values)
    found = float(centred[1:] @ centred[:-1]) / spread
    correlation = min(max((count * found + 1) / (count - 4), 0.0), 0.95)
    lags = np.arange(1, count)
    return 1 + 2 * float(((1 - lags / count) * correlation**lags).sum())


def _levels(times: NDArray[np.float64], round_size: int) -> str:
    """Returns why times have two levels, by Otsu (1979) of logarithms and Ashman et al. (1994)."""
    logs = np.sort(np.log(np.maximum(times, 1)))
    count = len(logs)
    sizes = np.arange(1, count)
    sums = np.cumsum(logs)
    below, above = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (count - sizes)
    split = int(np.argmax(sizes * (count - sizes) * (above - below) ** 2))
    low, high = logs[: split + 1], logs[split + 1 :]
    minor = min(len(low), len(high)) / count
    apart = math.exp(float(np.median(high) - np.median(low))) - 1
    spread = math.sqrt((float(low.var()) + float(high.var())) / 2)
    if minor < MINOR_SHARE or apart < LEVELS_APART or high.mean() - low.mean() < ASHMANS_D * spread:
        return ""
    if _of_rounds(times > math.exp((low[-1] + high[0]) / 2), round_size):
        return ""
    first, second = (math.exp(float(np.median(part))) / 1e6 for part in (low, high))
    percent = 100 * len(high) / count
    return f"two levels: {first:.3g} ms, and {second:.3g} ms in {percent:.2g} % of the batches"


def _of_rounds(high: NDArray[np.bool_], round_size: int) -> bool:
    """Returns whether nearly all times of the high level are one round apart."""
    distances = np.diff(np.flatnonzero(high))
    return round_size > 1 and float(np.mean(distances == round_size)) >= _OF_ROUNDS
