"""Intervals of scores by bootstrap over the samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.tasks.scores import ScoreInterval

RESAMPLES = 1000
_SEED = 0
_PERCENTILES = (2.5, 97.5)
_LEAST_SAMPLES = 2


def bootstrap_interval(
    statistic: Callable[[NDArray[np.int64]], float], samples: int, resamples: int = RESAMPLES
) -> ScoreInterval | None:
    """Returns the 95 % percentile interval of a statistic over samples drawn with replacement.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. The seed is fixed, so
    that the same predictions have the same interval.

    Args:
        statistic: Returns the figure over the samples with these indices, int64, of which some occur several
            times; a figure that is not finite is left out.
        samples: The number of samples.
        resamples: How often to draw.

    Returns:
        The interval; None for fewer than two samples, or where the statistic is rarely defined.
    """
    if samples < _LEAST_SAMPLES:
        return None
    random = np.random.default_rng(_SEED)
    drawn = [statistic(random.integers(0, samples, samples)) for _ in range(resamples)]
    finite = np.asarray(drawn)[np.isfinite(drawn)]
    if len(finite) < resamples / 2:
        return None
    low, high = np.percentile(finite, _PERCENTILES)
    return ScoreInterval(float(low), float(high))
