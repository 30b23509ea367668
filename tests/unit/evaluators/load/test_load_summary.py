"""The figures of a run: each query once, rates over the right time, and empty runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from load_runs import NS_PER_S, run_of, simulated

from inferometer.evaluators.kinds.load.summary import LoadSummary, Spread
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.validity import steady_from_ns

MS = 1_000_000


def test_each_query_that_counts_has_one_outcome() -> None:
    outcome = [2, 2, 2, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.WAITING, 2, Outcome.UNSENT]
    run = run_of(np.arange(8) * 100 * MS, [10 * MS] * 8, outcome, repeated=3)

    summary = LoadSummary.of(run, bound_ns=100 * MS, cut_ns=100 * MS)

    assert summary.queries == 6
    assert summary.cut_queries == 1
    assert summary.repeated_answers == 3
    assert dict(summary.outcomes) == {
        Outcome.ANSWERED: 3,
        Outcome.FAILED: 1,
        Outcome.TIMED_OUT: 1,
        Outcome.WAITING: 1,
    }
    assert sum(summary.outcomes.values()) == summary.queries
    assert summary.late_fraction == pytest.approx(0.5)


def test_rates_count_right_answers_and_those_in_time() -> None:
    latency = np.where(np.arange(1001) % 4 == 0, 300 * MS, 50 * MS)
    outcome = np.where(np.arange(1001) % 10 == 1, Outcome.FAILED, Outcome.ANSWERED)
    run = run_of(np.arange(1001) * 20 * MS, latency, outcome)

    summary = LoadSummary.of(run, bound_ns=100 * MS)

    assert summary.target_qps == pytest.approx(50)
    assert summary.achieved_qps == pytest.approx(901 / 20.3)
    assert summary.goodput_qps == pytest.approx((901 - 251) / 20.3)
    assert summary.late_fraction == pytest.approx(1 - 650 / 1001)
    assert LoadSummary.of(run).goodput_qps == summary.achieved_qps


def test_the_percentile_that_the_bound_is_for_is_among_the_others() -> None:
    run = run_of(np.arange(1000) * MS, np.arange(1, 1001) * MS)

    summary = LoadSummary.of(run, judged_percent=97.0)

    assert [each.percent for each in summary.percentiles] == [50, 90, 95, 97, 99, 99.9]
    judged = summary.percentile(97.0)
    assert judged is not None
    assert judged.value_ns == pytest.approx(970.03 * MS)
    assert [each.percent for each in LoadSummary.of(run, judged_percent=99.0).percentiles] == [
        *(50, 90, 95, 99, 99.9)
    ]


def test_how_long_batches_were_put_together_is_of_the_queries_of_which_it_is_told() -> None:
    run = run_of([0, MS, 2 * MS], [MS] * 3, batch_ns=[5, -1, 9])

    assert LoadSummary.of(run).batch == Spread(7.0, 8.96, 9)
    assert LoadSummary.of(run_of([0], [MS])).batch is None


def test_an_answer_on_the_bound_is_in_time() -> None:
    run = run_of([0, MS], [5 * MS, 5 * MS + 1])

    assert LoadSummary.of(run, bound_ns=5 * MS).late_fraction == 0.5


def test_above_the_capacity_the_capacity_is_achieved_whatever_is_cut_off() -> None:
    run = run_of(*simulated(np.random.default_rng(1), 2, 5000, exponential=False))

    summary = LoadSummary.of(run, cut_ns=steady_from_ns(run))

    assert summary.target_qps == pytest.approx(200, rel=0.05)
    assert summary.achieved_qps == pytest.approx(100, rel=0.001)


def test_the_parts_of_the_time_are_shown_where_they_are_told() -> None:
    run = run_of(
        np.arange(4) * 100 * MS,
        [10 * MS, 20 * MS, 30 * MS, 40 * MS],
        [2, 2, 2, Outcome.FAILED],
        lag_ns=2 * MS,
        queue_ns=[1, 3, -1, 100],
        predict_ns=[5, 5, 7, 100],
        batch_size=[2, 2, 1, 9],
    )

    summary = LoadSummary.of(run)

    assert summary.queue == Spread(2, pytest.approx(2.98), 3)
    assert summary.predict == Spread(5, pytest.approx(6.96), 7)
    assert summary.service == Spread(18 * MS, pytest.approx(27.8 * MS), 28 * MS)
    assert summary.harness_lag == Spread(2 * MS, 2 * MS, 2 * MS)
    assert dict(summary.batch_sizes) == {1: 1, 2: 2}


def test_parts_that_are_not_told_are_none() -> None:
    summary = LoadSummary.of(run_of([0, MS], [MS, MS]))

    assert summary.queue is None
    assert summary.predict is None
    assert dict(summary.batch_sizes) == {}


def test_the_harness_lag_is_of_the_whole_run() -> None:
    summary = LoadSummary.of(run_of([0, MS], [MS, MS], [2, Outcome.FAILED], lag_ns=7), cut_ns=MS)

    assert summary.harness_lag == Spread(7, 7, 7)
    assert summary.service is None


@pytest.mark.parametrize("unsent", [0, 3])
def test_a_run_without_queries_has_no_figures(unsent: int) -> None:
    summary = LoadSummary.of(run_of(range(unsent), range(unsent), [Outcome.UNSENT] * unsent), bound_ns=1)

    assert summary.queries == 0
    assert (summary.target_qps, summary.achieved_qps, summary.goodput_qps) == (None, None, None)
    assert summary.late_fraction is None
    assert summary.percentiles == ()
    assert summary.harness_lag is None


def test_one_query_has_its_latency_for_every_percentile() -> None:
    summary = LoadSummary.of(run_of([5], [10 * MS]), bound_ns=MS)

    assert summary.target_qps is None
    assert summary.achieved_qps == pytest.approx(100)
    assert summary.goodput_qps == 0
    assert {p.value_ns for p in summary.percentiles} == {10 * MS}


def test_a_run_that_failed_throughout_answers_nothing() -> None:
    run = run_of(np.arange(100) * NS_PER_S, [MS] * 100, [Outcome.FAILED] * 100)

    summary = LoadSummary.of(run, bound_ns=NS_PER_S)

    assert summary.target_qps == pytest.approx(1)
    assert (summary.achieved_qps, summary.goodput_qps, summary.late_fraction) == (0, 0, 1)
    assert {p.value_ns for p in summary.percentiles} == {math.inf}
    assert summary.service is None


def test_queries_that_were_all_due_at_once_have_percentiles_without_intervals() -> None:
    latency = np.arange(1, 3001) * MS
    at_once, one_by_one = (LoadSummary.of(run_of(np.arange(3000) * gap, latency)) for gap in (0, MS))

    assert [each.value_ns for each in at_once.percentiles] == [
        each.value_ns for each in one_by_one.percentiles
    ]
    assert one_by_one.percentiles[0].low_ns is not None
    assert {(each.low_ns, each.high_ns) for each in at_once.percentiles} == {(None, None)}
    assert at_once.achieved_qps == pytest.approx(1000)
