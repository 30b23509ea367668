"""The effect of the harness's lag: what it could have changed, and what it could not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_runs import latencies, run_of

from inferometer.evaluators.kinds.load.measurement import lag_reason
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.load.validity import lag_in_percentiles

MS = 1_000_000


def served(due_ms: object, lag_ms: object, service_ms: object) -> Queries:
    """A run on one server that serves in order, with queries that are sent late."""
    due, lag = np.asarray(due_ms, np.float64), np.asarray(lag_ms, np.float64)
    sent = np.maximum.accumulate(due + lag)
    service = np.broadcast_to(np.asarray(service_ms, np.float64), due.shape)
    done = sent + latencies(np.diff(sent, prepend=0.0), service)
    queries = run_of(np.rint(due * MS), np.rint((done - due) * MS))
    return replace(queries, sent_ns=np.rint(sent * MS).astype(np.int64))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=60)
)
def test_the_truth_lies_between_the_two_ways_to_count(rows: list[tuple[int, int, int]]) -> None:
    gaps, lags, services = np.asarray(rows).T
    due = np.cumsum(gaps)

    found = served(due, lags, services)
    without_lag = served(due, 0, services).latency_ns

    assert (without_lag <= found.latency_ns).all()
    assert (found.from_sending().latency_ns <= without_lag).all()


def test_a_burst_after_a_stall_of_the_harness_is_not_the_systems_delay() -> None:
    due = np.arange(100) * 10
    lag = np.where((due >= 300) & (due < 700), 700 - due, 0)

    found = served(due, lag, 8)

    assert found.latency_ns.max() > 400 * MS
    assert (found.done_ns - found.sent_ns).max() > 300 * MS, "the burst waits for itself"
    assert found.from_sending().latency_ns.max() <= 8 * MS


def test_latencies_from_sending_are_those_of_the_queries_that_were_sent() -> None:
    found = run_of([0, 10, 20], [5, 9, 0], [Outcome.ANSWERED, Outcome.FAILED, Outcome.UNSENT], lag_ns=2)

    sent = found.from_sending()

    assert sent.scheduled_ns.tolist() == [2, 12]
    assert sent.outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED]


def spread(lag_ms: float, count: int = 4000, scale: float = 1.0) -> Queries:
    """Queries with latencies of 10 to 30 ms beside a constant lag, whose order is no trend."""
    random = np.random.default_rng(3)
    latency_ms = scale * (10 + 20 * random.random(count)) + lag_ms
    return run_of(np.arange(count) * 100 * MS, np.rint(latency_ms * MS), lag_ns=round(lag_ms * MS))


@pytest.mark.parametrize(
    ("queries", "bound_ns", "is_valid"),
    [
        (spread(0.9), 20 * MS, False),  # p50 is known to 0.4 ms
        (spread(0.9), None, True),  # without a bound 1 ms is no difference
        (spread(0.2, scale=0.01), 20 * MS, True),  # nor is 1 % of the bound, though p50 is known to 4 µs
        (spread(0.3, scale=0.01), 20 * MS, False),
        (spread(0.3, count=300), 20 * MS, True),  # fewer queries tell less: p50 to 1.4 ms
        (spread(30.0), None, False),
        (served(np.arange(400) * 10_000, 15, 2_000), None, True),  # nor is 1 % of the percentile
        (served(np.arange(400) * 10_000, 25, 2_000), None, False),
    ],
)
def test_a_percentile_is_invalid_where_the_lag_moves_it_out_of_its_interval(
    queries: Queries, bound_ns: int | None, is_valid: bool
) -> None:
    assert (lag_in_percentiles(queries, 0, 50.0, bound_ns) == "") is is_valid


def test_a_run_of_which_nothing_was_sent_after_its_start_has_no_percentiles_to_compare() -> None:
    stuck = run_of([0, 10, 20], [0, 0, 0], [Outcome.WAITING] * 3)
    stuck = replace(stuck, sent_ns=np.array([0, -1, -1]))

    assert lag_in_percentiles(stuck, 5, 99.0, None) == ""


def test_the_reason_tells_the_effect_and_what_to_do() -> None:
    reason = lag_in_percentiles(spread(30.0), 0, 50.0, None)

    assert reason.startswith(
        "without the harness's own lag, which is in none of service, queue, batch and pre"
    )
    assert "p50 would be 20.000 ms, not 50.000 ms" in reason
    assert reason.endswith("give a model in this process fewer --threads, or lower the rate")


@pytest.mark.parametrize(
    ("service_ms", "lag_ms", "is_valid"),
    [
        (8, 0.5, True),  # above 1 % of the bound, and kept all the same
        (8, 10, True),
        (25, 10, True),  # late, however it is counted
        (15, 10, False),  # late for the lag alone
    ],
)
def test_a_probe_is_invalid_where_the_lag_could_have_changed_its_side(
    service_ms: float, lag_ms: float, is_valid: bool
) -> None:
    probe = LoadRun(10.0, "constant", 0, "", served(np.arange(400) * 100, lag_ms, service_ms))

    assert (lag_reason(probe, 20 * MS, 0.01) == "") is is_valid


def test_the_reason_of_a_probe_tells_both_shares() -> None:
    probe = LoadRun(10.0, "constant", 0, "", served(np.arange(400) * 100, 10, 15))

    assert "0 % of the queries would be late, not 100 %" in lag_reason(probe, 20 * MS, 0.01)
