"""Statistics of times and shares: percentiles, trimmed means, and 95 % intervals.

The intervals for latencies of queries account for bursts of late queries. Successive times, such as those of
batches and steps, may be correlated. The tail probability of Student's t distribution is used for tests at
any level. This module also draws the random numbers for load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

NEVER_NS = np.iinfo(np.int64).max
"""The latency of a query without an answer: later than any bound."""

Values: TypeAlias = Sequence[float] | NDArray[np.int64] | NDArray[np.float64]


def trimmed_mean(values: Values, share: float = 0.2) -> float:
    """Returns the mean without the lowest and the highest values, according to MLModelScope's rule.

    Of n values, sorted and counted from 0, those from floor(share · n) up to but not including
    min(n - 1, n - floor(share · n)) are averaged; if floor(share · n) is 0, the highest is still dropped. For
    fewer than three values it is their mean, for three their median. (``trimmedMean`` in ``num.go`` of
    rai-project/evaluation.)

    Args:
        values: At least one, in any order.
        share: The share dropped at each end, above 0 and below 0.5.

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


_LEAST_BEYOND = 5


def values_for_percentile(percent: float) -> int:
    """Returns how many values a percentile needs: on average, 5 lie beyond it on the side with fewer.

    This is the classical condition for the normal approximation of a binomial count (Conover, "Practical
    Nonparametric Statistics", 3rd edition, 1999, section 3.2): 10 values for p50, 50 for p90, 500 for p99.

    Raises:
        ValueError: ``percent`` is not above 0 and below 100.
    """
    if not 0 < percent < 100:
        raise ValueError(f"percent is {percent}; allowed: above 0 and below 100")
    return math.ceil(round(100 * _LEAST_BEYOND / min(percent, 100 - percent), 6))


def carried_percentile(values: Values, percent: float) -> float | None:
    """Returns a percentile; None for fewer values than it needs (``values_for_percentile``)."""
    return percentile(values, percent) if len(values) >= values_for_percentile(percent) else None


def random_state(seed: int | Sequence[int]) -> np.random.RandomState:
    """Returns a generator whose stream NumPy has frozen, so that other versions draw the same numbers."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def _at_least_one(values: Values) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"expected at least one value in a row, found shape {list(array.shape)}")
    return array


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)  # type: ignore[no-untyped-call,unused-ignore]


def student_tail(t: float, degrees: float) -> float:
    """Returns the probability that Student's t exceeds a value.

    With t = √degrees · tan θ, the density is proportional to cos(θ)^(degrees - 1), which is integrated by
    Gauss-Legendre quadrature with 64 nodes.

    Args:
        t: The value.
        degrees: The degrees of freedom, at least 1; not necessarily a whole number.
    """
    theta = math.atan(t / math.sqrt(degrees))
    half = (math.pi / 2 - theta) / 2
    integral = half * float(_WEIGHTS @ np.cos(theta + half * (_NODES + 1)) ** (degrees - 1))
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    return min(1.0, integral * math.exp(scale))


PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
"""The percentiles that are reported."""
_BATCHES = 10
_LEAST_LATER = 10
_ROUNDING = 1e-9
# the two-sided 95 % quantiles of Student's t distribution, from one degree of freedom on
# (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2)
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_95 = 1.959964
"""The two-sided 95 % quantile of the normal distribution, rounded to six decimals."""


def t_quantile_95(degrees: int) -> float:
    """Returns half the width of a 95 % interval, in standard errors, from Student's t distribution.

    Args:
        degrees: The degrees of freedom, at least 1.

    Raises:
        ValueError: ``degrees`` is less than 1.
    """
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; it must be at least 1")
    if degrees <= len(_T_95):
        return _T_95[degrees - 1]
    # the first two terms of the expansion in 1 / degrees (Abramowitz and Stegun, 26.7.5)
    first = (Z_95**3 + Z_95) / 4
    second = (5 * Z_95**5 + 16 * Z_95**3 + 3 * Z_95) / 96
    return Z_95 + first / degrees + second / degrees**2


def mean_reach(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Returns half the width of the 95 % interval for the mean of independent values, from Student's t.

    Args:
        values: The values, at least two.
    """
    return t_quantile_95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class PercentileInterval:
    """A percentile of latencies, in nanoseconds, and its 95 % interval.

    Attributes:
        percent: 0…100.
        value_ns: The percentile; infinite if it falls on queries without a correct answer.
        low_ns: The lower end; None if there are too few queries for an interval.
        high_ns: The upper end; infinite if it falls on queries without a correct answer; None if no query was
            late enough to determine it, or there is no lower end.
    """

    percent: float
    value_ns: float
    low_ns: float | None
    high_ns: float | None


def percentile_interval(latency_ns: NDArray[np.int64], percent: float) -> PercentileInterval:
    """Returns a percentile with its 95 % interval.

    The percentile is type 7 of Hyndman and Fan (1996). The interval is Woodruff's ("Confidence intervals for
    medians and other position measures", JASA 47, 1952): the share of queries that are later than the
    percentile has an error, and the ends are the percentiles that lie above and below by this error. It is
    computed from batch means: the queries, in the order in which they were due, are divided into 10 equal
    batches, which are long compared to bursts of late queries, and the spread of the batches' shares gives
    the error, by Student's t distribution (for the number of batches, see Schmeiser, "Batch size effects in
    the analysis of simulation output", Operations Research 30, 1982).

    The percentiles of the batches themselves (sectioning) would be too similar, because a batch has few late
    queries: on simulated M/D/1 queues at 70 % load with 6,000 queries, such intervals for p99 contained the
    true value in 75 of 100 runs with 20 batches; the intervals returned here contain it in 93.

    Args:
        latency_ns: int64, at least one value, in the order in which the queries were due; ``NEVER_NS`` for a
            query without a correct answer.
        percent: Above 0 and below 100.

    Raises:
        ValueError: There is no latency, or ``percent`` is out of range.
    """
    if latency_ns.ndim != 1 or not len(latency_ns):
        raise ValueError(f"expected at least one latency in a row, found shape {list(latency_ns.shape)}")
    if not 0 < percent < 100:
        raise ValueError(f"percent is {percent}; allowed: above 0 and below 100")
    return percentile_intervals(latency_ns, (percent,))[0]


def percentile_intervals(
    latency_ns: NDArray[np.int64], percents: Sequence[float] = PERCENTS
) -> tuple[PercentileInterval, ...]:
    """Returns several percentiles with their intervals; empty if there are no latencies.

    Args:
        latency_ns: See ``percentile_interval``.
        percents: Above 0 and below 100.
    """
    values = np.where(latency_ns == NEVER_NS, np.inf, latency_ns.astype(np.float64))
    ordered = np.sort(values)
    return tuple(_interval(values, ordered, percent) for percent in percents) if len(values) else ()


def _interval(
    values: NDArray[np.float64], ordered: NDArray[np.float64], percent: float
) -> PercentileInterval:
    share = percent / 100
    value = _quantile(ordered, share)
    count = len(values)
    if min(percent, 100 - percent) * count < 100 * _LEAST_LATER * (1 - _ROUNDING):
        return PercentileInterval(percent, value, None, None)
    low = share - _error(values < value)
    high = share + _error(values > value)
    return PercentileInterval(
        percent,
        value,
        _quantile(ordered, max(low, 0.0)),
        _quantile(ordered, high) if high * count < count - 1 or np.isinf(ordered[-1]) else None,
    )


def _error(chosen: NDArray[np.bool_]) -> float:
    """Returns the half-width of the 95 % interval for the share of values that are chosen."""
    return mean_reach([float(batch.mean()) for batch in np.array_split(chosen, _BATCHES)])


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Returns the type 7 quantile of sorted values, which may include infinite ones."""
    place = min(share, 1.0) * (len(ordered) - 1)
    below = math.floor(place + 1e-9)
    above = min(below + 1, len(ordered) - 1)
    part = place - below
    if part <= 1e-9:
        return float(ordered[below])
    return float(
        ordered[below] + part * (ordered[above] - ordered[below]) if ordered[below] < math.inf else math.inf
    )


AUTOCORRELATION_TIMES = 50
"""The minimum length of a run, in autocorrelation times, for an interval."""
_STRETCHES = 10
_WINDOW = 5
_NO_SKEWNESS = 1e-6
_MOST_SHORT = 0.2


class Interval(NamedTuple):
    """The ends of a 95 % interval, in the unit of its figure."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Returns whether a value lies in the interval."""
        return self.low <= value <= self.high


def autocorrelation_time(times: NDArray[np.int64]) -> float:
    """Returns how many consecutive times carry the information of one independent time; at least 1.

    This is the integrated autocorrelation time: 1 plus twice the sum of the autocorrelations, up to the first
    window of 5 such times (Sokal, "Monte Carlo Methods in Statistical Mechanics", 1997, section 3). A
    straight line through the times is subtracted, as drift would look like a correlation as long as the run.

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
    """Returns how many full batches an interval needs, given the correlation of those measured.

    With fewer than 50 autocorrelation times, the autocorrelation time itself is not known (Foreman-Mackey et
    al., "emcee: The MCMC Hammer", 2013, after Sokal), and an interval would be too narrow. With 50, each of
    the 10 stretches that are averaged has 5 autocorrelation times, so their means are nearly independent.
    """
    return math.ceil(AUTOCORRELATION_TIMES * autocorrelation_time(full_ns) - 1e-9)


def _widened(count: int, correlated_over: float) -> float:
    """Returns the factor by which to widen an interval, because neighbouring stretches are correlated.

    The variance of the stretches' means falls short of that of independent means by the fraction
    (stretches + 1) / 2 × autocorrelation time / count, if the correlation decays exponentially. This
    follows from the variance of a mean of correlated values (Priestley, "Spectral Analysis and Time Series",
    1981, section 5.3).
    """
    return 1 / math.sqrt(1 - min((_STRETCHES + 1) / 2 * correlated_over / count, _MOST_SHORT))


def interval_over(values: Sequence[float]) -> Interval:
    """Returns the 95 % interval of the mean of independent values, by Student's t distribution.

    ("Student", "The Probable Error of a Mean", Biometrika 6, 1908.) The times within one process share what
    was determined when it began, such as its memory layout, so only the processes are independent (Kalibera
    and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).

    Args:
        values: One value for each process, at least two.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values; found {len(values)}")
    mean = float(np.mean(values))
    reach = mean_reach(values)
    return Interval(max(mean - reach, 0.0), mean + reach)


def mean_interval(full_ns: NDArray[np.int64]) -> Interval:
    """Returns the 95 % interval for the mean by the method of batch means, adjusted for skewed times.

    The spread of the means of 10 equal stretches gives the error of the mean; Student's t distribution has 9
    degrees of freedom (Schmeiser, "Batch size effects in the analysis of simulation output", Operations
    Research 30, 1982). Rare long times make the error itself skewed: the interval extends further up, as in
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
    """Returns the skewness: third central moment over the 1.5th power of the second; 0 for equal times."""
    from_mean = full_ns - full_ns.mean()
    variance = float((from_mean**2).mean())
    return float((from_mean**3).mean()) / variance**1.5 if variance > 0 else 0.0


def serial_percentile_interval(full_ns: NDArray[np.int64], percent: float) -> Interval | None:
    """Returns the 95 % interval for a percentile of successive times; None if too few times are beyond it.

    The method is that of ``percentile_interval``, widened for the correlation of stretches.
    """
    found = percentile_interval(full_ns, percent)
    if found.low_ns is None or found.high_ns is None:
        return None
    wider = _widened(len(full_ns), autocorrelation_time(full_ns))
    value_ns = found.value_ns
    return Interval(
        max(value_ns - wider * (value_ns - found.low_ns), 0.0), value_ns + wider * (found.high_ns - value_ns)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigures:
    """The figures of the times of full batches or steps, in nanoseconds; None if there are too few.

    Attributes:
        mean_ns: The mean; None if there is no full batch or step.
        p50_ns: The median; see ``carried_percentile``.
        p90_ns: The 90th percentile.
        p99_ns: The 99th percentile.
        mean_interval_ns: The 95 % interval of the mean; see ``batches_for_interval``.
        p50_interval_ns: The interval of the median.
    """

    mean_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    mean_interval_ns: Interval | None
    p50_interval_ns: Interval | None


def figures_of(full_ns: NDArray[np.int64], *, intervals: bool = True) -> dict[str, Any]:
    """Returns the ``TimeFigures`` of full batches by name; without ``intervals``, these are None."""
    enough = intervals and len(full_ns) >= (batches_for_interval(full_ns) if len(full_ns) else 1)
    return {
        "mean_ns": float(full_ns.mean()) if len(full_ns) else None,
        **{f"p{percent}_ns": carried_percentile(full_ns, percent) for percent in (50, 90, 99)},
        "mean_interval_ns": mean_interval(full_ns) if enough else None,
        "p50_interval_ns": serial_percentile_interval(full_ns, 50) if enough else None,
    }


def rate_interval(rate: float | None, mean_ns: float | None, interval_ns: Interval | None) -> Interval | None:
    """Returns the 95 % interval for a rate, derived from the interval for the mean time of a batch."""
    if rate is None or mean_ns is None or interval_ns is None or interval_ns.low <= 0:
        return None
    return Interval(rate * mean_ns / interval_ns.high, rate * mean_ns / interval_ns.low)


def half_width(full_ns: NDArray[np.int64]) -> float | None:
    """Returns the longer side of p50's interval, as a fraction of p50; None if there is no interval."""
    if len(full_ns) < batches_for_interval(full_ns):
        return None
    found, p50_ns = serial_percentile_interval(full_ns, 50), percentile(full_ns, 50)
    if found is None:
        return None
    return max(found.high - p50_ns, p50_ns - found.low) / p50_ns if p50_ns else 0.0
