"""The ratio of the answers of searches for the highest rate that keeps a latency bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from inferometer.evaluators.comparing.verdict import MAX_QPS, Ratio
from inferometer.evaluators.kinds.rate_search.measurement import RateAnswer
from inferometer.evaluators.load.intervals import t_quantile_95
from inferometer.evaluators.max_qps.answer import Method


def compare_rates(a: Sequence[RateAnswer], b: Sequence[RateAnswer], *, threshold: float) -> Ratio:
    """Compares the answers of B's searches with those of A's, on a logarithmic scale.

    A side's rate is the geometric mean of its answers. The error of one answer is that of its own interval,
    whose two halves may differ; the halves of both sides add up as squares (Zou and Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27, 2008). Where a side has several
    answers, their spread gives a second interval, by Student's t distribution with the variance pooled over
    both sides, and the wider of the two counts: searches that agree by chance are not more exact than each
    of them, and on a machine whose speed changes they are less exact.

    The answer "none" is a rate of 0. The answer "at least" has no upper end, and an answer "below" has no
    lower end and no value; the ratio lacks the same ends.

    Args:
        a: At least one.
        b: At least one.
        threshold: The fraction by which the rate may differ; 0.05 is 5 %.

    Raises:
        ValueError: A side has no answer.
    """
    if not a or not b:
        raise ValueError("each side needs at least one answer")
    of_a, of_b = _Rates.of(a), _Rates.of(b)
    pair = math.exp(of_a.log), math.exp(of_b.log)
    return Ratio.judged(MAX_QPS, pair, _value(of_a, of_b), _interval(of_a, of_b), threshold)


def noise_of_rates(answers: Sequence[RateAnswer]) -> float:
    """Returns the largest relative difference between two answers of repeated searches.

    Returns:
        0.05 if the highest answer is 1.05 times the lowest; infinite if one has no rate.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(answers) < 2:
        raise ValueError(f"noise needs at least two answers, and has {len(answers)}")
    rates = [answer.rate_qps for answer in answers]
    if not all(rates):
        return math.inf
    return max(max(one, other) / min(one, other) for one, other in combinations(filter(None, rates), 2)) - 1


@dataclass(frozen=True, slots=True)
class _Rates:
    """The answers of a side, in logarithms of queries per second, with their mean ``log``.

    A value is minus infinity without a rate, and not a number where only a bound is known. The interval of
    the mean reaches from ``below`` to ``above``; ``low`` and ``high`` are the outermost ends of the answers.
    """

    logs: tuple[float, ...]
    log: float
    below: float
    above: float
    low: float
    high: float

    @classmethod
    def of(cls, answers: Sequence[RateAnswer]) -> _Rates:
        ends = np.asarray([_ends(answer) for answer in answers])
        lows, logs, highs = ends.T
        every = tuple(logs.tolist())
        if np.isneginf(logs).all():
            return cls(every, -math.inf, 0.0, 0.0, -math.inf, -math.inf)
        low, high = float(lows.min()), float(highs.max())
        if not np.isfinite(logs).all():
            return cls(every, math.nan, math.inf, math.inf, low, high)
        below, above = (math.sqrt(float((half**2).sum())) / len(logs) for half in (logs - lows, highs - logs))
        return cls(every, float(logs.mean()), below, above, low, high)

    @property
    def is_none(self) -> bool:
        """Whether no rate keeps the bound, in every answer."""
        return self.log == -math.inf


def _ends(answer: RateAnswer) -> tuple[float, float, float]:
    """Returns the lower end, the value and the upper end of an answer."""
    if answer.method == Method.NONE.value:
        return -math.inf, -math.inf, -math.inf
    value = math.nan if answer.rate_qps is None else _log(answer.rate_qps)
    low = -math.inf if answer.low_qps is None else _log(answer.low_qps)
    high = math.inf if answer.high_qps is None else _log(answer.high_qps)
    return low, value, high


def _log(rate_qps: float) -> float:
    return math.log(rate_qps) if rate_qps > 0 else -math.inf


def _value(a: _Rates, b: _Rates) -> float:
    if a.is_none:
        return math.nan if b.is_none or math.isnan(b.log) else math.inf
    return math.exp(b.log - a.log)


def _interval(a: _Rates, b: _Rates) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of the ratio; None if it is unknown."""
    if a.is_none:
        return (None, None) if b.is_none or math.isnan(b.log) else (math.inf, math.inf)
    if b.is_none:
        return (None, None) if math.isnan(a.log) else (0.0, 0.0)
    difference = b.log - a.log
    if math.isnan(difference):
        low, high = b.low - a.high, b.high - a.low
    else:
        between = _between(a.logs, b.logs)
        low = difference - max(math.hypot(b.below, a.above), between)
        high = difference + max(math.hypot(b.above, a.below), between)
    return math.exp(low), math.exp(high)


def _between(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns half of the interval by the spread of repeated answers; 0 without repetitions."""
    degrees = len(a) + len(b) - 2
    if not degrees:
        return 0.0
    squares = sum(float(np.square(np.asarray(logs) - np.mean(logs)).sum()) for logs in (a, b))
    return t_quantile_95(degrees) * math.sqrt(squares / degrees * (1 / len(a) + 1 / len(b)))
