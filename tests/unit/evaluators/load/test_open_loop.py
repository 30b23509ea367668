"""The open loop in virtual time: queries are sent when they are due, and each is counted once."""

import gc
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from load_runs import latencies
from virtual_system import NS_PER_S, VirtualClock, VirtualServer

from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, PoissonArrivals, Schedule
from inferometer.evaluators.load.issuer import RunLimits, prompt_wakeups, run_open_loop
from inferometer.evaluators.load.queries import Outcome, Stop
from inferometer.evaluators.load.validity import lag_in_percentiles

MS = 1_000_000
SLACK = Path("/proc/self/timerslack_ns")


def constant(rate_qps, count):
    return Schedule.drawn(ConstantArrivals(), rate_qps, Extent(0.0, count), 0)


def open_loop(server, schedule, timeout_ms=10_000, **options):
    clock = server.clock
    return run_open_loop(server, schedule, RunLimits(timeout_ms, **options), clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("stalled_s", [3, 30])
@pytest.mark.parametrize(
    ("arrivals", "least_ms"), [(ConstantArrivals(), 1700), (PoissonArrivals(), 1500)], ids=str
)
def test_a_stall_of_2_s_in_60_s_shows_in_p99(arrivals, least_ms, stalled_s):
    schedule = Schedule.drawn(arrivals, 100.0, Extent(60.0), 3)
    stalled = 100 * stalled_s
    run = open_loop(VirtualServer(VirtualClock(), 5 * MS, stalls={stalled: 2 * NS_PER_S}), schedule)
    service = np.full(len(schedule), 5.0)
    service[stalled] = 2000
    exact = latencies(np.diff(schedule.offsets_ns, prepend=0) / MS, service)
    latency_ms = run.queries.latency_ns / MS

    assert run.stop is Stop.COMPLETE
    assert lag_in_percentiles(run.queries, 0, 99.0, None) == ""
    assert least_ms < np.percentile(latency_ms, 99) < 1900
    assert latency_ms == pytest.approx(exact, abs=1.0)
    # a client that waits for each answer would have sent so few into the stall that it does not see it
    assert np.percentile(service, 99) == 5.0


def test_a_query_is_sent_when_it_is_due_whatever_became_of_those_before():
    run = open_loop(VirtualServer(VirtualClock(), 50 * MS, hangs=frozenset({2})), constant(100.0, 40))

    assert run.queries.lag_ns.max() < 10_000
    assert run.queries.lag_ns.min() >= 0
    assert run.queries.outcome[2] == Outcome.TIMED_OUT


def test_what_handing_over_takes_is_lag():
    server = VirtualServer(VirtualClock(), MS, submit_ns=12 * MS)
    run = open_loop(server, constant(100.0, 40), bound_ns=100 * MS)

    assert lag_in_percentiles(run.queries, 0, 99.0, 100 * MS).startswith("without the harness's own lag")
    assert run.queries.latency_ns[39] > 39 * 2 * MS, "it counts from the schedule"


def test_each_query_is_counted_once_whatever_becomes_of_it():
    server = VirtualServer(
        VirtualClock(),
        2 * MS,
        fails=frozenset({10, 11}),
        hangs=frozenset({20, 21, 22}),
        twice=frozenset({30}),
        stalls={199: 700 * MS},
    )
    run = open_loop(server, constant(100.0, 200), timeout_ms=500)
    summary = LoadSummary.of(run.queries)

    assert sum(summary.outcomes.values()) == summary.queries == 200
    assert summary.outcomes[Outcome.FAILED] == 2
    assert summary.outcomes[Outcome.TIMED_OUT] == 4
    assert summary.outcomes[Outcome.ANSWERED] == 194
    assert summary.outcomes[Outcome.WAITING] == 0
    assert summary.repeated_answers == 1
    assert summary.late_fraction == pytest.approx(6 / 200)
    assert run.reasons == {"it is told to fail": 2}
    assert server.ended_with == 0.0


def test_a_stop_that_is_asked_for_ends_the_run_within_a_look_and_waits_for_nothing():
    clock = VirtualClock()
    run = open_loop(
        VirtualServer(clock, 5 * MS, hangs=frozenset({3})),
        constant(100.0, 6000),
        stop_requested=lambda: clock.now_ns > 2 * NS_PER_S,
    )

    assert run.stop is Stop.INTERRUPTED
    assert 2 * NS_PER_S < clock.now_ns < 2.3 * NS_PER_S
    assert 200 <= len(run.queries) <= 230
    assert run.queries.count(Outcome.UNSENT) == 0
    assert run.queries.outcome[3] == Outcome.WAITING


def test_a_backlog_that_grows_without_end_ends_the_run_within_seconds():
    clock = VirtualClock()
    run = open_loop(VirtualServer(clock, 15 * MS), constant(100.0, 60_000))

    assert run.stop is Stop.BACKLOG
    assert clock.now_ns < 6 * NS_PER_S


def test_a_rate_below_the_capacity_is_no_backlog_not_even_after_a_stall():
    server = VirtualServer(VirtualClock(), 9 * MS, stalls={300: 2 * NS_PER_S})

    assert open_loop(server, Schedule.drawn(PoissonArrivals(), 100.0, Extent(30.0), 1)).stop is Stop.COMPLETE


def test_a_system_that_answers_nothing_ends_the_run_after_the_timeout():
    clock = VirtualClock()
    server = VirtualServer(clock, MS, hangs=frozenset(range(100, 100_000)))
    run = open_loop(server, constant(100.0, 60_000), timeout_ms=500)

    assert run.stop is Stop.SILENT
    assert clock.now_ns < 3 * NS_PER_S
    assert run.queries.count(Outcome.ANSWERED) == 100


def test_a_hopeless_run_ends_once_too_many_are_late():
    server = VirtualServer(VirtualClock(), 9 * MS, stalls={50: NS_PER_S})
    run = open_loop(server, constant(100.0, 1000), bound_ns=20 * MS, max_late=20)

    assert run.stop is Stop.HOPELESS
    assert len(run.queries) < 120


def test_progress_tells_what_was_sent_what_waits_and_the_recent_p99():
    told = []
    server = VirtualServer(VirtualClock(), 5 * MS)
    open_loop(server, constant(100.0, 200), on_progress=told.append, name="probe 3")

    assert len(told) >= 7
    assert all(later.done > earlier.done for earlier, later in itertools.pairwise(told))
    assert {each.total for each in told} == {200}
    line = re.fullmatch(
        r"probe 3  at 100 queries/s   +[12]\.\d s  (\d+)/200 sent  ([\d.]+) answers/s"
        r"  p99 ([\d.]+) ms  backlog [01]",
        str(told[-1]),
    )
    assert int(line[1]) == told[-1].done
    assert float(line[2]) == pytest.approx(100, rel=0.1)
    assert float(line[3]) == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize(
    ("oversleep_ns", "bound_ms", "least", "most"),
    [(5_000, None, 2, 5), (40_000, 100, 2, 5), (120_000, 100, 2, 5), (5_000, 10, 14, 18)],
)
def test_the_sender_spins_as_long_as_it_oversleeps_unless_the_bound_is_narrow(
    oversleep_ns, bound_ms, least, most
):
    """A step of spinning, which reads the clock, takes 10 µs here."""
    clock = VirtualClock(reading_ns=10_000, oversleep_ns=oversleep_ns)
    readings = []

    def counted():
        readings.append(clock())
        return readings[-1]

    schedule = constant(100.0, 1000)
    limits = RunLimits(10_000, bound_ns=bound_ms and bound_ms * MS)
    run = run_open_loop(VirtualServer(clock, MS), schedule, limits, clock=counted, sleep=clock.sleep)

    assert np.percentile(run.queries.lag_ns[200:], 75) <= 20_000
    assert least <= len(readings) / len(schedule) <= most


@pytest.mark.skipif(not SLACK.exists(), reason="only Linux tells the slack of timers")
def test_a_thread_wakes_up_promptly_in_a_run_and_is_as_it_was_after_it():
    def now():
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        return SLACK.read_text(), policy, os.sched_getparam(0).sched_priority

    before, capabilities = now(), re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    may_set_priorities = int(capabilities[1], 16) >> 23 & 1  # CAP_SYS_NICE
    with prompt_wakeups(), ThreadPoolExecutor() as pool:
        assert now() == (("0\n", os.SCHED_FIFO, 1) if may_set_priorities else ("1\n", os.SCHED_OTHER, 0))
        assert pool.submit(os.sched_getscheduler, 0).result() == os.SCHED_OTHER
    assert now() == before
    if may_set_priorities:  # a higher one, as of chrt, stays
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(7))
        with prompt_wakeups():
            assert now() == ("0\n", os.SCHED_FIFO, 7)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_nothing_is_left_frozen_after_a_run(monkeypatch, count_frozen_objects):
    monkeypatch.setattr(gc, "get_freeze_count", count_frozen_objects)
    gc.unfreeze()  # the collected tests
    try:
        open_loop(VirtualServer(VirtualClock(), MS), constant(100.0, 10))
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
