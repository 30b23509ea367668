"""The fraction of late queries against the rate, estimated without a model of the system.

Late queries are bursty, so their number varies by more than chance would make it. It is counted in
slices of time, longer than most bursts, and a logistic curve of the share against ln(rate) is fitted to the
counts (quasi-binomial regression by iteratively reweighted least squares, McCullagh and Nelder 1989). The
rate is where the curve crosses the allowed share; its error is that of the curve, brought to the rate by the
delta method: the larger of what the slices' overdispersion gives, one for all, and of the sandwich, which
lets slices at high rates vary more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.intervals import t_quantile_95
from inferometer.evaluators.max_qps.probe import Probe

_MOST_SLICES = 8
_SLICE_BOUNDS = 10
_LEAST_SLOPE = 1.0
# what is held of the slope where the probes hardly tell: queues that serve one by one have 5…20 at p99
_USUAL_SLOPE = 12.0
_USUAL_SLOPE_SD = 12.0
_ROUNDS = 60
_CLOSE = 1e-9
_FARTHEST_LOG = math.log(1.5)


@dataclass(frozen=True, slots=True)
class Counts:
    """Late queries in slices of time.

    Attributes:
        rate_qps: float64, one per slice; the requested rate.
        queries: float64; the queries due in it, above 0.
        late: float64; those later than the bound, or without a right answer.
    """

    rate_qps: NDArray[np.float64]
    queries: NDArray[np.float64]
    late: NDArray[np.float64]

    @classmethod
    def of(cls, probe: Probe, bound_ns: int) -> Counts:
        """Counts the judged queries of a probe in equal slices of ten bounds or more, at most eight."""
        judged = probe.judged(bound_ns)
        if not len(judged):
            return cls(np.empty(0), np.empty(0), np.empty(0))
        first, last = int(judged.scheduled_ns.min()), int(judged.scheduled_ns.max()) + 1
        slices = min(max((last - first) // (_SLICE_BOUNDS * bound_ns), 1), _MOST_SLICES)
        place = (judged.scheduled_ns - first) * slices // (last - first)
        queries = np.bincount(place, minlength=slices).astype(np.float64)
        late = np.bincount(place, judged.latency_ns > bound_ns, slices).astype(np.float64)
        some = queries > 0
        return cls(np.full(int(some.sum()), probe.rate_qps), queries[some], late[some])

    @classmethod
    def joined(cls, several: Sequence[Counts]) -> Counts:
        """Returns the slices of several as one; of none, no slice."""
        none = np.empty(0)
        return cls(*(np.concatenate([none, *(getattr(c, name) for c in several)]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class LateFractionRoot:
    """The rate at which the fraction of late queries is the allowed one, and the standard error of its log.

    ``slope`` is the growth of the log of the odds with the log of the rate. A 95 % interval reaches
    ``t_quantile`` standard errors to either side.
    """

    rate_qps: float
    log_error: float
    slope: float
    t_quantile: float

    @property
    def low_qps(self) -> float:
        """The lower end of the 95 % interval."""
        return self.rate_qps * math.exp(-self.t_quantile * self.log_error)

    @property
    def high_qps(self) -> float:
        """The upper end."""
        return self.rate_qps * math.exp(min(self.t_quantile * self.log_error, 50.0))


def late_fraction_root(counts: Counts, late_fraction: float) -> LateFractionRoot | None:
    """Fits the curve and returns the rate at which it crosses a share.

    Args:
        counts: Of probes near that rate.
        late_fraction: Above 0 and below 1.

    Returns:
        The root. None if the counts do not determine it: too few slices, none late or all, or a crossing far
            outside them.
    """
    slices = len(counts.queries)
    if slices < 3 or not 0 < counts.late.sum() < counts.queries.sum():
        return None
    centre = math.exp(float(np.average(np.log(counts.rate_qps), weights=counts.queries)))
    x = np.column_stack([np.ones(slices), np.log(counts.rate_qps / centre)])
    beta, curvature = _fitted(x, counts)
    share = _shares(x @ beta)
    scores = (counts.late - counts.queries * share)[:, None] * x
    inverse = np.linalg.inv(curvature)
    sandwich = inverse @ (scores.T @ scores) @ inverse * slices / (slices - 2)
    overdispersed = inverse * _spread(counts, share)
    intercept, slope = float(beta[0]), float(beta[1])
    wanted = math.log(late_fraction / (1 - late_fraction))
    at = (wanted - intercept) / slope
    if not abs(at) <= _FARTHEST_LOG + float(np.ptp(x[:, 1])) / 2:
        return None
    gradient = np.array([-1 / slope, -at / slope])
    variance = max(float(gradient @ covariance @ gradient) for covariance in (sandwich, overdispersed))
    return LateFractionRoot(
        rate_qps=centre * math.exp(at),
        log_error=math.sqrt(variance),
        slope=slope,
        t_quantile=t_quantile_95(slices - 2),
    )


def _fitted(x: NDArray[np.float64], counts: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the coefficients, the slope at least ``_LEAST_SLOPE``, and the curvature at them (2 × 2)."""
    overall = float(counts.late.sum() / counts.queries.sum())
    beta = np.array([math.log(overall / (1 - overall)), _USUAL_SLOPE])
    spread = _spread(counts, np.full(len(counts.late), overall))
    for _ in range(_ROUNDS):
        share = _shares(x @ beta)
        weight = counts.queries * share * (1 - share)
        spread = min(spread, _spread(counts, share))
        prior = np.array([0.0, spread / _USUAL_SLOPE_SD**2])
        curvature = x.T @ (weight[:, None] * x) + np.diag(prior)
        gradient = x.T @ (counts.late - counts.queries * share) - prior * (beta - [0.0, _USUAL_SLOPE])
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 2.0 / max(abs(step[0]), abs(step[1]) / 5, 1e-12))
        beta = beta + step
        beta[1] = max(beta[1], _LEAST_SLOPE)
        if np.abs(step).max() < _CLOSE:
            break
    return beta, curvature


def _shares(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
    return shares


def _spread(counts: Counts, share: NDArray[np.float64]) -> float:
    """Returns Pearson's overdispersion: the variance of the counts relative to that of single queries."""
    expected = counts.queries * share
    squares = (counts.late - expected) ** 2 / np.maximum(expected * (1 - share), 1e-9)
    return max(1.0, float(squares.sum()) / (len(squares) - 2))


def monotone_shares(queries: NDArray[np.float64], late: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns late fractions that do not fall from one rate to the next, by pooling those that do.

    This is isotonic regression by pooling adjacent violators (Ayer et al. 1955).

    Args:
        queries: float64, n, by ascending rate; above 0.
        late: float64, n.
    """
    pools: list[tuple[float, float, int]] = []
    for total, bad in zip(queries.tolist(), late.tolist(), strict=True):
        pool = (total, bad, 1)
        while pools and pools[-1][1] * pool[0] > pool[1] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(count, bad / total) for total, bad, count in pools])
