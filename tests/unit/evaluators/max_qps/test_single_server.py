"""The single-server model: known maxima, recorded service times, and runs that it does not fit."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from load_runs import latencies, run_of, simulated
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.single_server import SingleServer, served_queries
from inferometer.evaluators.load.arrivals import ConstantArrivals, PoissonArrivals
from inferometer.evaluators.load.queries import Outcome, Queries

MS = 1_000_000


def ends(due_ns: NDArray[np.int64], service_ns: NDArray[np.int64], servers: int) -> NDArray[np.int64]:
    """When queries end at several servers that take them in order."""
    free = [0] * servers
    found = []
    for due, service in zip(due_ns.tolist(), service_ns.tolist(), strict=True):
        end = max(due, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        found.append(end)
    return np.array(found)


def fitted(*runs: Queries) -> SingleServer | None:
    return SingleServer.fitted([served_queries(run) for run in runs], PoissonArrivals(), seed=1)


def test_latencies_are_those_of_a_loop_over_the_queries() -> None:
    random = np.random.default_rng(1)
    gaps, service = random.exponential(1.2, 500), random.gamma(2, 0.5, 500)

    wait, expected = 0.0, []
    for query in range(500):
        if query:
            wait = max(0.0, wait + service[query - 1] - gaps[query])
        expected.append(wait + service[query])

    assert latencies(gaps, service) == pytest.approx(expected)


@pytest.mark.parametrize("exponential", [False, True])
def test_service_times_of_a_run_are_found_whatever_it_waited(exponential: bool) -> None:
    due, latency = simulated(np.random.default_rng(2), 0.9, 2000, exponential=exponential)
    expected = (latency - np.maximum(np.concatenate([[0], (due + latency)[:-1]]) - due, 0)) / 1e9

    found = served_queries(run_of(due, latency))

    assert found.service_s() == pytest.approx(expected)
    assert found.disordered == 0
    assert (found.backlog_s > 0).mean() == pytest.approx(0.9, abs=0.07)


def test_service_times_leave_out_what_failed_and_the_harness_s_delay() -> None:
    queries = run_of([0, 100 * MS, 200 * MS], [15 * MS] * 3, [2, Outcome.FAILED, 2], lag_ns=5 * MS)

    assert served_queries(queries).service_s() == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize(("exponential", "truth_qps"), [(False, 77.4), (True, 53.95)])
def test_the_maximum_is_that_of_theory(exponential: bool, truth_qps: float) -> None:
    # M/D/1 and M/M/1 with 10 ms; of M/M/1 the latency is exponential, so 100 - ln(100) / 0.1 s
    due, latency = simulated(np.random.default_rng(3), 0.6, 20_000, exponential=exponential)
    model = fitted(run_of(due, latency))

    assert model is not None
    solved = model.solve(bound_s=0.1, late_fraction=0.01)

    assert solved is not None
    assert abs(solved.rate_qps - truth_qps) < 4 * solved.error_qps
    assert 0 < solved.error_qps < 0.03 * truth_qps


def test_constant_arrivals_reach_the_capacity() -> None:
    model = SingleServer(np.full(1000, 0.01), ConstantArrivals(), seed=1)

    solved = model.solve(0.1, 0.01)

    assert model.capacity_qps == pytest.approx(100)
    assert solved is not None
    assert solved.rate_qps == pytest.approx(100, rel=0.01)


def test_no_rate_is_slow_enough_when_the_service_is_too_slow() -> None:
    assert SingleServer(np.full(1000, 0.2), PoissonArrivals(), seed=1).solve(0.1, 0.01) is None


@pytest.mark.parametrize("stalls", [1, 2, 3])
def test_stalls_that_may_have_come_by_chance_leave_the_rate_without_them_in_the_interval(stalls: int) -> None:
    """One to three stalls in 1,500 queries: in another run of as many queries there may be none."""
    service = np.full(1500, 0.011)
    without = SingleServer(service, PoissonArrivals(), seed=1).solve(0.1, 0.01)
    service[[100, 700, 1300][:stalls]] = 0.25

    found = SingleServer(service, PoissonArrivals(), seed=1).solve(0.1, 0.01)

    assert without is not None
    assert found is not None
    assert found.rate_qps < 0.95 * without.rate_qps
    assert found.low_qps < found.rate_qps < 0.99 * without.rate_qps < found.high_qps
    assert found.high_qps < 1 / 0.011


def test_stalls_all_along_are_of_the_system() -> None:
    service = np.full(1500, 0.011)
    without = SingleServer(service, PoissonArrivals(), seed=1).solve(0.1, 0.01)
    service[75::150] = 0.25

    found = SingleServer(service, PoissonArrivals(), seed=1).solve(0.1, 0.01)

    assert without is not None
    assert found is not None
    assert found.high_qps < 0.9 * without.rate_qps


def test_a_seed_gives_the_same_answer() -> None:
    service = np.random.default_rng(1).exponential(0.01, 1000)

    solved = [SingleServer(service, PoissonArrivals(), seed).solve(0.1, 0.01) for seed in (1, 1, 2)]

    assert solved[0] == solved[1] != solved[2]


def test_two_servers_are_refused() -> None:
    random = np.random.default_rng(4)
    due = np.cumsum(random.exponential(7 * MS, 4000)).astype(np.int64)
    for service in (random.exponential(10 * MS, 4000), np.full(4000, 10 * MS)):
        done = ends(due, service.astype(np.int64), servers=2)

        assert fitted(run_of(due, done - due)) is None


def test_batches_are_refused() -> None:
    random = np.random.default_rng(5)
    due = np.cumsum(random.exponential(5 * MS, 4000)).astype(np.int64)
    done, free, query = np.zeros(4000, np.int64), 0, 0
    while query < 4000:
        begin = max(free, int(due[query]))
        size = int(np.count_nonzero(due[query : query + 8] <= begin))
        free = begin + 12 * MS
        done[query : query + size] = free
        query += size

    assert fitted(run_of(due, done - due)) is None


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_service_times_that_depend_on_the_queue_are_refused(factor: float) -> None:
    random = np.random.default_rng(6)
    due = np.cumsum(random.exponential(18 * MS, 4000)).astype(np.int64)
    done, free = [], 0
    for at in due.tolist():
        free = max(at, free) + round(random.gamma(20, 0.5) * MS * (factor if free > at else 1))
        done.append(free)

    assert fitted(run_of(due, np.array(done) - due)) is None


@pytest.mark.parametrize("delay_ms", [0.5, 2.0, 4.0])
def test_a_delay_on_the_way_is_no_service(delay_ms: float) -> None:
    """A query takes 10 ms of the server and a delay beside it, which leaves less of the bound to waiting."""
    random = np.random.default_rng(8)
    due, latency = simulated(random, 0.7, 6000, exponential=False, service_s=0.01)
    bare = fitted(run_of(due, latency))

    model = fitted(run_of(due, latency + int(delay_ms * MS)))

    assert model is not None
    assert bare is not None
    assert model.capacity_qps == pytest.approx(100, rel=1e-3)
    found, expected = model.solve(0.1, 0.01), bare.solve(0.1 - delay_ms / 1e3, 0.01)
    assert found is not None
    assert expected is not None
    assert found.rate_qps == pytest.approx(expected.rate_qps, rel=2e-3)


def test_too_few_queries_are_refused_and_runs_add_up() -> None:
    random = np.random.default_rng(7)
    runs = [run_of(*simulated(random, 0.5, 150, exponential=False)) for _ in range(2)]

    assert fitted(runs[0]) is None
    assert fitted(run_of([], [])) is None
    assert fitted(*runs) is not None


def test_an_answer_of_runs_at_several_speeds_is_as_uncertain_as_the_speed() -> None:
    """Of equal runs the error is below 1 %; the mean of four that differ by 4 % is not known so well."""
    random = np.random.default_rng(7)

    def runs(*speeds: float) -> list[Queries]:
        found = []
        for speed in speeds:
            due, latency = simulated(random, 0.7, 2000, exponential=False, service_s=0.01 * speed)
            found.append(run_of(due, latency))
        return found

    steady, drifting = fitted(*runs(1, 1, 1, 1)), fitted(*runs(0.95, 1, 1, 1.05))

    assert steady is not None
    assert drifting is not None
    alike, different = steady.solve(0.1, 0.01), drifting.solve(0.1, 0.01)
    assert alike is not None
    assert different is not None
    assert alike.error_qps / alike.rate_qps < 0.01
    assert 0.015 < different.error_qps / different.rate_qps < 0.04
    half = 3.18 * np.std([0.95, 1, 1, 1.05], ddof=1) / 2  # Student's t of three degrees of freedom
    assert 1 - different.low_qps / different.rate_qps > 0.9 * half
    assert different.high_qps / different.rate_qps - 1 > 0.9 * half


def test_an_answer_is_never_exact_to_more_than_the_search_for_it() -> None:
    """All queries at equal distance: none is late up to the capacity, and all are above it."""
    due = np.arange(1000, dtype=np.int64) * 11 * MS
    service = [served_queries(run_of(due, np.full(1000, 10 * MS)))]
    model = SingleServer.fitted(service, ConstantArrivals(), seed=1)

    assert model is not None
    found = model.solve(0.1, 0.01)
    assert found is not None
    assert found.rate_qps == pytest.approx(100, rel=0.01)
    assert found.error_qps >= 1e-4 * found.rate_qps
