"""Ratios of percentiles of latency and of throughput, from the raw times of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from evaluators.comparing.figures import FIGURES, percent_of
from evaluators.comparing.pooled_runs import BLOCKS, PooledRuns
from evaluators.comparing.run_times import RunTimes
from evaluators.comparing.verdict import Ratio
from evaluators.loadgen.intervals import t_quantile_95

_LEAST_VALUES = 10
_LEAST_LATER = 2
_LEAST_LATER_OF_ONE_RUN = 20


def compare(
    a: Sequence[RunTimes],
    b: Sequence[RunTimes],
    *,
    thresholds: Mapping[str, float],
    seed: int,
    figures: Sequence[str] = FIGURES,
) -> tuple[Ratio, ...]:
    """Compares runs of B with runs of A.

    Each side's figure is over all of its runs together. Its error is found by resampling, 1,000 times: first
    runs, with replacement, then blocks within each, where a block is a twentieth of a run, so that what is
    slow together stays together (Künsch, "The jackknife and the bootstrap for general stationary
    observations", Annals of Statistics 17, 1989; in two levels by Davison and Hinkley, "Bootstrap Methods and
    their Application", 1997, 3.8). The interval is that of Student's t distribution around the logarithm of
    the ratio, with the number of runs for its degrees of freedom, and the error of few runs made larger by
    √(runs / (runs - 1)) (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015): two or three
    runs resampled alone would vary too little, and every sixth comparison of like with like be a regression.

    One run a side tells nothing of how runs differ; its interval is that of the run. Give several, or a
    threshold from ``noise``.

    Args:
        a: At least one.
        b: At least one.
        thresholds: The share by which each figure may differ, by its name; 0.05 is 5 %.
        seed: Of the resampling.
        figures: Percentiles, and ``throughput``.

    Returns:
        One ratio a figure, in the order of ``figures``.

    Raises:
        ValueError: A side has no run, or a figure no threshold.
    """
    if not a or not b:
        raise ValueError("each side needs at least one run")
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    sides = [PooledRuns(runs, figures) for runs in (a, b)]
    of_a, of_b = (side.figures() for side in sides)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of_b / of_a
        resampled = sides[1].resampled(random) / sides[0].resampled(random)
    fewest = min(side.values for side in sides)
    spread = _t_factor([len(a), len(b)])
    found = []
    for place, name in enumerate(figures):
        if name not in thresholds:
            raise ValueError(f"no threshold for {name}")
        value = float(values[place])
        known = fewest >= least_values(name, min(side.runs for side in sides))
        interval = _interval(value, resampled[:, place], spread) if known else (None, None)
        pair = float(of_a[place]), float(of_b[place])
        found.append(Ratio.judged(name, pair, value, interval, thresholds[name]))
    return tuple(found)


def noise(runs: Sequence[RunTimes], figures: Sequence[str] = FIGURES) -> dict[str, float]:
    """Returns by how much the figures of like runs differ at the most, between any two of them.

    Args:
        runs: At least two, of the same system.
        figures: Percentiles, and ``throughput``.

    Returns:
        A threshold for each figure: 0.05 where one run had up to 1.05 times that of another. Infinite where
        a figure of a run is.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(runs) < 2:
        raise ValueError(f"noise needs at least two runs, and has {len(runs)}")
    rows = [PooledRuns([run], figures).figures() for run in runs]
    with np.errstate(divide="ignore", invalid="ignore"):
        spreads = [np.abs(np.log(one / other)) for one, other in combinations(rows, 2)]
    most = np.exp(np.max(spreads, axis=0)) - 1
    return dict(zip(figures, np.where(np.isnan(most), math.inf, most).tolist(), strict=True))


def least_values(figure: str, runs: int) -> int:
    """How many values a side needs for an interval: blocks of one run with few late queries are too alike.

    Args:
        figure: A percentile, or ``throughput``.
        runs: Of the side with fewer.
    """
    percent = percent_of(figure)
    if percent is None:
        return _LEAST_VALUES
    least_later = _LEAST_LATER if runs > 1 else _LEAST_LATER_OF_ONE_RUN
    return max(_LEAST_VALUES, round(least_later / (1 - percent / 100)))


def _t_factor(runs: Sequence[int]) -> float:
    """By how much an interval reaches to each side, in standard errors of the resampled."""
    several = [count for count in runs if count > 1]
    if not several:
        return t_quantile_95(BLOCKS - 1)
    fewest = min(several)
    return t_quantile_95(sum(count - 1 for count in several)) * math.sqrt(fewest / (fewest - 1))


def _interval(
    value: float, resampled: NDArray[np.float64], factor: float
) -> tuple[float | None, float | None]:
    """The 95 % interval of a ratio; the ends may be infinite, and are None where they cannot be told."""
    usable = np.isfinite(resampled) & (resampled > 0)
    if usable.all() and math.isfinite(value) and value > 0:
        reach = factor * float(np.log(resampled).std(ddof=1))
        return value * math.exp(-reach), value * math.exp(reach)
    if np.isnan(resampled).any() or math.isnan(value):
        return None, None
    # some resamples fall on queries without an answer: their own percentiles are all there is
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return float(low), float(high)
