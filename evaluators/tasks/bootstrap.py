"""Intervals of scores by bootstrap over the samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.tasks.scores import Score, ScoreInterval

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
    drawn = bootstrap_intervals(lambda indices: (statistic(indices),), samples, 1, resamples)
    return drawn[0]


def bootstrap_intervals(
    statistics: Callable[[NDArray[np.int64]], Sequence[float]],
    samples: int,
    figures: int,
    resamples: int = RESAMPLES,
    around: Sequence[float] | None = None,
) -> list[ScoreInterval | None]:
    """Returns the intervals of several figures over the same draws; see ``bootstrap_interval``.

    Args:
        statistics: Returns the figures, in a fixed order.
        samples: The number of samples.
        figures: The number of figures.
        resamples: How often to draw.
        around: The figures over all samples, for figures that drawing with replacement biases: the ends are
            moved by the difference between them and the means of the draws.
    """
    if samples < _LEAST_SAMPLES or not resamples:
        return [None] * figures
    random = np.random.default_rng(_SEED)
    drawn = np.array([statistics(random.integers(0, samples, samples)) for _ in range(resamples)])
    if around is not None:
        for figure, value in enumerate(around):
            if (finite := drawn[np.isfinite(drawn[:, figure]), figure]).size:
                drawn[:, figure] += value - finite.mean()
    return [_interval(drawn[:, figure]) for figure in range(figures)]


def mean_score(name: str, values: NDArray[np.float64], unit: str = "") -> Score:
    """Returns the mean over samples with its interval; it is not defined without samples.

    Args:
        name: The name of the score.
        values: float64, samples.
        unit: The unit of the values.
    """
    if not len(values):
        return Score(name, None, None, unit)
    interval = bootstrap_interval(lambda drawn: float(values[drawn].mean()), len(values))
    return Score(name, float(values.mean()), interval, unit)


def _interval(drawn: NDArray[np.float64]) -> ScoreInterval | None:
    finite = drawn[np.isfinite(drawn)]
    if len(finite) < len(drawn) / 2:
        return None
    low, high = np.percentile(finite, _PERCENTILES)
    return ScoreInterval(float(low), float(high))
