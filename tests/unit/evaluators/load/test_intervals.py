"""Percentiles with intervals: known values, too few values, and the coverage of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_runs import simulated

from inferometer.evaluators.statistics import (
    NEVER_NS,
    percentile,
    percentile_interval,
    percentile_intervals,
    t_quantile_95,
)

PERCENT = (50.0, 90.0, 99.0)


@pytest.mark.parametrize("degrees", [1, 2, 5, 9, 19, 30, 31, 40, 60, 120, 1000])
def test_a_95_percent_interval_holds_95_percent_of_student_s_distribution(degrees: int) -> None:
    quantile = t_quantile_95(degrees)
    at = np.linspace(0, quantile, 20_001)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    density = math.exp(log_scale) * (1 + at**2 / degrees) ** (-(degrees + 1) / 2)
    inside = 2 * float(np.sum((density[1:] + density[:-1]) / 2) * (at[1] - at[0]))

    assert inside == pytest.approx(0.95, abs=6e-5)


def test_no_degree_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        t_quantile_95(0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.sampled_from([50.0, 90, 95, 99, 99.9]))
def test_percentiles_are_those_of_the_other_reports(values: list[int], percent: float) -> None:
    found = percentile_interval(np.array(values), percent)

    assert found.value_ns == pytest.approx(percentile(values, percent), rel=1e-6, abs=1)
    if found.low_ns is not None:
        assert found.low_ns <= found.value_ns
        assert found.high_ns is None or found.value_ns <= found.high_ns


def test_an_interval_holds_the_value_of_equal_latencies_only() -> None:
    assert [(p.low_ns, p.value_ns, p.high_ns) for p in percentile_intervals(np.full(20_000, 7))] == [
        (7, 7, 7)
    ] * 5


def test_a_share_of_equal_latencies_that_is_near_the_percentile_may_be_on_either_side_of_it() -> None:
    latency = np.full(2000, 10)
    latency[np.random.default_rng(4).choice(2000, 990, replace=False)] = 100

    found = percentile_interval(latency, 50)

    assert (found.low_ns, found.value_ns, found.high_ns) == (10, 10, 100)


def test_too_few_queries_have_percentiles_but_no_interval() -> None:
    found = percentile_intervals(np.random.default_rng(3).permutation(500))

    assert [p.percent for p in found] == [50, 90, 95, 99, 99.9]
    assert [p.low_ns is not None for p in found] == [True, True, True, False, False]
    assert [p.high_ns is not None for p in found] == [True, True, True, False, False]


@pytest.mark.parametrize(("percent", "count"), [(50, 20), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)])
def test_ten_queries_beyond_a_percentile_are_enough_for_an_interval(percent: float, count: int) -> None:
    latency = np.random.default_rng(3).permutation(count)

    assert percentile_interval(latency, percent).low_ns is not None
    assert percentile_interval(latency[:-1], percent).low_ns is None


def test_an_upper_end_that_no_query_was_late_enough_for_is_open() -> None:
    latency = np.full(2000, 10)
    latency[:20] = np.arange(1000, 1020)  # all late ones in one bunch

    found = percentile_interval(latency, 99)

    assert found.low_ns == 10
    assert found.high_ns is None


@pytest.mark.parametrize(
    ("never", "value_is_infinite", "high_is_infinite"),
    [(0.0, False, False), (0.0095, False, True), (0.02, True, True)],
)
def test_queries_without_an_answer_are_later_than_any(
    never: float, value_is_infinite: bool, high_is_infinite: bool
) -> None:
    random = np.random.default_rng(1)
    latency = random.integers(1000, 2000, 20_000)
    latency[random.choice(20_000, round(never * 20_000), replace=False)] = NEVER_NS

    found = percentile_interval(latency, 99)

    assert math.isinf(found.value_ns) == value_is_infinite
    assert found.high_ns is not None
    assert math.isinf(found.high_ns) == high_is_infinite
    assert found.low_ns is not None
    assert found.low_ns <= 2000 or value_is_infinite


def test_a_run_without_answers_is_infinitely_late_throughout() -> None:
    assert {p.value_ns for p in percentile_intervals(np.full(50, NEVER_NS))} == {math.inf}


def test_a_run_without_queries_has_no_percentile() -> None:
    assert percentile_intervals(np.array([], np.int64)) == ()
    with pytest.raises(ValueError, match="at least one latency"):
        percentile_interval(np.array([], np.int64), 99)


@pytest.mark.parametrize("percent", [0, 100, -1, float("nan")])
def test_a_percentile_out_of_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        percentile_interval(np.arange(100), percent)


@pytest.mark.parametrize("kind", ["independent", "M/D/1", "M/M/1"])
def test_intervals_hold_the_truth_in_most_runs(kind: str) -> None:
    random = np.random.default_rng(2)
    count, runs = 20_000, 120

    def latencies(number: int) -> np.ndarray:
        if kind == "independent":
            return random.exponential(1e7, number).astype(np.int64)
        return simulated(random, 0.7, number + 2000, exponential=kind == "M/M/1")[1][2000:]

    truth = np.percentile(latencies(2_000_000), PERCENT)
    held = np.zeros(3)
    for _ in range(runs):
        found = percentile_intervals(latencies(count), PERCENT)
        for place, interval in enumerate(found):
            assert interval.low_ns is not None
            held[place] += interval.low_ns <= truth[place] <= (interval.high_ns or math.inf)

    assert (held / runs >= 0.88).all(), held / runs
