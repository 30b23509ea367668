"""The verdict on times that tests make up: how often it is wrong on steady ones, and right on others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.evaluators.conditions.conditions import LEAST_BATCHES, instabilities

RUNS = 100
COUNTS = (LEAST_BATCHES, 200, 1000)
MEDIAN_NS = 10e6
Times = NDArray[np.float64]
Generator = np.random.Generator
Make = Callable[[Generator, int], Times]


def correlated(rng: Generator, count: int, correlation: float, spread: float) -> Times:
    """Normal times of which neighbours are correlated."""
    noise = rng.normal(size=count) * np.sqrt(1 - correlation**2)
    values = np.empty(count)
    values[0] = rng.normal()
    for place in range(1, count):
        values[place] = correlation * values[place - 1] + noise[place]
    return MEDIAN_NS * np.maximum(1 + spread * values, 0.01)


STEADY: dict[str, Make] = {
    "constant": lambda rng, n: MEDIAN_NS + 2000 * rng.normal(size=n),
    "constant_with_a_tail": lambda rng, n: MEDIAN_NS * (1 + 0.002 * rng.exponential(size=n)),
    "normal": lambda rng, n: correlated(rng, n, 0.0, 0.2),
    "exponential": lambda rng, n: rng.exponential(MEDIAN_NS, n),
    "lognormal": lambda rng, n: MEDIAN_NS * np.exp(0.5 * rng.normal(size=n)),
    "correlated_at_0.5": lambda rng, n: correlated(rng, n, 0.5, 0.1),
    "correlated_at_0.9": lambda rng, n: correlated(rng, n, 0.9, 0.1),
}
UNSTEADY: dict[str, tuple[str, Make]] = {
    "drift": ("drift", lambda rng, n: correlated(rng, n, 0.0, 0.01) * np.linspace(1, 1.1, n)),
    "falling": ("drift", lambda rng, n: correlated(rng, n, 0.0, 0.02) * np.linspace(1.3, 1, n)),
    "bimodal": ("two levels", lambda rng, n: MEDIAN_NS * np.where(rng.random(n) < 0.2, 1.5, 1.0)),
    "bimodal_with_noise": (
        "two levels",
        lambda rng, n: correlated(rng, n, 0.5, 0.02) * np.where(rng.random(n) < 0.5, 1.25, 1.0),
    ),
    "pauses_of_200_ms": (
        "pauses",
        lambda rng, n: correlated(rng, n, 0.0, 0.01) + 200e6 * (np.arange(n) % 50 == rng.integers(50)),
    ),
}


def verdicts(make: Make, count: int) -> list[tuple[str, ...]]:
    rng = np.random.default_rng(count)
    return [instabilities(make(rng, count).astype(np.int64)) for _ in range(RUNS)]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("count", COUNTS)
def test_steady_times_are_rarely_called_unsteady(name: str, count: int) -> None:
    wrong = [found for found in verdicts(STEADY[name], count) if found]

    assert len(wrong) <= 0.05 * RUNS, wrong


@pytest.mark.parametrize("name", UNSTEADY)
@pytest.mark.parametrize("count", COUNTS)
def test_unsteady_times_get_their_verdict(name: str, count: int) -> None:
    wanted, make = UNSTEADY[name]

    right = sum(any(each.startswith(wanted) for each in found) for found in verdicts(make, count))

    assert right >= 0.95 * RUNS


def test_the_figures_are_those_of_the_times() -> None:
    places = np.arange(100)
    levels = np.where(places % 3 == 0, 15_000_000, 10_000_000)
    drifting = 10_000_000 + places * 20_000
    paused = np.where(places % 50 == 7, 200_000_000, 10_000_000)

    assert instabilities(levels) == ("two levels: 10 ms, and 15 ms in 34 % of the batches",)
    assert instabilities(drifting) == ("drift: the times grew by 17 % over the run",)
    assert instabilities(paused) == ("pauses: 2 batches took at least 20 times the median, 28 % of the time",)


def test_a_level_of_the_first_batches_of_rounds_is_no_instability() -> None:
    places = np.arange(200)
    cold = np.where(places % 8 == 0, 13_000_000, 10_000_000)

    assert instabilities(cold, round_size=8) == ()
    assert instabilities(cold, round_size=4)
    assert instabilities(cold)


def test_equal_times_are_steady() -> None:
    assert instabilities(np.full(LEAST_BATCHES, 5, np.int64)) == ()
