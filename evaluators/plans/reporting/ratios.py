"""Ratios of figures, and whether figures can be told apart."""

from __future__ import annotations

import math

from inferometer.evaluators.plans.reporting.cases import Figure


def ratio(above: Figure, below: Figure) -> Figure | None:
    """Returns the ratio of two independent figures with its 95 % interval.

    The halves of both intervals, in logarithms, add up as squares (Zou and Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27, 2008).

    Returns:
        None where a value is not positive. The ends are None where one of the intervals is unknown, or
        reaches zero.
    """
    if above.value <= 0 or below.value <= 0:
        return None
    value, count = above.value / below.value, min(above.count, below.count)
    halves = _halves(above), _halves(below)
    if halves[0] is None or halves[1] is None:
        return Figure(value, count=count)
    (down, up), (down_below, up_below) = halves[0], halves[1]
    low, high = math.hypot(down, up_below), math.hypot(up, down_below)
    return Figure(value, value * math.exp(-low), value * math.exp(high), count)


def scaled(figure: Figure, factor: float) -> Figure:
    """Returns a figure times a positive number without error."""
    low, high = (None if end is None else end * factor for end in (figure.low, figure.high))
    return Figure(figure.value * factor, low, high, figure.count)


def inverse(figure: Figure) -> Figure | None:
    """Returns one over a figure; None where it is not positive."""
    return ratio(Figure(1.0, 1.0, 1.0, figure.count), figure)


def overlap(one: Figure, other: Figure) -> bool | None:
    """Whether the intervals of two figures have a value in common; None where one is unknown.

    Figures whose 95 % intervals do not overlap differ; those whose intervals do may still differ.
    """
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def _halves(figure: Figure) -> tuple[float, float] | None:
    """By how much the interval reaches below and above the value, in logarithms."""
    if figure.low is None or figure.high is None or figure.low <= 0:
        return None
    log = math.log(figure.value)
    return max(0.0, log - math.log(figure.low)), max(0.0, math.log(figure.high) - log)
