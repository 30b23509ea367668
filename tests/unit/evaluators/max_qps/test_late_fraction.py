"""The model-free estimate: late queries per slice, and the rate at which enough are on time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.kinds.load.estimate import Counts, late_fraction_root, monotone_shares
from inferometer.evaluators.kinds.load.measurement import judged_queries
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries

BOUND_NS = 100_000_000
SECOND_NS = 1_000_000_000


def queries(latency_ns: list[int], outcome: list[Outcome] | None = None, gap_ns: int = SECOND_NS) -> Queries:
    """Queries due one gap after the other and sent at once."""
    count = len(latency_ns)
    due = np.arange(count, dtype=np.int64) * gap_ns
    nothing = np.full(count, -1, np.int64)
    outcomes = np.array(outcome or [Outcome.ANSWERED] * count, np.int64)
    done = np.where(outcomes == Outcome.ANSWERED, due + latency_ns, -1)
    return Queries(due, due, done, outcomes, nothing, nothing, nothing)


def probe(found: Queries, stopped: str = "") -> LoadRun:
    return LoadRun(1.0, "constant", 0, "", found, stopped=stopped)


def counts(rates_qps: list[float], late: list[int], each: int = 10_000) -> Counts:
    count = len(rates_qps)
    return Counts(np.array(rates_qps), np.full(count, float(each)), np.array(late, np.float64))


def test_the_root_is_where_a_logistic_curve_crosses_the_share() -> None:
    rates = np.array([90.0, 95, 100, 105, 110] * 4)
    odds = 0.01 / 0.99 * (rates / 98) ** 12
    found = late_fraction_root(Counts(rates, np.full(20, 1e4), 1e4 * odds / (1 + odds)), 0.01)

    assert found is not None
    assert found.rate_qps == pytest.approx(98, rel=1e-4)
    assert found.slope == pytest.approx(12, rel=1e-3)


def test_the_error_covers_the_truth_where_late_queries_come_in_bunches() -> None:
    random = np.random.RandomState(1)
    rates = np.array([93.0, 100, 107] * 20)
    share = 0.01 * (rates / 100) ** 12
    held = 0
    for _ in range(200):
        late = 8.0 * random.poisson(300 * share / 8)
        found = late_fraction_root(Counts(rates, np.full(60, 300.0), np.minimum(late, 300)), 0.01)
        assert found is not None
        held += found.low_qps <= 100 <= found.high_qps

    assert 180 <= held <= 199


@pytest.mark.parametrize("late", [[0, 0, 0, 0], [10_000] * 4])
def test_there_is_no_root_where_none_is_late_or_all_are(late: list[int]) -> None:
    assert late_fraction_root(counts([90, 95, 100, 105], late), 0.01) is None


def test_there_is_no_root_far_from_every_probe() -> None:
    assert late_fraction_root(counts([100, 100, 100, 100], [9000, 9100, 9050, 9000]), 1e-4) is None


def test_too_few_slices_have_no_root() -> None:
    assert late_fraction_root(counts([95, 105], [50, 200]), 0.01) is None


def test_a_share_that_falls_with_the_rate_is_no_curve() -> None:
    found = late_fraction_root(counts([95, 95, 105, 105], [140, 150, 60, 70]), 0.01)

    assert found is not None
    assert found.slope >= 1


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, max_size=20))
def test_monotone_shares_never_fall_and_keep_the_number_of_late_queries(
    rows: list[tuple[int, float]],
) -> None:
    total = np.array([float(n) for n, _ in rows])
    late = np.array([float(round(n * share)) for n, share in rows])

    shares = monotone_shares(total, late)

    assert np.all(np.diff(shares) >= -1e-12)
    assert float((shares * total).sum()) == pytest.approx(late.sum(), abs=1e-6)


def test_monotone_shares_leave_alone_what_rises() -> None:
    assert monotone_shares(np.array([10.0, 10, 10]), np.array([0.0, 2, 5])).tolist() == [0, 0.2, 0.5]


def test_the_empty_start_is_not_judged() -> None:
    # 101 queries in 100 s: ten bounds are the first second
    judged = judged_queries(probe(queries([0] * 101)), BOUND_NS)

    assert judged.scheduled_ns[0] == SECOND_NS
    assert len(judged) == 100


def test_no_more_than_a_quarter_is_left_out() -> None:
    judged = judged_queries(probe(queries([0] * 101)), 100 * SECOND_NS)

    assert judged.scheduled_ns[0] == 25 * SECOND_NS


def test_queries_that_were_not_due_long_enough_when_a_run_was_stopped_are_not_judged() -> None:
    outcomes = [Outcome.ANSWERED] * 8 + [Outcome.WAITING] * 2 + [Outcome.UNSENT] * 2
    stopped = probe(queries([BOUND_NS // 2] * 12, outcomes, gap_ns=BOUND_NS // 2), "hopeless")

    judged = judged_queries(stopped, BOUND_NS)

    # the last was sent at 9 half bounds: what was due up to 6 half bounds is known, less the start
    assert (judged.scheduled_ns // (BOUND_NS // 2)).tolist() == [3, 4, 5, 6]


def test_the_counts_of_a_probe_are_those_of_its_slices_with_failures_late() -> None:
    outcomes = [Outcome.ANSWERED] * 80
    outcomes[40] = Outcome.FAILED
    outcomes[79] = Outcome.TIMED_OUT
    found = Counts.of(probe(queries([0] * 78 + [2 * BOUND_NS, 0], outcomes)), BOUND_NS)

    assert found.queries.sum() == 79
    assert len(found.queries) == 8
    assert found.late.tolist() == [0, 0, 0, 1, 0, 0, 0, 2]
    assert set(found.rate_qps) == {1.0}


def test_a_query_is_unqueued_when_all_before_it_are_settled() -> None:
    times = [2 * SECOND_NS, 0, 0, 0, SECOND_NS // 2]
    outcomes = [Outcome.ANSWERED] * 3 + [Outcome.WAITING, Outcome.ANSWERED]

    assert queries(times, outcomes).unqueued.tolist() == [True, False, True, True, False]
