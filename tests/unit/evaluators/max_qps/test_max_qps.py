"""The search for the maximum QPS on simulated systems in virtual time with known answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_prober import (
    SimulatedProber,
    System,
    batching,
    deterministic,
    exponential,
    hesitant,
    losing,
    two_servers,
)

from inferometer.evaluators.kinds.load.measurement import (
    Method,
    RateAnswer,
    judged_queries,
    lag_reason,
    late_share,
    rate_text,
)
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_max_qps
from inferometer.evaluators.kinds.tuning.request import Configuration
from inferometer.evaluators.load.queries import Outcome
from inferometer.manifests.errors import ConfigurationError
from tests import tuned_hosts
from tests.tuned_hosts import Host

BOUND_MS = 100.0
# p99 <= 100 ms with Poisson arrivals: one server of 10 ms (the second by the formula of M/M/1), and two
DETERMINISTIC_QPS, EXPONENTIAL_QPS, TWO_SERVERS_QPS = 77.4, 53.95, 176.1
# a batch of n, at most 8, takes 10 ms + n · 2 ms; 1,500,000 simulated queries
BATCHING_QPS = 275.5


def request(latency_bound_ms: float = BOUND_MS, **options: Any) -> MaxQpsRequest:
    given = {"initial_qps": 10.0, "tolerance": 0.01, "time_budget_s": 600.0, "min_duration_s": 5.0}
    return MaxQpsRequest(latency_bound_ms=latency_bound_ms, **given | options)


def searched(system: System, seed: int = 0, **options: Any) -> tuple[RateAnswer, SimulatedProber]:
    prober = SimulatedProber(system, 5000 + seed)
    return search_max_qps(request(seed=seed, **options), prober), prober


def errors_and_cover(answers: Sequence[RateAnswer], truth_qps: float) -> tuple[np.ndarray[Any, Any], float]:
    """The errors of answers, as shares of the truth, and the share of intervals that hold it."""
    rates = [(a.rate_qps or 0.0, a.low_qps or 0.0, a.high_qps or 0.0) for a in answers]
    errors = np.array([rate / truth_qps - 1 for rate, _, _ in rates])
    return errors, float(np.mean([low <= truth_qps <= high for _, low, high in rates]))


@pytest.mark.parametrize(
    ("system", "truth_qps"),
    [(deterministic(0.01), DETERMINISTIC_QPS), (exponential(0.01), EXPONENTIAL_QPS)],
    ids=["deterministic", "exponential"],
)
def test_over_50_seeds_the_answer_is_right_and_its_interval_true(system: System, truth_qps: float) -> None:
    """Of draws of 50 seeds, 1 in 150 passes intervals of two thirds of the width; 1 in 80 a bias of 1.5 %."""
    found = [searched(system, seed) for seed in range(50)]

    answers = [answer for answer, _ in found]
    errors, cover = errors_and_cover(answers, truth_qps)
    low, median, high = np.percentile(errors, [5, 50, 95])
    assert abs(median) <= 0.01
    assert low >= -0.04
    assert high <= 0.04
    assert cover >= 0.87
    # of 95 % intervals around normal errors it is 0.51; it tells more of their width than the cover
    halves = np.array([(a.high_qps - a.low_qps) / 2 for a in answers if a.high_qps and a.low_qps])
    assert np.sqrt(np.mean((errors * truth_qps / halves) ** 2)) <= 0.6
    assert max(prober.elapsed_s for _, prober in found) <= 600


@pytest.mark.parametrize(
    ("system", "truth_qps"),
    [(two_servers(0.01), TWO_SERVERS_QPS), (batching(0.01, 0.002, 8), BATCHING_QPS)],
    ids=["two servers", "batching"],
)
def test_a_system_that_is_no_single_server_is_judged_by_its_late_queries(
    system: System, truth_qps: float
) -> None:
    answers = [searched(system, seed)[0] for seed in range(20)]

    errors, cover = errors_and_cover(answers, truth_qps)
    assert {answer.method for answer in answers} == {Method.LATE_FRACTION.value}
    assert "one server" in answers[0].note
    assert abs(np.median(errors)) <= 0.015
    assert np.abs(errors).max() <= 0.06
    assert cover >= 0.9


@pytest.mark.parametrize(
    ("seed", "instances", "batch", "truth_qps"),
    # one query in a hundred of 12 million is later than the bound
    [(4, 2, 1, 1280.0), (22, 2, 16, 1765.9), (30, 4, 1, 959.9), (45, 4, 8, 5090.8), (51, 4, 16, 18125.4)],
)
def test_no_interval_rests_on_a_single_probe_with_a_burst_of_late_queries(
    seed: int, instances: int, batch: int, truth_qps: float
) -> None:
    """Near capacity, the share of late queries rises from none to most within 3 % of the rate."""
    host = Host.drawn(seed)
    prober = tuned_hosts.SimulatedProber(host, seed)
    prober.use(Configuration(instances, 1, batch, 0.0))

    answer = search_max_qps(MaxQpsRequest(latency_bound_ms=host.bound_ms(seed)), prober)  # type: ignore[arg-type]

    assert (answer.low_qps or 0.0) <= truth_qps <= (answer.high_qps or math.inf)
    assert answer.rate_qps == pytest.approx(truth_qps, rel=0.05)


@pytest.mark.parametrize("initial_qps", [1, 10_000])
def test_the_search_gets_there_from_far_below_and_far_above(initial_qps: float) -> None:
    answer, prober = searched(deterministic(0.01), initial_qps=initial_qps)

    assert answer.rate_qps == pytest.approx(DETERMINISTIC_QPS, rel=0.03)
    assert prober.runs[0].rate_qps == initial_qps
    assert prober.elapsed_s <= 600


@pytest.mark.parametrize("initial_qps", [0.5, 10, 10_000])
def test_no_rate_is_an_answer(initial_qps: float) -> None:
    answer, prober = searched(deterministic(0.2), initial_qps=initial_qps)

    assert answer.method == Method.NONE
    assert (answer.rate_qps, answer.low_qps, answer.high_qps) == (None, None, None)
    assert rate_text(answer) == "none"
    assert "queries with no queue before them were late" in answer.note
    assert prober.elapsed_s < 100


@pytest.mark.parametrize("initial_qps", [0.1, 1, 16])
@pytest.mark.parametrize(
    "system", [deterministic(0.2), exponential(0.2), two_servers(0.2), batching(0.2, 0.002, 8)]
)
def test_a_model_ten_times_slower_than_the_bound_has_no_rate_and_that_is_found_soon(
    system: System, initial_qps: float
) -> None:
    prober = SimulatedProber(system, 5002)

    answer = search_max_qps(request(10, initial_qps=initial_qps, time_budget_s=120, min_duration_s=2), prober)

    assert answer.method == Method.NONE
    assert prober.runs[0].rate_qps == initial_qps
    assert prober.elapsed_s < 40


@pytest.mark.parametrize("initial_qps", [0.5, 16])
def test_a_rate_at_which_queries_hardly_ever_meet_is_found(initial_qps: float) -> None:
    """A query of 9 ms keeps 10 ms unless another is due in the 8 ms before it: 1.26 QPS at p99."""
    prober = SimulatedProber(deterministic(0.009), 5003)

    answer = search_max_qps(request(10, initial_qps=initial_qps), prober)

    assert answer.rate_qps == pytest.approx(1.26, rel=0.06)
    assert answer.low_qps is not None
    assert prober.elapsed_s <= 600


def test_queries_that_are_late_for_no_queue_are_sent_ever_longer_and_not_ever_more_slowly() -> None:
    def hiccups(arrivals_s, random):  # type: ignore[no-untyped-def] # a System
        return arrivals_s + np.where(random.random_sample(len(arrivals_s)) < 0.03, 0.05, 0.001)

    for seed in range(3):
        prober = SimulatedProber(hiccups, 99 + seed)

        answer = search_max_qps(request(10, initial_qps=10, min_duration_s=2, seed=seed), prober)

        assert answer.method == Method.NONE
        assert min(probe.rate_qps for probe in prober.runs) == 10


def test_a_system_whose_every_query_is_lost_has_no_rate() -> None:
    answer, _ = searched(losing(deterministic(0.01), 1.0))

    assert answer.method == Method.NONE


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.WAITING])
def test_queries_without_a_right_answer_are_late(outcome: Outcome) -> None:
    """With 0.5 % lost, 0.5 % may be late of themselves: 74.3 QPS by simulation of 12 million queries."""
    prober = SimulatedProber(losing(deterministic(0.01), 0.005), 5001, lost=outcome)

    answer = search_max_qps(request(), prober)

    assert answer.method == Method.LATE_FRACTION
    assert answer.rate_qps == pytest.approx(74.3, rel=0.06)


@pytest.mark.parametrize("budget_s", [30, 120, 1000])
@pytest.mark.parametrize("service_s", [0.01, 0.2])
def test_the_time_budget_is_kept(budget_s: float, service_s: float) -> None:
    answer, prober = searched(exponential(service_s), time_budget_s=budget_s, tolerance=1e-3)

    assert prober.elapsed_s <= budget_s
    if answer.method == Method.SINGLE_SERVER:
        assert prober.elapsed_s > 0.8 * budget_s
        assert answer.note == "the time budget was used up"


def test_the_interval_of_a_system_that_never_changes_is_narrow() -> None:
    answer, _ = searched(deterministic(0.01))

    assert answer.rate_qps is not None
    assert answer.low_qps is not None
    assert answer.high_qps is not None
    for end_qps in (answer.low_qps, answer.high_qps):
        assert abs(end_qps / answer.rate_qps - 1) < 0.015


def test_searches_over_connections_of_different_speeds_do_not_exclude_each_other() -> None:
    probers = [SimulatedProber(deterministic(0.01), seed, connections=0.03) for seed in range(10)]

    found = [
        search_max_qps(request(seed=seed, time_budget_s=200), prober) for seed, prober in enumerate(probers)
    ]

    ends = [(answer.low_qps or 0.0, answer.high_qps or 0.0) for answer in found]
    assert sum(low <= DETERMINISTIC_QPS <= high for low, high in ends) >= 9
    assert max(low for low, _ in ends) <= min(high for _, high in ends)


def test_searches_on_a_machine_that_changes_as_much_from_hour_to_hour_do_not_exclude_each_other() -> None:
    hours = 0.02 * np.random.RandomState(3).standard_normal(10)
    found = [
        search_max_qps(
            request(seed=seed, time_budget_s=40),
            SimulatedProber(deterministic(0.01), seed, connections=0.02, machine=faster),
        )
        for seed, faster in enumerate(hours)
    ]

    ends = [(answer.low_qps or 0.0, answer.high_qps or 0.0) for answer in found]
    assert sum(low <= DETERMINISTIC_QPS <= high for low, high in ends) >= 9
    assert max(low for low, _ in ends) <= min(high for _, high in ends)


def test_searches_by_late_queries_that_come_in_bursts_do_not_exclude_each_other() -> None:
    system = batching(0.004, 0.001, 8)  # near its capacity a queue lasts for seconds

    found = [
        search_max_qps(
            request(seed=seed, time_budget_s=45), SimulatedProber(system, 1000 + seed, connections=0.02)
        )
        for seed in range(24)
    ]

    ends = [(answer.low_qps or 0.0, answer.high_qps or math.inf) for answer in found]
    middle_qps = float(np.median([answer.rate_qps or 0.0 for answer in found]))
    assert {answer.method for answer in found} == {Method.LATE_FRACTION.value}
    assert sum(low <= middle_qps <= high for low, high in ends) >= 20
    pairs = list(itertools.combinations(ends, 2))
    assert sum(a[1] < b[0] or b[1] < a[0] for a, b in pairs) <= len(pairs) / 50


def test_a_wide_tolerance_ends_the_search_early() -> None:
    answer, prober = searched(deterministic(0.01), tolerance=0.05)

    assert prober.elapsed_s < 200
    assert answer.rate_qps == pytest.approx(DETERMINISTIC_QPS, rel=0.05)
    assert answer.note == ""
    assert sum(probe.queries.scheduled_ns[-1] > 20e9 for probe in prober.runs) >= 4


def test_every_probe_has_a_seed_of_its_own() -> None:
    _, prober = searched(deterministic(0.01), time_budget_s=120)

    assert len({probe.seed for probe in prober.runs}) == len(prober.runs) > 5


def test_the_same_seed_gives_the_same_search_and_another_one_another() -> None:
    found = [searched(exponential(0.01), seed, time_budget_s=120) for seed in (3, 3, 4)]

    first, again, other = (answer for answer, _ in found)
    seeds, seeds_again, other_seeds = ([probe.seed for probe in prober.runs] for _, prober in found)
    assert first == again
    assert seeds == seeds_again
    assert first.rate_qps != other.rate_qps
    assert set(seeds).isdisjoint(other_seeds)


def test_hopeless_probes_are_stopped_early() -> None:
    _, prober = searched(deterministic(0.01), initial_qps=10_000, time_budget_s=60)

    first = prober.runs[0]
    assert first.stopped
    assert first.queries.count(Outcome.UNSENT) > 0
    assert sum(p.queries.done_ns.max() for p in prober.runs if p.stopped) < 10e9
    assert prober.elapsed_s <= 60


def test_where_the_harness_can_do_no_more_the_answer_is_at_least() -> None:
    answer, prober = searched(deterministic(0.001), max_rate_qps=500)

    assert answer.method == Method.AT_LEAST
    assert answer.rate_qps == 500
    assert rate_text(answer) == "at least 500"
    assert answer.note == "no more than 500 queries/s could be sent on time"
    assert max(probe.rate_qps for probe in prober.runs) <= 500


def test_probes_in_which_the_harness_lagged_count_for_nothing_and_lower_its_limit() -> None:
    prober = SimulatedProber(deterministic(0.001), lags_above_qps=300, lag_s=5)

    answer = search_max_qps(request(), prober)

    assert answer.method == Method.AT_LEAST
    assert answer.rate_qps is not None
    assert 100 < answer.rate_qps <= 300
    assert any(lag_reason(probe, 100_000_000, 0.01) for probe in prober.runs)
    assert "could be sent on time" in answer.note


def test_a_lag_that_cannot_have_changed_the_verdict_stops_no_search() -> None:
    # as where the system under test takes the processor from the harness once it is overloaded
    prober = SimulatedProber(deterministic(0.01), lags_above_qps=80, lag_s=0.01)

    answer = search_max_qps(request(time_budget_s=300), prober)

    assert answer.low_qps is not None
    assert answer.high_qps is not None
    assert answer.low_qps <= 77.4 <= answer.high_qps


@settings(deadline=None, max_examples=8, derandomize=True)
@given(st.floats(1.1e-3, 1.9e-3), st.floats(0.05, 0.11), st.floats(1.0, 1.4), st.integers(0, 99))
@example(1.5e-3, 0.1, 1.1, 0)
def test_no_probe_is_far_below_a_rate_that_was_kept(
    service_s: float, stall_s: float, lags_from: float, seed: int
) -> None:
    bound_ms, share = 200.0, 0.01
    prober = SimulatedProber(
        hesitant(service_s, 0.01, stall_s), seed, lags_above_qps=lags_from * 0.6 / service_s, lag_s=0.2
    )

    search_max_qps(
        request(bound_ms, seed=seed, time_budget_s=300, min_duration_s=10, initial_qps=6.4), prober
    )

    kept_qps, bound_ns = 0.0, round(bound_ms * 1e6)
    for probe in prober.runs:
        assert probe.rate_qps > 0.7 * kept_qps
        if late_share(probe, bound_ns) <= share and share * len(judged_queries(probe, bound_ns)) >= 10:
            kept_qps = max(kept_qps, probe.rate_qps)


def test_a_search_ends_where_the_harness_can_send_no_more_although_a_higher_rate_was_broken() -> None:
    prober = SimulatedProber(hesitant(2e-3, 0.0, 0.0), 5000, lags_above_qps=450)

    answer = search_max_qps(request(200, initial_qps=6.4, time_budget_s=300, min_duration_s=10), prober)

    assert answer.method in {Method.BRACKET.value, Method.AT_LEAST.value}
    assert answer.rate_qps == pytest.approx(409.6)
    assert "could be sent on time" in answer.note
    assert prober.elapsed_s < 200


def test_the_interval_of_the_answer_decides_its_figures() -> None:
    assert rate_text(RateAnswer(76.912, 75.83, 78.01, Method.SINGLE_SERVER.value)) == "76.9 [75.8, 78.0]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"latency_bound_ms": 1e-4},
            "latency_bound_ms is 0.0001; it must be at least 0.001 and at most 3600000",
        ),
        ({"latency_bound_ms": float("nan")}, "latency_bound_ms is nan; it must be"),
        ({"initial_qps": -1}, "initial_qps is -1; it must be above 0"),
        ({"initial_qps": 1e10}, "initial_qps is 10000000000.0; it must be at least 1e-06 and at most"),
        ({"percentile": 100}, "percentile is 100; it must be above 0 and below 100"),
        ({"percentile": 0.5}, "percentile is 0.5; it must be at least 1 and at most 99.999"),
        ({"tolerance": 0}, "tolerance is 0; it must be at least 0.0001"),
        ({"min_duration_s": 0}, "min_duration is 0; it must be at least 0.01 and at most 86400"),
        ({"time_budget_s": 0.5}, "time_budget is 0.5; it must be at least 1 and at most 604800"),
        ({"time_budget_s": 10}, "time_budget is 10 s; with this min_duration and latency_bound it must be"),
        ({"min_queries": 0}, "min_queries is 0; it must be at least 1"),
        ({"min_queries": 10**9}, "min_queries is 1000000000; it must be at least 1 and at most 100000000"),
        (
            {"initial_qps": 0.001, "time_budget_s": 100},
            "a time_budget of 100 s has fewer than 4 queries at this rate",
        ),
        ({"seed": -1}, "seed is -1; it must be"),
        ({"max_rate_qps": 0}, "max_rate_qps is 0; it must be above 0"),
        ({"arrival": "ramp"}, "arrival ramp has no steady rate"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        request(**options)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_search_without_a_valid_probe_says_why() -> None:
    prober = SimulatedProber(deterministic(0.01), lags_above_qps=0, lag_s=1)

    answer = search_max_qps(request(time_budget_s=60), prober)

    assert answer.rate_qps is None
    assert rate_text(answer) == "unknown"
    assert answer.note == "no probe was valid"


def test_the_budget_that_a_message_asks_for_is_enough() -> None:
    """Four times 0.3 is more than 1.2 in binary."""
    short = {"latency_bound_ms": 50.0, "min_duration_s": 0.2}

    assert request(**short, time_budget_s=1.2).time_budget_s == 1.2
    with pytest.raises(ConfigurationError, match=r"it must be at least 1\.2 s"):
        request(**short, time_budget_s=1.1)
