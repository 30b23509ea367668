"""Predict times whose truth is known: how a framework of tests spends its time, and what is right then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

BASE_MS = 10.0
SPREAD = 0.1
PROCESS_SPREAD = 0.01
_LOG_2 = math.log(2)


@dataclass(frozen=True)
class KnownTimes:
    """A kind of times: what draws them in ms, and the true mean and p50 over the first n of them."""

    draw: Callable[[np.random.RandomState, int], NDArray[np.float64]]
    mean_ms: Callable[[int], float] = lambda _: BASE_MS
    p50_ms: Callable[[int], float] = lambda _: BASE_MS


def correlated(random: np.random.RandomState, count: int, *, rho: float) -> NDArray[np.float64]:
    """An autoregressive process of first order, normal with a deviation of a tenth of its mean."""
    shocks = random.standard_normal(count) * math.sqrt(1 - rho * rho)
    shocks[0] = random.standard_normal()
    weights = rho ** np.arange(min(count, 400))  # those of older shocks are below 1e-18
    return BASE_MS * (1 + SPREAD * np.convolve(shocks, weights)[:count])


def exponential(random: np.random.RandomState, count: int) -> NDArray[np.float64]:
    return random.exponential(BASE_MS, count)


def bimodal(random: np.random.RandomState, count: int) -> NDArray[np.float64]:
    """About 10 ms, and three times as long in 30 % of the batches."""
    around = 1 + 0.02 * random.standard_normal(count)
    return BASE_MS * around * np.where(random.random_sample(count) < 0.3, 3.0, 1.0)


def drifting(random: np.random.RandomState, count: int) -> NDArray[np.float64]:
    """Slower by 20 % over a thousand batches, with noise of 2 %."""
    return BASE_MS * (1 + 0.2 * np.arange(count) / 1000 + 0.02 * random.standard_normal(count))


def _drifted_mean_ms(count: int) -> float:
    return BASE_MS * (1 + 0.2 * (count - 1) / 2000)


def paused(random: np.random.RandomState, count: int) -> NDArray[np.float64]:
    """10 ms, and 200 ms longer in one of 20 batches, as when memory is collected."""
    return BASE_MS * (1 + 0.01 * random.standard_normal(count)) + 200 * (random.random_sample(count) < 0.05)


def _normal_quantile(share: float) -> float:
    """By bisection of the distribution function."""
    low, high = -8.0, 8.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < share else (low, middle)
    return low


KNOWN = {
    "constant": KnownTimes(lambda _, count: np.full(count, BASE_MS)),
    "exponential": KnownTimes(exponential, p50_ms=lambda _: BASE_MS * _LOG_2),
    "correlated_0.5": KnownTimes(partial(correlated, rho=0.5)),
    "correlated_0.9": KnownTimes(partial(correlated, rho=0.9)),
    # 0.5 of all times are below the quantile 0.5 / 0.7 of the faster ones
    "bimodal": KnownTimes(
        bimodal, lambda _: BASE_MS * 1.6, lambda _: BASE_MS * (1 + 0.02 * _normal_quantile(0.5 / 0.7))
    ),
    "drift": KnownTimes(drifting, _drifted_mean_ms, _drifted_mean_ms),
    "pauses": KnownTimes(
        paused, lambda _: BASE_MS + 10, lambda _: BASE_MS * (1 + 0.01 * _normal_quantile(0.5 / 0.95))
    ),
}
"""The kinds by name."""
