"""95 % intervals of scores over the samples of a dataset, which are independent, and are resampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ScoreInterval(NamedTuple):
    """The ends of a 95 % interval of a score."""

    low: float
    high: float


def wilson_interval(hits: int, count: int) -> ScoreInterval | None:
    """Returns the 95 % interval for a share of ``count`` independent samples; None if there are no samples.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.
    """
    if not count:
        return None
    share, spread = hits / count, _EXACT_Z_95**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _EXACT_Z_95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return ScoreInterval(min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


RESAMPLES = 1000
LEAST_SAMPLES = 200
"""With fewer samples, 95 % intervals cover less than 92 % in simulations of long-tailed errors."""
_SEED = 0
_PERCENTILES = (2.5, 97.5)
_PERCENTILES_OF_BIASED = (1.5, 98.5)
_LEAST_SHARE = 0.99
"""The minimum share of the draws in which the figure must vary."""
_BLOCK_ELEMENTS = 2**15
"""The maximum number of values in memory at once: 256 KiB of float64, which stay in the cache."""
_EXACT_Z_95 = 1.959963984540054  # stored scores were computed with more digits than ``Z_95``
_Numbers = NDArray[np.float64]


def bootstrap_interval(
    statistic: Callable[[NDArray[np.int64]], float], samples: int, resamples: int = RESAMPLES
) -> ScoreInterval | None:
    """Returns the 95 % percentile interval of a statistic over samples drawn with replacement.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. The seed is fixed, so
    the same predictions always have the same interval. It accepts any statistic; for means and their ratios,
    ``ratio_interval`` has better coverage.

    Args:
        statistic: Returns the figure for the samples with the given indices, int64, some of which occur
            several times; draws whose figure is not finite are left out.
        samples: The number of samples.
        resamples: The number of draws.

    Returns:
        The interval; None for fewer than ``LEAST_SAMPLES``, if the statistic is rarely defined, or if it is
        the same in all draws.
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
    """Returns the intervals for several figures from the same draws; see ``bootstrap_interval``.

    Args:
        statistics: Returns the figures, in a fixed order.
        samples: The number of samples.
        figures: The number of figures.
        resamples: The number of draws.
        around: The figures over all samples, for figures that are biased if samples are few: the means of
            the draws have twice that bias, and the ends are moved back by it. They then enclose 97 % of the
            draws, which in simulations covers 92 to 97 % of average precisions.
    """
    if samples < LEAST_SAMPLES or not resamples:
        return [None] * figures
    random = np.random.default_rng(_SEED)
    drawn = np.array([statistics(random.integers(0, samples, samples)) for _ in range(resamples)])
    if around is not None:
        for figure, value in enumerate(around):
            if (finite := drawn[np.isfinite(drawn[:, figure]), figure]).size:
                drawn[:, figure] += 2 * (value - finite.mean())
    percentiles = _PERCENTILES if around is None else _PERCENTILES_OF_BIASED
    return [_percentiles(drawn[:, figure], percentiles) for figure in range(figures)]


def _percentiles(drawn: _Numbers, percentiles: tuple[float, float]) -> ScoreInterval | None:
    finite = drawn[np.isfinite(drawn)]
    if len(finite) < len(drawn) / 2:
        return None
    low, high = np.percentile(finite, percentiles)
    return ScoreInterval(float(low), float(high)) if high > low else None


@np.errstate(over="ignore", invalid="ignore")
def ratio_interval(
    parts: _Numbers, wholes: _Numbers, power: float = 1.0, counts: NDArray[np.int64] | None = None
) -> ScoreInterval | None:
    """Returns the 95 % interval of the mean over columns of ``(Σ parts / Σ wholes) ** power``.

    Σ is over samples. It is the studentised bootstrap: it resamples the distance from the figure in units of
    its standard error, which follows from each sample's influence. Source: Efron and Tibshirani, 1993,
    chapter 12.5; Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 2.4.

    Args:
        parts: float64, samples × columns.
        wholes: float64, of the same shape; a column whose sum is 0 is left out of the mean.
        power: The exponent; 0.5 for roots of mean squares.
        counts: The number of equal samples that each row represents; None means one.

    Returns:
        The interval; None for fewer than ``LEAST_SAMPLES``, or if too many draws have no spread.
    """
    rows = len(parts)
    samples = rows if counts is None else int(counts.sum())
    defined = wholes.sum(axis=0) > 0
    if samples < LEAST_SAMPLES or not defined.any():
        return None
    parts, wholes = parts[:, defined], wholes[:, defined]
    given = np.ones(rows) if counts is None else counts.astype(np.float64)
    [value], [error] = _studied(given[np.newaxis], parts, wholes, power)
    rounding = abs(value) * np.finfo(np.float64).eps * samples
    if not error > rounding:
        return None
    random, distances = np.random.default_rng(_SEED), np.empty(0)
    block = max(1, _BLOCK_ELEMENTS // max(rows, parts.shape[1]))
    for start in range(0, RESAMPLES, block):
        draws = min(block, RESAMPLES - start)
        if counts is not None:
            weights = random.multinomial(samples, given / samples, draws)
        else:
            places = random.integers(0, rows, (draws, rows)) + rows * np.arange(draws)[:, np.newaxis]
            weights = np.bincount(places.ravel(), minlength=draws * rows).reshape(draws, rows)
        values, errors = _studied(weights.astype(np.float64), parts, wholes, power)
        varied = errors > rounding
        distances = np.append(distances, (values[varied] - value) / errors[varied])
    distances = distances[np.isfinite(distances)]
    if len(distances) < _LEAST_SHARE * RESAMPLES:
        return None
    low, high = np.percentile(distances, _PERCENTILES)
    return ScoreInterval(float(value - high * error), float(value - low * error))


def _studied(weights: _Numbers, parts: _Numbers, wholes: _Numbers, power: float) -> tuple[_Numbers, _Numbers]:
    """Returns the figure and the standard error for each draw; ``weights`` has the shape draws × samples."""
    part, whole = weights @ parts, weights @ wholes  # draws × columns
    there = whole > 0
    ratios = np.divide(part, whole, out=np.zeros_like(part), where=there)
    columns = np.maximum(there.sum(axis=1, keepdims=True), 1)
    # d(ratio ** power) = power · ratio ** (power - 1) · (d(part) - ratio · d(whole)) / whole
    steep = there & ((ratios > 0) if power < 1 else True)
    slopes = np.power(ratios, power - 1, out=np.zeros_like(part), where=steep) * power
    by_part = np.divide(slopes, whole * columns, out=np.zeros_like(part), where=steep)
    influences = parts @ by_part.T - wholes @ (by_part * ratios).T  # samples × draws
    errors = np.sqrt((weights.T * influences**2).sum(axis=0))
    values: _Numbers = (ratios**power).sum(axis=1) / columns[:, 0]
    return values, errors
