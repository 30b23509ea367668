"""Whether numbers can be drawn from a distribution: their range, their mean and their variance.

The moments are those of Johnson, Kotz and Balakrishnan, "Continuous Univariate Distributions" (1994), and of
Johnson, Kemp and Kotz, "Univariate Discrete Distributions" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import Shape

_DEVIATIONS = 6.0
"""How many standard errors a moment may be away; chance exceeds them about twice in 10⁹ normal samples."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments and the range of a distribution.

    Attributes:
        mean: Its mean.
        variance: Its variance.
        kurtosis: Its fourth central moment over the square of the variance; 3 for a normal distribution.
        low: The lower bound of the values.
        high: The upper bound of the values.
        is_whole: Whether all values are integers.
    """

    mean: float
    variance: float
    kurtosis: float
    low: float = -inf
    high: float = inf
    is_whole: bool = False


def uniform(low: float, high: float) -> Moments:
    """Returns the moments of the uniform distribution over low…high."""
    return Moments((low + high) / 2, (high - low) ** 2 / 12, 1.8, low, high)


def normal(loc: float, scale: float) -> Moments:
    """Returns the moments of the normal distribution of mean ``loc`` and standard deviation ``scale``."""
    return Moments(loc, scale**2, 3.0)


def gamma(alpha: float, beta: float) -> Moments:
    """Returns the moments of the gamma distribution of shape ``alpha`` and scale ``beta``."""
    return Moments(alpha * beta, alpha * beta**2, 3 + 6 / alpha, low=0.0)


def exponential(lam: float) -> Moments:
    """Returns the moments of the exponential distribution of rate ``lam``."""
    return Moments(1 / lam, 1 / lam**2, 9.0, low=0.0)


def poisson(lam: float) -> Moments:
    """Returns the moments of the Poisson distribution of mean ``lam``."""
    return Moments(lam, lam, 3 + 1 / lam, low=0.0, is_whole=True)


def negative_binomial(k: float, p: float) -> Moments:
    """Returns the moments of the failures before the ``k``-th success of probability ``p``."""
    kurtosis = 3 + 6 / k + p**2 / (k * (1 - p))
    return Moments(k * (1 - p) / p, k * (1 - p) / p**2, kurtosis, low=0.0, is_whole=True)


def discrete_uniform(low: int, high: int) -> Moments:
    """Returns the moments of the integers of low…high-1, all with the same probability."""
    count = high - low
    kurtosis = 3 - 1.2 * (count**2 + 1) / (count**2 - 1) if count > 1 else 1.0
    return Moments((low + high - 1) / 2, (count**2 - 1) / 12, kurtosis, low, high - 1, is_whole=True)


def is_drawn_from(
    moments: Moments, arrays: Sequence[NDArray[Any]], shape: Shape, independent: int | None = None
) -> None:
    """Raises ValueError with the reason if the one array cannot be drawn from a distribution.

    Args:
        moments: The moments of the distribution.
        arrays: The output.
        shape: The expected shape of the output.
        independent: How many of the values are independent; None for all.
    """
    if len(arrays) != 1 or arrays[0].shape != shape:
        raise ValueError(f"the outputs have the shapes {[each.shape for each in arrays]}, and not {[shape]}")
    found = arrays[0].astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError("a value is not finite")
    if found.min() < moments.low or found.max() > moments.high:
        raise ValueError(
            f"the values are in {found.min():g}…{found.max():g}, and not in {moments.low:g}…{moments.high:g}"
        )
    if moments.is_whole and (found != np.rint(found)).any():
        raise ValueError("a value is not an integer")
    count = independent or found.size
    error = _DEVIATIONS * sqrt(moments.variance / count)
    if not abs(found.mean() - moments.mean) <= error:
        raise ValueError(f"the mean is {found.mean():g}, and not {moments.mean:g} ± {error:g}")
    spread = _DEVIATIONS * moments.variance * sqrt(max(moments.kurtosis - 1, 0.0) / count)
    spread += error**2  # the part of the mean's own error
    if not abs(found.var() - moments.variance) <= spread:
        raise ValueError(f"the variance is {found.var():g}, and not {moments.variance:g} ± {spread:g}")
