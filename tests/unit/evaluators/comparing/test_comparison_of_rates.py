"""Comparison of rate searches: ratio and interval, pooled, one-sided, or without a rate."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from inferometer.evaluators.comparing.comparison import compare_rates, noise_of_rates
from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.verdict import Verdict

NONE = RateAnswer(None, None, None, Method.NONE.value)


def answer(rate: float, low: float, high: float) -> RateAnswer:
    return RateAnswer(rate, low, high, Method.SINGLE_SERVER.value)


def at_least(rate: float) -> RateAnswer:
    return RateAnswer(rate, rate, None, Method.AT_LEAST.value)


def searched(random: np.random.Generator, rate: float, error: float, spread: float) -> RateAnswer:
    """An answer that is off by ``error``, which its interval knows, and by ``spread``, which it does not."""
    found = rate * math.exp(random.normal(0, error) + random.normal(0, spread))
    return answer(found, found * math.exp(-1.96 * error), found * math.exp(1.96 * error))


def verdicts(runs: int, rate_of_b: float, spread: float, threshold: float = 0.0) -> Counter[Verdict]:
    random = np.random.default_rng(runs)
    found: Counter[Verdict] = Counter()
    for _ in range(400):
        a = [searched(random, 80, 0.01, spread) for _ in range(runs)]
        b = [searched(random, rate_of_b, 0.01, spread) for _ in range(runs)]
        found[compare_rates(a, b, threshold=threshold).verdict] += 1
    return found


@pytest.mark.parametrize(("runs", "spread"), [(1, 0.0), (2, 0.05), (4, 0.0), (4, 0.05)])
def test_like_and_like_are_hardly_ever_told_apart(runs: int, spread: float) -> None:
    found = verdicts(runs, 80, spread)
    assert found[Verdict.WORSE] <= 20
    assert found[Verdict.BETTER] <= 20


@pytest.mark.parametrize(("runs", "spread"), [(1, 0.0), (4, 0.02)])
def test_a_tenth_less_is_found_and_a_tenth_more_is_better(runs: int, spread: float) -> None:
    assert verdicts(runs, 72, spread)[Verdict.WORSE] >= 390
    assert verdicts(runs, 88, spread)[Verdict.BETTER] >= 390


def test_a_difference_within_the_threshold_is_the_same() -> None:
    assert verdicts(4, 79, 0.0, threshold=0.05)[Verdict.SAME] >= 390


def test_single_answers_that_do_not_know_how_runs_differ_are_told_apart_wrongly() -> None:
    # why 4 or more runs a side are asked for
    assert verdicts(1, 80, 0.05)[Verdict.WORSE] > 60


def test_the_halves_of_both_intervals_add_up_as_squares() -> None:
    ratio = compare_rates([answer(100, 90, 120)], [answer(100, 95, 105)], threshold=0.05)

    assert (ratio.a, ratio.b, ratio.value) == (pytest.approx(100), pytest.approx(100), pytest.approx(1))
    assert ratio.low == pytest.approx(math.exp(-math.hypot(math.log(100 / 95), math.log(120 / 100))))
    assert ratio.high == pytest.approx(math.exp(math.hypot(math.log(105 / 100), math.log(100 / 90))))
    assert ratio.verdict is Verdict.UNDECIDED


def test_answers_that_agree_are_averaged_and_that_differ_widen_the_interval() -> None:
    a = [answer(rate, rate / 1.02, rate * 1.02) for rate in (100, 100, 100, 100)]
    b = [answer(rate, rate / 1.02, rate * 1.02) for rate in (90, 110, 90, 110)]

    alike, different = compare_rates(a[:2], a[2:], threshold=0.05), compare_rates(a, b, threshold=0.05)

    assert alike.high == pytest.approx(1.02)  # two halves of 1.02 a side, each by √2 smaller
    assert different.b == pytest.approx(math.sqrt(90 * 110))
    spread = math.log(110 / 90) / 2
    # 3 + 3 degrees of freedom, all of the variance on B's side
    assert different.high == pytest.approx(
        different.value * math.exp(2.447 * math.sqrt(4 * spread**2 / 6 * 2 / 4)), rel=1e-3
    )


def test_no_rate_is_worse_than_any() -> None:
    lost = compare_rates([answer(80, 78, 82)], [NONE, NONE], threshold=0.05)
    won = compare_rates([NONE], [answer(80, 78, 82)], threshold=0.05)
    neither = compare_rates([NONE], [NONE], threshold=0.05)

    assert (lost.b, lost.value, lost.verdict) == (0, 0, Verdict.WORSE)
    assert (won.a, won.value, won.verdict) == (0, math.inf, Verdict.BETTER)
    assert math.isnan(neither.value)
    assert neither.verdict is Verdict.UNDECIDED


def test_one_end_that_is_known_decides_what_it_can() -> None:
    known, more = answer(80, 78, 82), at_least(100)
    below = RateAnswer(None, None, 40.0, Method.BRACKET.value)

    up = compare_rates([known], [more], threshold=0.05)
    assert (up.high, up.verdict) == (math.inf, Verdict.BETTER)
    assert compare_rates([more], [known], threshold=0.05).verdict is Verdict.WORSE
    assert compare_rates([known], [at_least(70)], threshold=0.05).verdict is Verdict.UNDECIDED
    assert compare_rates([more], [more], threshold=0.05).verdict is Verdict.UNDECIDED
    down = compare_rates([known], [below], threshold=0.05)
    assert (down.low, down.verdict) == (0, Verdict.WORSE)
    assert down.high == pytest.approx(40 / 78)
    assert math.isnan(down.value)
    assert compare_rates([below], [NONE], threshold=0.05).verdict is Verdict.UNDECIDED
    assert compare_rates([NONE], [below], threshold=0.05).verdict is Verdict.UNDECIDED
    assert compare_rates([known], [known, NONE], threshold=0.05).verdict is Verdict.UNDECIDED


def test_noise_is_the_largest_ratio_between_like_answers() -> None:
    like = [answer(100, 99, 101), answer(110, 109, 111), answer(105, 104, 106)]

    assert noise_of_rates(like) == pytest.approx(0.1)
    assert noise_of_rates([*like, NONE]) == math.inf
    with pytest.raises(ValueError, match="at least two"):
        noise_of_rates(like[:1])


def test_a_threshold_without_end_decides_nothing() -> None:
    assert (
        compare_rates([answer(100, 99, 101)], [answer(10, 9, 11)], threshold=math.inf).verdict
        is Verdict.UNDECIDED
    )


def test_a_side_without_an_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="each side needs"):
        compare_rates([NONE], [], threshold=0.05)
