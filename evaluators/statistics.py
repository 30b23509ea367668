"""Statistics of raw times, such as the trimmed mean and percentiles, and random numbers for load.

The tail probability of Student's t distribution is used for tests at any level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

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
