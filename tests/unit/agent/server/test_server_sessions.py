"""The sessions of a served agent: their limit, idle timeout and closing."""

import threading

import pytest

from inferometer.agent.server.native.sessions import ABANDONED_S, GIVES_WAY_S, Sessions
from inferometer.manifests.errors import DeviceError, SessionError, SessionLimitError


class FakeLease:
    released = 0

    def __init__(self, model=None):
        self.model = model

    def release(self):
        self.released += 1


class FakeClock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def sessions(clock):
    return Sessions(limit=2, idle_s=60, clock=clock)


def test_each_session_has_an_id_of_its_own_that_is_long(sessions):
    (first, _), (second, _) = sessions.open(FakeLease), sessions.open(FakeLease)
    assert first != second
    assert len(first) >= 20


def test_limit_counts_what_is_open(sessions):
    first, _ = sessions.open(FakeLease)
    sessions.open(FakeLease)
    with pytest.raises(SessionLimitError, match="limit of 2 open sessions"):
        sessions.open(FakeLease)
    sessions.close(first)
    sessions.open(FakeLease)


def test_session_that_fails_to_open_takes_no_place(sessions):
    def fail():
        raise DeviceError("no GPU")

    for _ in range(3):
        with pytest.raises(DeviceError):
            sessions.open(fail)
    assert len(sessions) == 0
    sessions.open(FakeLease)
    sessions.open(FakeLease)


def test_limit_holds_while_sessions_are_being_opened(sessions):
    begun, go = threading.Barrier(3), threading.Event()

    def slowly():
        begun.wait(30)
        go.wait(30)
        return FakeLease()

    threads = [threading.Thread(target=sessions.open, args=(slowly,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    with pytest.raises(SessionLimitError):
        sessions.open(FakeLease)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(sessions) == 2


def test_idle_session_is_closed_and_a_used_one_is_not(sessions, clock):
    idle_id, idle = sessions.open(FakeLease)
    used_id, used = sessions.open(FakeLease)
    with sessions.use(used_id):
        clock.now_s += 1000
        assert sessions.close_idle() == 1
        assert (idle.released, used.released) == (1, 0)
    # Its idle time begins when its use ends.
    clock.now_s += 59
    assert sessions.close_idle() == 0
    clock.now_s += 1
    assert sessions.close_idle() == 1
    for id_ in (idle_id, used_id):
        with pytest.raises(SessionError, match="not open"), sessions.use(id_):
            pass


def test_full_agent_closes_an_idle_session_for_a_new_one(sessions, clock):
    _, old = sessions.open(FakeLease)
    clock.now_s += 60
    sessions.open(FakeLease)
    assert old.released == 1


def test_session_closed_in_use_is_closed_by_the_last_one_that_leaves(sessions):
    id_, session = sessions.open(FakeLease)
    with sessions.use(id_):
        with sessions.use(id_):
            sessions.close(id_)
            with pytest.raises(SessionError), sessions.use(id_):
                pass
        assert session.released == 0
        assert len(sessions) == 1
    assert session.released == 1
    assert len(sessions) == 0


def test_closing_is_idempotent_and_close_all_counts(sessions):
    id_, session = sessions.open(FakeLease)
    sessions.close(id_)
    sessions.close(id_)
    sessions.close("never there")
    assert session.released == 1
    _, other = sessions.open(FakeLease)
    assert sessions.close_all() == 1
    assert sessions.close_all() == 0
    assert other.released == 1


def test_session_whose_client_is_gone_is_closed_within_seconds_unless_it_is_used_again(sessions, clock):
    lost_id, lost = sessions.open(FakeLease)
    back_id, back = sessions.open(FakeLease)
    for id_ in (lost_id, back_id):
        with sessions.hold(id_, lambda: None):
            clock.now_s += 50
    clock.now_s += ABANDONED_S - 1
    with sessions.use(back_id):
        pass
    clock.now_s += 1
    assert sessions.close_idle() == 1
    assert (lost.released, back.released) == (1, 0)
    with sessions.hold(back_id, lambda: None):
        clock.now_s += ABANDONED_S
        assert sessions.close_idle() == 0


def test_session_is_held_until_the_last_of_its_clients_is_gone(sessions, clock):
    id_, _ = sessions.open(FakeLease)
    with sessions.hold(id_, lambda: None):
        with sessions.hold(id_, print):
            pass
        clock.now_s += ABANDONED_S
        assert sessions.close_idle() == 0
    clock.now_s += ABANDONED_S
    assert sessions.close_idle() == 1


def test_holds_end_once_with_the_session_and_all_of_them_when_the_agent_stops(sessions, clock):
    ended = []
    (first, _), (second, _) = sessions.open(FakeLease), sessions.open(FakeLease)
    with sessions.hold(first, lambda: ended.append(1)), sessions.hold(second, lambda: ended.append(2)):
        sessions.close(first)
        assert ended == [1]
        sessions.end_holds()
        assert ended == [1, 2]
        with sessions.hold(second, lambda: ended.append(3)):
            assert ended == [1, 2, 3]
    clock.now_s += ABANDONED_S  # no client has gone: the agent has ended the calls
    assert sessions.close_idle() == 0
    with pytest.raises(SessionError, match="not open"), sessions.hold(first, lambda: None):
        pass


def test_full_agent_closes_what_is_idle_least_recently_used_first_and_says_so_to_its_owner(sessions, clock):
    (_, first), (second_id, second) = sessions.open(FakeLease), sessions.open(FakeLease)
    clock.now_s += GIVES_WAY_S
    with sessions.use(second_id):
        pass
    sessions.open(FakeLease)
    assert (first.released, second.released) == (1, 0)
    clock.now_s += GIVES_WAY_S - 1
    with pytest.raises(SessionLimitError, match="all are in use"):
        sessions.open(FakeLease)
    with sessions.hold(second_id, lambda: None):
        pass
    sessions.open(FakeLease)  # the client of the second one is gone
    assert second.released == 1
    with pytest.raises(SessionError, match="another one needed its place"), sessions.use(second_id):
        pass


def test_model_is_given_up_if_all_that_use_it_are_idle(clock):
    sessions = Sessions(limit=9, idle_s=60, clock=clock)
    shared, lent, own = object(), object(), object()
    busy_id, busy = sessions.open(lambda: FakeLease(shared))
    _, idle = sessions.open(lambda: FakeLease(shared))
    _, second = sessions.open(lambda: FakeLease(own))
    sessions.open(lambda: FakeLease(lent))
    users = {shared: 2, lent: 2, own: 1}  # a call uses the one that is lent
    assert sessions.least_recently_used(users) is None
    clock.now_s += GIVES_WAY_S
    with sessions.use(busy_id):
        assert sessions.least_recently_used(users) is own
        sessions.give_up(shared)
        assert (idle.released, busy.released) == (1, 0)
    sessions.give_up(own)
    assert second.released == 1
