"""95 % intervals of the mean and of percentiles of times in a row, which may be correlated."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.intervals import percentile_interval, t_quantile_95

AUTOCORRELATION_TIMES = 50
"""The number of autocorrelation times that a run needs for an interval."""
_STRETCHES = 10
_WINDOW = 5
_NO_SKEWNESS = 1e-6
_MOST_SHORT = 0.2


class Interval(NamedTuple):
    """The ends of a 95 % interval, in the unit of its figure."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Returns whether a value is within it."""
        return self.low <= value <= self.high


def autocorrelation_time(times: NDArray[np.int64]) -> float:
    """Returns how many consecutive times carry the information of one independent time; at least 1.

    The integrated autocorrelation time, 1 plus twice the sum of the autocorrelations, up to the first window
    of 5 such times (Sokal, "Monte Carlo Methods in Statistical Mechanics", 1997, section 3). A straight line
    through the times is taken off first: drift would look like a correlation as long as the run.

    Args:
        times: int64, in the order in which they were taken.
    """
    count = len(times)
    values = times - times.mean() if count else times.astype(np.float64)
    places = np.arange(count) - (count - 1) / 2
    if count > 2:
        values = values - places * float(places @ values) / float(places @ places)
    # what the rounding to whole nanoseconds leaves of equal times, or of a line, is no correlation
    if float(np.abs(values).max(initial=0.0)) <= 1:
        return 1.0
    spectrum = np.fft.rfft(values, 2 * count)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[:count]
    sums = 2 * np.cumsum(correlation / correlation[0]) - 1
    wide = np.arange(count) >= _WINDOW * sums
    return max(1.0, float(sums[int(np.argmax(wide)) if wide.any() else -1]))


def batches_for_interval(full_ns: NDArray[np.int64]) -> int:
    """Returns how many full batches an interval needs, by the correlation of those that there are.

    With fewer than 50 autocorrelation times, the autocorrelation time itself is not known (Foreman-Mackey et
    al., "emcee: The MCMC Hammer", 2013, after Sokal), and an interval would be too narrow. With as many, each
    of the 10 stretches of batch means is 5 autocorrelation times long, so that their means are independent.
    """
    return math.ceil(AUTOCORRELATION_TIMES * autocorrelation_time(full_ns) - 1e-9)


def _widened(count: int, correlated_over: float) -> float:
    """Returns by how much an interval from stretches is too narrow, as neighbouring stretches are correlated.

    The variance of the stretches' means falls short of that of independent ones by the part
    (stretches + 1) / 2 × autocorrelation time / count, where the correlation falls off exponentially. It
    follows from the variance of a mean of correlated values (Priestley, "Spectral Analysis and Time Series",
    1981, section 5.3).
    """
    return 1 / math.sqrt(1 - min((_STRETCHES + 1) / 2 * correlated_over / count, _MOST_SHORT))


def mean_interval(full_ns: NDArray[np.int64]) -> Interval:
    """Returns the 95 % interval of the mean, by batch means, adjusted for skewed times.

    The means of 10 equal stretches vary as the error of the mean makes them; Student's t distribution has
    9 degrees of freedom (Schmeiser, "Batch size effects in the analysis of simulation output", Operations
    Research 30, 1982). Rare long times make the error itself skewed: the interval reaches further up, by
    Willink, "A Confidence Interval and Test for the Mean of an Asymmetric Distribution", Communications in
    Statistics 34, 2005. ``batches_for_interval`` says whether there are enough batches.
    """
    means = np.asarray([stretch.mean() for stretch in np.array_split(full_ns, _STRETCHES)])
    error = float(means.std(ddof=1)) / math.sqrt(_STRETCHES)
    error *= _widened(len(full_ns), autocorrelation_time(full_ns))
    mean, quantile = float(full_ns.mean()), t_quantile_95(_STRETCHES - 1)
    sixth = _skewness(full_ns) / math.sqrt(len(full_ns)) / 6
    low, high = (_less_skewed(end, sixth) for end in (quantile, -quantile))
    return Interval(max(mean - low * error, 0.0), mean - high * error)


def _less_skewed(quantile: float, sixth: float) -> float:
    """Returns the quantile of a skewed distribution; ``sixth`` is a sixth of the skewness of the mean."""
    if abs(sixth) < _NO_SKEWNESS:
        return quantile
    return (float(np.cbrt(1 + 6 * sixth * (quantile - sixth))) - 1) / (2 * sixth)


def _skewness(full_ns: NDArray[np.int64]) -> float:
    """Returns the third moment of the times over the 1.5th power of their second; 0 of equal times."""
    from_mean = full_ns - full_ns.mean()
    variance = float((from_mean**2).mean())
    return float((from_mean**3).mean()) / variance**1.5 if variance > 0 else 0.0


def serial_percentile_interval(full_ns: NDArray[np.int64], percent: float) -> Interval | None:
    """Returns the 95 % interval of a percentile over the same stretches; None if too few times are beyond it.

    See ``load.intervals.percentile_interval``, which has the source.
    """
    found = percentile_interval(full_ns, percent)
    if found.low_ns is None or found.high_ns is None:
        return None
    wider = _widened(len(full_ns), autocorrelation_time(full_ns))
    value_ns = found.value_ns
    return Interval(
        max(value_ns - wider * (value_ns - found.low_ns), 0.0),
        value_ns + wider * (found.high_ns - value_ns),
    )
