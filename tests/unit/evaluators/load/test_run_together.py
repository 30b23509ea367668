"""Several models under load at once, in virtual time: what each is sent, and how much they interfere."""

from dataclasses import replace

import numpy as np
import pytest
from load_runs import latencies, run_of
from virtual_system import NS_PER_S, VirtualClock, VirtualServer

from inferometer.evaluators.kinds.load.measurement import Interference, LoadOptions, MixMeasurement, pooled
from inferometer.evaluators.kinds.load.summary import LoadSummary, mix_rows
from inferometer.evaluators.load.arrivals import ConstantArrivals, Extent, PoissonArrivals, Schedule
from inferometer.evaluators.load.issuer import RunLimits, run_open_loop, run_together
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop

MS = 1_000_000
LIMITS = RunLimits(1_000)
CASES, PAIRS, QUERIES = 200, 6, 150


class LockedServer(VirtualServer):
    """A server that computes only while it holds a lock, which it may share with other servers."""

    def __init__(self, clock, service_ns, lock, **more):
        super().__init__(clock, service_ns, **more)
        self._lock = lock

    def submit(self, query):
        self._free_ns = self._lock["free_ns"]
        super().submit(query)
        self._lock["free_ns"] = self._free_ns

    def begin(self, answers):
        self._lock["free_ns"] = 0
        super().begin(answers)


def constant(rate_qps, count):
    return Schedule.drawn(ConstantArrivals(), rate_qps, Extent(0.0, count), 0)


def together(servers, schedules, limits=LIMITS):
    clock = servers[0].clock
    return run_together(servers, schedules, limits, clock=clock, sleep=clock.sleep)


def mix_of(alone, together_, **options):
    options = LoadOptions("poisson", 100.0, max_duration_s=2.0, **options)
    return MixMeasurement("a", ("b",), options, {}, "", tuple(alone), tuple(together_), 1)


def test_each_target_is_sent_its_own_queries_when_they_are_due():
    clock = VirtualClock()
    schedules = [Schedule.drawn(PoissonArrivals(), 150, Extent(0, 300), 1), constant(40, 80)]
    servers = [
        VirtualServer(clock, MS),
        VirtualServer(clock, 20 * MS, fails=frozenset({3, 5}), twice=frozenset({7})),
    ]

    fast, slow = together(servers, schedules)

    for run, schedule in zip((fast, slow), schedules, strict=True):
        assert run.checksum == schedule.checksum
        assert run.queries.scheduled_ns.tolist() == schedule.offsets_ns.tolist()
        assert 0 <= run.queries.lag_ns.min() <= run.queries.lag_ns.max() < MS / 5
        assert run.cut_ns > 0
        assert run.stop is Stop.COMPLETE
    assert fast.queries.count(Outcome.ANSWERED) == 300
    assert (slow.queries.count(Outcome.ANSWERED), slow.queries.count(Outcome.FAILED)) == (78, 2)
    assert (fast.reasons, slow.reasons) == ({}, {"it is told to fail": 2})
    assert (fast.queries.repeated, slow.queries.repeated) == (0, 1)
    assert np.median(slow.queries.latency_ns) == pytest.approx(20 * MS, abs=MS)
    assert [server.ended_with for server in servers] == [0.0, 0.0]


def test_one_target_is_loaded_as_by_the_open_loop():
    schedule = Schedule.drawn(PoissonArrivals(), 60, Extent(0, 200), 4)
    [run] = together([VirtualServer(VirtualClock(), 10 * MS)], [schedule])
    other = alone(VirtualServer(VirtualClock(), 10 * MS), schedule)

    assert run.queries.latency_ns == pytest.approx(other.queries.latency_ns, abs=MS / 20)


def alone(server, schedule):
    return run_open_loop(server, schedule, LIMITS, clock=server.clock, sleep=server.clock.sleep)


def test_targets_end_in_the_reverse_order_in_which_they_begin():
    clock, seen = VirtualClock(), []

    class Noted(VirtualServer):
        def begin(self, answers):
            seen.append(("begin", servers.index(self)))
            super().begin(answers)

        def end(self, timeout_s):
            seen.append(("end", servers.index(self)))
            super().end(timeout_s)

    servers = [Noted(clock, MS), Noted(clock, MS)]
    together(servers, [constant(10, 5)] * 2)

    assert seen == [("begin", 0), ("begin", 1), ("end", 1), ("end", 0)]


def test_what_hangs_times_out_for_its_own_model_alone():
    clock = VirtualClock()
    hanging = VirtualServer(clock, MS, hangs=frozenset(range(20)))

    right, wrong = together([VirtualServer(clock, MS), hanging], [constant(20, 20)] * 2)

    assert right.queries.count(Outcome.ANSWERED) == wrong.queries.count(Outcome.TIMED_OUT) == 20


def test_a_stop_ends_all_and_leaves_out_what_was_not_due():
    clock = VirtualClock()
    limits = replace(LIMITS, stop_requested=lambda: clock.now_ns > NS_PER_S)

    runs = together([VirtualServer(clock, MS), VirtualServer(clock, MS)], [constant(100, 500)] * 2, limits)

    assert {run.stop for run in runs} == {Stop.INTERRUPTED}
    assert all(100 <= len(run.queries) < 150 for run in runs)


def test_a_model_with_too_many_late_queries_stops_all_as_hopeless():
    clock = VirtualClock()
    servers = [VirtualServer(clock, MS), VirtualServer(clock, 20 * MS)]
    schedules, bounds = [constant(50, 500)] * 2, [(10 * MS, 40), (10 * MS, 40)]

    stopped = run_together(servers, schedules, LIMITS, late=bounds, clock=clock, sleep=clock.sleep)
    bounds[1] = (30 * MS, 40)
    whole = run_together(servers, schedules, LIMITS, late=bounds, clock=clock, sleep=clock.sleep)

    assert [run.stop for run in stopped] == [Stop.HOPELESS] * 2
    assert all(40 < len(run.queries) < 80 for run in stopped)
    assert [run.stop for run in whole] == [Stop.COMPLETE] * 2


@pytest.mark.parametrize(
    ("shared", "ratio"), [(True, 2.5), (False, 1.0)], ids=["one lock", "a lock of their own"]
)
def test_interference_is_the_factor_by_which_a_model_slows_another(shared, ratio):
    """The other model's queries, due at the same times, take 6 ms each, and then this model's 4 ms."""
    alone_, together_ = [], []
    for pair in range(4):
        clock, lock = VirtualClock(), {}
        first = LockedServer(clock, 6 * MS, lock if shared else {})
        second = LockedServer(clock, 4 * MS, lock)
        schedule = constant(50 + pair, 100)
        together_.append(together([first, second], [schedule] * 2)[1])
        alone_.append(together([second], [schedule])[0])

    mix = mix_of(alone_, together_)

    for found in (mix.interference(50.0), mix.interference(99.0)):
        assert found.ratio == pytest.approx(ratio, rel=0.02)
        assert found.interval.low * 0.99 <= ratio <= found.interval.high * 1.01
    assert LoadSummary.of_load(mix.side("alone")).percentile(50).value_ns == pytest.approx(4 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("factor", "load"), [(1.0, 0.8), (1.3, 1e-6)], ids=["nothing beside it", "slower, without a queue"]
)
def test_the_interval_holds_the_true_ratio_in_95_of_100_mixes(factor, load):
    """Simulated queues with the same arrivals in both blocks of a pair, and other service times."""
    random, covered = np.random.default_rng(5), {50.0: 0, 99.0: 0}
    for _ in range(CASES):
        sides = [], []
        for _ in range(PAIRS):
            gaps = random.exponential(10 * MS / load, QUERIES)
            for side, slower in zip(sides, (1.0, factor), strict=True):
                service = (
                    slower * random.exponential(10 * MS, QUERIES) * (1 + 0.02 * random.standard_normal())
                )
                queries = run_of(np.cumsum(gaps), latencies(gaps, service))
                side.append(LoadRun(1.0, "poisson", 1, "", queries))
        for percent in covered:
            covered[percent] += mix_of(*sides).interference(percent).interval.covers(factor)

    assert [count / CASES for count in covered.values()] == pytest.approx([0.95, 0.95], abs=0.05)


@pytest.mark.parametrize("value", [np.inf, 0.0])
def test_there_is_no_ratio_without_an_answer(value):
    assert Interference.of(np.array([[1.0, 2.0], [1.0, value]])) is None


def test_one_pair_has_a_ratio_and_no_interval():
    assert Interference.of(np.array([[2.0, 3.0]])) == Interference(pytest.approx(1.5), None)


def test_pooled_queries_follow_each_other_without_their_empty_starts():
    runs = [
        LoadRun(1.0, "poisson", 1, "", run_of([0, 10, 20], [5, 6, 30]), cut_ns=10),
        LoadRun(
            1.0, "poisson", 1, "", run_of([0, 10], [7, 8], [Outcome.ANSWERED, Outcome.TIMED_OUT], repeated=1)
        ),
    ]

    found = pooled(runs)

    assert found.scheduled_ns.tolist() == [0, 10, 41, 51]
    assert found.sent_ns.tolist() == [0, 10, 41, 51]
    assert found.done_ns.tolist() == [6, 40, 48, -1]
    assert found.latency_ns[:3].tolist() == [6, 30, 7]
    assert found.repeated == 1


def test_the_rows_say_what_a_model_answered_and_whether_it_kept_its_bound():
    due_ns = np.arange(100) * 10 * MS
    kept = LoadRun(100.0, "poisson", 1, "", run_of(due_ns, np.full(100, 4 * MS)))
    late = LoadRun(100.0, "poisson", 1, "", run_of(due_ns, np.full(100, 6 * MS)))
    failed = replace(late, queries=run_of(due_ns, due_ns, [Outcome.FAILED] * 100), reasons={"no memory": 100})

    text = "\n".join(" ".join(row) for row in mix_rows(mix_of([kept] * 2, [late] * 2, latency_bound_ms=5.0)))
    unsent = replace(kept, queries=run_of([], []))
    empty = "\n".join(" ".join(row) for row in mix_rows(mix_of([unsent], [kept])))
    none = "\n".join(
        " ".join(row) for row in mix_rows(mix_of([kept] * 2, [failed] * 2, latency_bound_ms=5.0))
    )

    assert "p99 kept 5 ms" in text
    assert "p99 missed 5 ms" in text
    assert "ratio p50    1.500 [1.500, 1.500]" in text
    assert "together 2 blocks\nqueries 200 (200 failed)\n 200 failed: no memory" in none
    assert "ratio p50    not known" in none
    assert "alone 1 blocks\nqueries 0 (none)\nrate not known answered" in empty


def test_the_bound_is_that_of_the_judged_percentile_even_below_the_median():
    due_ns = np.arange(100) * 10 * MS
    run = LoadRun(100.0, "poisson", 1, "", run_of(due_ns, np.repeat([4 * MS, 6 * MS], [20, 80])))

    rows = list(mix_rows(mix_of([run] * 2, [run] * 2, latency_bound_ms=5.0, percentile=10.0)))

    bounds = [text for name, text in rows if name == "bound"]
    assert [text.partition(",")[0] for text in bounds] == ["p10 kept 5 ms"] * 2


def test_the_rate_of_short_blocks_counts_the_pause_after_their_last_query():
    drawn = [Schedule.drawn(PoissonArrivals(), 50, Extent(0.2, 1, 0.2), seed) for seed in range(100)]
    runs = [alone(VirtualServer(VirtualClock(), MS), each) for each in drawn]
    mix = mix_of(runs, runs)
    mix = replace(mix, options=replace(mix.options, max_duration_s=0.2))

    answered = sum(map(len, drawn))

    assert LoadSummary.of_load(mix.side("alone")).achieved_qps == pytest.approx(answered / 20, rel=0.01)
