"""The closed loop in virtual time: N in flight, and the next one after each response."""

import numpy as np
import pytest
from virtual_system import NS_PER_S, VirtualClock, VirtualServer

from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import MAX_CONCURRENCY, ClosedLoop, NullTarget, run_closed_loop
from inferometer.evaluators.load.queries import Outcome, QueryLog, Stop
from inferometer.manifests.errors import ConfigurationError, SessionError

MS = 1_000_000


def closed_loop(server, concurrency, extent, timeout_ms=10_000, loop=None, **options):
    clock = server.clock
    return run_closed_loop(
        server,
        ClosedLoop(concurrency, extent, **(loop or {})),
        RunLimits(timeout_ms, **options),
        clock=clock,
        sleep=clock.wait,
    )


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_as_asked_are_in_flight_and_latency_is_theirs(concurrency):
    server = VirtualServer(VirtualClock(), 10 * MS)
    run = closed_loop(server, concurrency, Extent(0.0, 100))

    assert server.most_in_flight == concurrency
    assert len(run.queries) == 100
    assert run.queries.count(Outcome.ANSWERED) == 100
    assert not run.queries.lag_ns.any(), "a query is due when it is sent"
    assert np.median(run.queries.latency_ns) == pytest.approx(concurrency * 10 * MS, rel=0.01)
    assert run.queries.done_ns[-1] == pytest.approx(NS_PER_S, rel=0.01)


def test_a_stall_hardly_shows_to_users_who_wait_for_each_answer():
    server = VirtualServer(VirtualClock(), 5 * MS, stalls={1000: 2 * NS_PER_S})
    run = closed_loop(server, 1, Extent(0.0, 5000))

    assert np.percentile(run.queries.latency_ns, 99) == pytest.approx(5 * MS, rel=0.01)
    assert run.queries.latency_ns.max() > 1.9 * NS_PER_S


def test_it_sends_for_as_long_as_asked():
    clock = VirtualClock()
    run = closed_loop(VirtualServer(clock, 10 * MS), 2, Extent(3.0))

    assert len(run.queries) == pytest.approx(300, abs=4)
    assert run.queries.scheduled_ns[-1] < 3 * NS_PER_S
    assert run.queries.count(Outcome.WAITING) == 0


def test_what_fails_or_is_given_up_makes_room_and_is_counted_once():
    server = VirtualServer(
        VirtualClock(), 10 * MS, fails=frozenset({5}), hangs=frozenset({7, 9}), twice=frozenset({11})
    )
    run = closed_loop(server, 2, Extent(0.0, 200), timeout_ms=300)

    assert len(run.queries) == 200
    assert run.queries.count(Outcome.FAILED) == 1
    assert run.queries.count(Outcome.TIMED_OUT) == 2
    assert run.queries.count(Outcome.ANSWERED) == 197
    assert run.queries.repeated == 1
    assert run.reasons == {"it is told to fail": 1}
    assert server.most_in_flight <= 4, "the two that hang, and as many as asked"


@pytest.mark.parametrize("think_s", [0.03, 0.5])
def test_users_think_before_their_next_query_is_due(think_s):
    """The server answers one of three users at a time; who has waited then thinks."""
    server = VirtualServer(VirtualClock(), 10 * MS)
    run = closed_loop(server, 3, Extent(0.0, 99), loop={"think_s": think_s})

    due_ns, done_ns = run.queries.scheduled_ns, run.queries.done_ns
    assert due_ns[:3].tolist() == [0, 0, 0]
    assert (due_ns[3:] - done_ns[:-3]).tolist() == [round(think_s * NS_PER_S)] * 96
    assert (run.queries.lag_ns >= 0).all()
    assert run.queries.lag_ns.max() < MS
    assert done_ns[-1] == pytest.approx(33 * (think_s + 0.01) * NS_PER_S, rel=0.05)
    assert run.source == f"closed loop, 3 users who think for {think_s:g} s"


def test_a_user_whose_query_fails_or_is_given_up_goes_on_after_thinking():
    server = VirtualServer(VirtualClock(), 10 * MS, fails=frozenset({5}), hangs=frozenset({7}))
    run = closed_loop(server, 2, Extent(0.0, 100), timeout_ms=300, loop={"think_s": 0.02})

    assert [run.queries.count(each) for each in (Outcome.FAILED, Outcome.TIMED_OUT)] == [1, 1]
    assert run.queries.count(Outcome.ANSWERED) == 98
    assert (np.diff(run.queries.scheduled_ns) >= 0).all()


def test_what_follows_is_prepared_for_each_user_when_the_query_before_has_ended():
    server, followed = VirtualServer(VirtualClock(), 10 * MS), {}

    def follow(before):
        return lambda query: (followed.__setitem__(query, before), server.submit(query))

    closed_loop(server, 2, Extent(0.0, 6), loop={"think_s": 0.03, "follow": follow})

    assert followed == {0: -2, 1: -1, 2: 0, 3: 1, 4: 2, 5: 3}


@pytest.mark.parametrize("think_s", [0.0, 0.02])
def test_users_who_come_by_a_schedule_leave_when_nothing_follows(think_s):
    """One answer takes 10 ms, so no user waits for another."""
    server, turns = VirtualServer(VirtualClock(), 10 * MS), {}

    def follow(before):
        turn = 1 if before < 0 else turns[before] + 1
        return (lambda query: (turns.__setitem__(query, turn), server.submit(query))) if turn < 4 else None

    users = Schedule(np.array([0, 200, 900]) * MS, "poisson", 3.0)
    run = closed_loop(server, 1, Extent(60.0), loop={"think_s": think_s, "users": users, "follow": follow})

    queries, think_ns = run.queries, round(think_s * NS_PER_S)
    assert run.stop is Stop.COMPLETE
    assert list(turns.values()) == [1, 2, 3] * 3
    assert queries.scheduled_ns[::3].tolist() == users.offsets_ns.tolist()
    for turn in (1, 2):
        assert (queries.scheduled_ns[turn::3] - queries.done_ns[turn - 1 :: 3]).tolist() == [think_ns] * 3
    assert 0 <= queries.lag_ns.min() <= queries.lag_ns.max() < MS
    assert server.clock.now_ns < 1.1 * NS_PER_S, "it ends when the last user has left"
    thinking = " who think for 0.02 s" if think_s else ""
    assert run.source == f"3 new users/s{thinking} (poisson)"


def test_a_stop_ends_it_within_a_look():
    clock = VirtualClock()
    run = closed_loop(
        VirtualServer(clock, 10 * MS), 2, Extent(60.0), stop_requested=lambda: clock.now_ns > NS_PER_S
    )

    assert run.stop is Stop.INTERRUPTED
    assert clock.now_ns < 1.3 * NS_PER_S
    assert 0 < run.queries.count(Outcome.WAITING) <= 2


def test_a_queue_that_is_as_long_as_its_users_is_no_backlog():
    run = closed_loop(VirtualServer(VirtualClock(), 10 * MS), 500, Extent(0.0, 3000))
    assert run.stop is Stop.COMPLETE


def test_the_null_target_answers_each_at_once():
    clock = VirtualClock()
    target = NullTarget(clock)
    run = run_closed_loop(
        target, ClosedLoop(1, Extent(0.0, 3000)), RunLimits(100), clock=clock, sleep=clock.wait
    )

    assert run.queries.count(Outcome.ANSWERED) == 3000
    assert run.queries.latency_ns.max() < 10_000
    with pytest.raises(SessionError, match="no run has begun"):
        target.submit(0)


@pytest.mark.parametrize("concurrency", [0, MAX_CONCURRENCY + 1])
def test_a_concurrency_that_makes_no_sense_is_refused(concurrency):
    with pytest.raises(
        ConfigurationError, match=rf"concurrency is {concurrency}; allowed: 1…{MAX_CONCURRENCY}"
    ):
        ClosedLoop(concurrency, Extent(1.0))


def test_due_times_ascend_although_a_user_is_told_late_that_a_query_has_ended():
    log = QueryLog(Schedule(np.zeros(0, np.int64), "closed loop", 0.0), began_ns=100)

    for now_ns, due_ns in ((150, 140), (160, 120), (170, None)):
        log.sent_unscheduled(now_ns, due_ns)

    assert log.queries().scheduled_ns[:3].tolist() == [40, 40, 70]
    assert log.queries().sent_ns[:3].tolist() == [50, 60, 70]
