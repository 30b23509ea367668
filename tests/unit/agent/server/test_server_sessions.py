"""The sessions of a served agent: their limit, idle timeout and closing."""

import threading

import pytest

from inferometer.agent.server.native.sessions import Sessions
from inferometer.manifests.errors import DeviceError, SessionError, SessionLimitError


class FakeSession:
    closed = 0

    def close(self):
        self.closed += 1


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
    (first, _), (second, _) = sessions.open(FakeSession), sessions.open(FakeSession)
    assert first != second
    assert len(first) >= 20


def test_limit_counts_what_is_open(sessions):
    first, _ = sessions.open(FakeSession)
    sessions.open(FakeSession)
    with pytest.raises(SessionLimitError, match="limit of 2 sessions"):
        sessions.open(FakeSession)
    sessions.close(first)
    sessions.open(FakeSession)


def test_session_that_fails_to_open_takes_no_place(sessions):
    def fail():
        raise DeviceError("no GPU")

    for _ in range(3):
        with pytest.raises(DeviceError):
            sessions.open(fail)
    assert len(sessions) == 0
    sessions.open(FakeSession)
    sessions.open(FakeSession)


def test_limit_holds_while_sessions_are_being_opened(sessions):
    begun, go = threading.Barrier(3), threading.Event()

    def slowly():
        begun.wait(30)
        go.wait(30)
        return FakeSession()

    threads = [threading.Thread(target=sessions.open, args=(slowly,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    with pytest.raises(SessionLimitError):
        sessions.open(FakeSession)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(sessions) == 2


def test_idle_session_is_closed_and_a_used_one_is_not(sessions, clock):
    idle_id, idle = sessions.open(FakeSession)
    used_id, used = sessions.open(FakeSession)
    with sessions.use(used_id):
        clock.now_s += 1000
        assert sessions.close_idle() == 1
        assert (idle.closed, used.closed) == (1, 0)
    # Its idle time begins when its use ends.
    clock.now_s += 59
    assert sessions.close_idle() == 0
    clock.now_s += 1
    assert sessions.close_idle() == 1
    for id_ in (idle_id, used_id):
        with pytest.raises(SessionError, match="not open"), sessions.use(id_):
            pass


def test_full_agent_closes_an_idle_session_for_a_new_one(sessions, clock):
    _, old = sessions.open(FakeSession)
    clock.now_s += 60
    sessions.open(FakeSession)
    assert old.closed == 1


def test_session_closed_in_use_is_closed_by_the_last_one_that_leaves(sessions):
    id_, session = sessions.open(FakeSession)
    with sessions.use(id_):
        with sessions.use(id_):
            sessions.close(id_)
            with pytest.raises(SessionError), sessions.use(id_):
                pass
        assert session.closed == 0
        assert len(sessions) == 1
    assert session.closed == 1
    assert len(sessions) == 0


def test_closing_is_idempotent_and_close_all_counts(sessions):
    id_, session = sessions.open(FakeSession)
    sessions.close(id_)
    sessions.close(id_)
    sessions.close("never there")
    assert session.closed == 1
    _, other = sessions.open(FakeSession)
    assert sessions.close_all() == 1
    assert sessions.close_all() == 0
    assert other.closed == 1
