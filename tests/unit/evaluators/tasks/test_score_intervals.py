"""Intervals of scores: how often they cover what is true, and that a score is within its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.evaluators import score_intervals
from inferometer.evaluators.score_intervals import (
    LEAST_SAMPLES,
    bootstrap_interval,
    bootstrap_intervals,
    ratio_interval,
    wilson_interval,
)
from inferometer.evaluators.tasks.metric import ScoreInterval, mean_score, score_within, share_score
from inferometer.evaluators.tasks.vectors import _intervals

WANTED = 0.92
RUNS = 100
Drawn = Callable[[np.random.Generator, int], NDArray[np.float64]]
RESIDUALS: dict[str, tuple[Drawn, float]] = {
    "normal": (lambda random, n: random.standard_normal(n), np.sqrt(2 / np.pi)),
    "t5": (lambda random, n: random.standard_t(5, n) / np.sqrt(5 / 3), 0.9490 / np.sqrt(5 / 3)),
    "exponential": (lambda random, n: random.exponential(1, n) - 1, 2 / np.e),
}
"""Errors of variance 1, with the mean of their absolute values."""


def test_intervals_of_regression_cover_what_is_true() -> None:
    """Errors are normal, have heavy tails, or are skewed; R² over all samples is 0.5 or 0.9."""
    random, covered = np.random.default_rng(28), dict.fromkeys(("MAE", "RMSE", "R2", "R2 of 0.9"), 0)
    for draw, absolute in RESIDUALS.values():
        true = {"MAE": absolute, "RMSE": 1.0, "R2": 0.5, "R2 of 0.9": 0.9}
        for _ in range(RUNS):
            predicted = random.standard_normal((LEAST_SAMPLES, 1))
            errors = draw(random, LEAST_SAMPLES)[:, np.newaxis]
            found = _intervals(predicted, predicted + errors)
            targets = 3 * predicted + errors
            missed = ratio_interval(np.square(errors), np.square(targets - targets.mean()))
            assert missed is not None
            found["R2 of 0.9"] = ScoreInterval(1 - missed.high, 1 - missed.low)
            for name, interval in found.items():
                assert interval is not None
                covered[name] += interval.low <= true[name] <= interval.high
    shares = {name: count / RUNS / len(RESIDUALS) for name, count in covered.items()}
    assert min(shares.values()) >= WANTED, shares


@pytest.mark.parametrize("samples", [1, 20, 60, LEAST_SAMPLES - 1])
def test_where_intervals_cover_less_there_is_none(samples: int) -> None:
    values = np.random.default_rng(1).exponential(1, (samples, 1))
    assert ratio_interval(values, np.ones_like(values)) is None
    assert bootstrap_interval(lambda drawn: float(values[drawn].mean()), samples) is None


def test_few_samples_are_what_the_least_number_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_intervals, "LEAST_SAMPLES", 20)
    random, covered = np.random.default_rng(3), dict.fromkeys(("normal", "exponential"), 0)
    for kind in covered:
        for _ in range(200):
            squares = np.square(RESIDUALS[kind][0](random, 20))[:, np.newaxis]
            interval = ratio_interval(squares, np.ones_like(squares), power=0.5)
            assert interval is not None
            covered[kind] += interval.low <= 1 <= interval.high
    assert covered["normal"] / 200 >= WANTED  # the percentiles of the draws cover 0.89
    assert covered["exponential"] / 200 < WANTED


def test_ratios_of_sums_are_covered() -> None:
    """Four classes of which some images have few or no pixels, as in an intersection over union."""
    random, covered = np.random.default_rng(5), 0
    for _ in range(RUNS):
        there = random.random((LEAST_SAMPLES, 4)) < (1, 0.8, 0.5, 0.2)
        wholes = there * random.lognormal(0, 1, there.shape)
        parts = wholes * random.beta(4, 2, there.shape)
        interval = ratio_interval(parts, wholes)
        assert interval is not None
        covered += interval.low <= 2 / 3 <= interval.high
    assert covered / RUNS >= WANTED


def test_any_statistic_has_an_interval_by_its_draws() -> None:
    values = np.random.default_rng(6).exponential(1, LEAST_SAMPLES)
    interval = bootstrap_interval(lambda drawn: float(np.median(values[drawn])), len(values))
    assert interval is not None
    assert interval.low < np.median(values) < interval.high
    assert interval == bootstrap_interval(lambda drawn: float(np.median(values[drawn])), len(values))


def test_the_ends_for_a_biased_figure_are_moved_back_by_its_bias_and_apart() -> None:
    def different(drawn: NDArray[np.int64]) -> tuple[float]:
        return (len(np.unique(drawn)) / 1000,)

    [plain], [moved] = (bootstrap_intervals(different, 1000, 1, around=each) for each in (None, (1.0,)))
    assert plain is not None
    assert moved is not None
    assert sum(plain) / 2 == pytest.approx(1 - 1 / np.e, abs=2e-3)
    assert sum(moved) / 2 == pytest.approx(1 + 1 / np.e, abs=2e-3)
    assert moved.high - moved.low == pytest.approx(2.17 / 1.96 * (plain.high - plain.low), rel=0.03)


def test_the_draws_are_the_same_each_time_and_a_class_without_samples_does_not_count() -> None:
    values = np.random.default_rng(2).random((300, 2))
    wholes = np.ones_like(values)
    first = ratio_interval(values, wholes)
    empty = np.zeros((300, 1))
    assert first == ratio_interval(values, wholes)
    assert ratio_interval(np.hstack([values, empty]), np.hstack([wholes, empty])) == pytest.approx(first)


def test_a_mean_has_the_interval_of_student_where_errors_are_normal() -> None:
    values = np.random.default_rng(4).standard_normal(400)
    score = mean_score("x", values)
    half = 1.966 * values.std() / np.sqrt(len(values))
    assert score.interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


@pytest.mark.parametrize("values", [[1.0] * 300, [0.1] * 300, [1.0] * 299 + [0.5]])
def test_values_that_hardly_vary_have_no_interval(values: list[float]) -> None:
    assert mean_score("x", np.array(values), least=0.0, most=1.0).interval is None
    assert bootstrap_interval(lambda drawn: float(np.array(values[:1])[0]), len(values)) is None


@pytest.mark.parametrize("count", [2, 3, 450, 3_000_000])
def test_shares_have_the_interval_of_wilson_and_are_within_it(count: int) -> None:
    for hits in (0, 1, count // 2, count - 1, count):
        interval = wilson_interval(hits, count)
        assert interval is not None
        assert 0 <= interval.low <= hits / count <= interval.high <= 1
        assert interval.low < interval.high
    assert share_score("x", np.array([True, True])).interval == pytest.approx((0.3424, 1.0), abs=1e-4)
    assert share_score("x", np.zeros(0, np.bool_)).value is None


def test_a_score_is_within_its_interval_and_both_are_within_what_is_possible() -> None:
    rounded = score_within("x", 0.9999999999999998, ScoreInterval(1.0, 1.0000000000000002), most=1.0)
    assert rounded.interval == (0.9999999999999998, 1.0)
    assert score_within("x", 1.0000000000000002, ScoreInterval(0.5, 1.2), most=1.0).value == 1.0
