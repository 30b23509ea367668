"""The ramp-up that is cut off, and the backlog that only a rate above the capacity causes."""

from __future__ import annotations

import numpy as np
import pytest
from load_runs import NS_PER_S, run_of, simulated
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.load.validity import backlog, growing, steady_from_ns

MS = 1_000_000


def seen_at(now_ns: int, due_ns: NDArray[np.int64], latency_ns: NDArray[np.int64]) -> Queries:
    """A run as it stands: what is not yet answered waits, and what is not yet due is unsent."""
    outcome = np.where(due_ns + latency_ns <= now_ns, Outcome.ANSWERED, Outcome.WAITING)
    return run_of(due_ns, latency_ns, np.where(due_ns <= now_ns, outcome, Outcome.UNSENT))


def found_at_s(due_ns: NDArray[np.int64], latency_ns: NDArray[np.int64], until_s: int = 60) -> int | None:
    """The first second in which the backlog is said to grow."""
    for second in range(1, until_s + 1):
        now_ns = second * NS_PER_S
        if growing(seen_at(now_ns, due_ns, latency_ns), now_ns):
            return second
    return None


def test_a_tenth_of_the_time_from_the_first_to_the_last_query_is_cut_off() -> None:
    assert steady_from_ns(run_of([1000, 1500, 2000], [1, 1, 1])) == 1100


def test_a_run_that_was_stopped_loses_a_tenth_of_what_it_had() -> None:
    assert steady_from_ns(run_of([1000, 2000, 9000], [1, 1, 1], [2, 2, Outcome.UNSENT])) == 1100
    assert steady_from_ns(run_of([1000], [1], [Outcome.UNSENT])) == 0


@pytest.mark.parametrize(("due_ns", "cut_ns"), [([], 0), ([70], 70), ([5, 5, 5], 5)])
def test_a_run_of_no_length_loses_no_query(due_ns: list[int], cut_ns: int) -> None:
    run = run_of(due_ns, [1] * len(due_ns))

    assert steady_from_ns(run) == cut_ns
    assert len(run.since(cut_ns)) == len(due_ns)


@pytest.mark.parametrize("exponential", [False, True])
def test_what_is_left_has_the_mean_and_p99_of_the_steady_state(exponential: bool) -> None:
    random = np.random.default_rng(1)
    _, truth = simulated(random, 0.7, 2_000_000, exponential=exponential)
    means, p99s, lost = [], [], []
    for _ in range(100):
        run = run_of(*simulated(random, 0.7, 20_000, exponential=exponential))
        steady = run.since(steady_from_ns(run))
        means.append(steady.latency_ns.mean())
        p99s.append(np.percentile(steady.latency_ns, 99))
        lost.append(1 - len(steady) / len(run))

    assert np.mean(means) == pytest.approx(truth.mean(), rel=0.03)
    assert np.mean(p99s) == pytest.approx(np.percentile(truth, 99), rel=0.05)
    assert max(lost) < 0.12


def test_the_backlog_is_what_was_due_and_has_not_left() -> None:
    run = run_of([0, 10, 20, 30], [15, 100, 5, 5], [2, Outcome.FAILED, 2, 2])

    assert backlog(run, np.array([0, 10, 15, 20, 25, 35, 109, 110])).tolist() == [1, 2, 1, 2, 1, 1, 1, 0]


def test_a_query_that_hangs_is_no_backlog_once_a_later_one_is_answered() -> None:
    hung = run_of([0, 10, 20], [0, 5, 5], [Outcome.TIMED_OUT, 2, Outcome.WAITING])

    assert backlog(hung, np.array([5, 14, 15, 20, 10**9])).tolist() == [1, 2, 0, 1, 1]


def test_what_was_never_sent_is_no_backlog() -> None:
    assert backlog(run_of([0, 10], [5, 5], [2, Outcome.UNSENT]), np.array([20])).tolist() == [0]


@pytest.mark.parametrize(("load", "within_s"), [(1.5, 8), (2, 4), (4, 2)])
def test_a_rate_above_the_capacity_is_found_within_seconds(load: float, within_s: int) -> None:
    random = np.random.default_rng(2)
    found = [found_at_s(*simulated(random, load, 9000, exponential=k % 2 == 0), within_s) for k in range(20)]

    assert None not in found


@pytest.mark.parametrize("load", [0.7, 0.95, 1.0])
def test_a_system_that_can_just_keep_up_is_not_given_up(load: float) -> None:
    random = np.random.default_rng(3)
    found = [found_at_s(*simulated(random, load, 8000, exponential=k % 2 == 0)) for k in range(20)]

    assert found == [None] * 20


@pytest.mark.parametrize("begin_s", [0, 1, 10])
def test_a_stall_is_not_growth(begin_s: int) -> None:
    due = np.arange(6000, dtype=np.int64) * 10 * MS
    service = np.full(6000, 5 * MS)
    service[begin_s * 100] = 2 * NS_PER_S
    ends = np.maximum.accumulate(due - np.concatenate([[0], np.cumsum(service)[:-1]])) + np.cumsum(service)

    assert found_at_s(due, ends - due) is None


def test_a_system_that_takes_long_for_many_at_once_is_not_growth() -> None:
    random = np.random.default_rng(4)
    due = np.cumsum(random.exponential(10 * MS, 6000)).astype(np.int64)

    assert found_at_s(due, np.full(6000, 5 * NS_PER_S)) is None


def test_bursts_are_not_growth() -> None:
    random = np.random.default_rng(5)
    on_s = np.cumsum(random.exponential(1 / 200, 6000))
    due_s = on_s + np.floor(on_s)
    service = np.full(6000, 1 / 150)
    ends = np.maximum.accumulate(due_s - np.concatenate([[0], np.cumsum(service)[:-1]])) + np.cumsum(service)

    assert (
        found_at_s(np.rint(due_s * 1e9).astype(np.int64), np.rint((ends - due_s) * 1e9).astype(np.int64))
        is None
    )


def test_a_run_without_answers_or_without_queries_is_not_growth() -> None:
    due = np.arange(1000) * MS

    assert not growing(run_of(due, due * 0, np.full(1000, Outcome.WAITING)), NS_PER_S)
    assert not growing(run_of([], []), NS_PER_S)
    assert not growing(run_of(np.zeros(1000), np.full(1000, MS)), 2 * MS)
