"""The heartbeat on a fake clock, with a directory that is available or not."""

import logging
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from dns.resolver import NXDOMAIN

from inferometer.agent.protocol.agent_info import AgentInfo
from inferometer.client.serving.agent import Heartbeat
from inferometer.evaluators.store.opening import open_agent_directory
from inferometer.manifests.errors import ConfigurationError, StoreError

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
DEADLINE_S = 30


class Agent:
    agent_info = AgentInfo("host", "x86_64", "EPYC", (), {"Fake": "1"}, (), "0.1", START)
    open_sessions = 0


class Directory:
    """Keeps what is published; is down as long as ``down`` is set."""

    location = "db/inferometer"

    def __init__(self):
        self.down = False
        self.opened = 0
        self.closed = 0
        self.records = []
        self.removed = []
        self.changed = threading.Event()

    def open(self):
        self._check()
        self.opened += 1
        return self

    def publish(self, record):
        self._check()
        self.records.append(record)
        self.changed.set()

    def remove(self, agent_id):
        self._check()
        self.removed.append(agent_id)

    def close(self):
        self.closed += 1

    def _check(self):
        if self.down:
            raise StoreError("db/inferometer: is down")


@pytest.fixture
def directory():
    return Directory()


@pytest.fixture
def clock():
    return [START]


@pytest.fixture
def heartbeat(directory, clock):
    return Heartbeat(Agent(), "host:1", directory.open, 10.0, now=lambda: clock[0])


def test_beat_publishes_the_agent_for_three_intervals(heartbeat, directory, clock):
    assert heartbeat.beat() == 10.0
    clock[0] += timedelta(seconds=10)
    assert heartbeat.beat() == 10.0

    first, second = directory.records
    assert (first.address, first.agent_info, first.open_sessions) == ("host:1", Agent.agent_info, 0)
    assert (first.published_at, first.expires_at) == (START, START + timedelta(seconds=30))
    assert (second.published_at, second.id) == (clock[0], first.id)
    assert directory.opened == 1


def test_two_agents_have_ids_of_their_own(directory):
    for _ in range(2):
        Heartbeat(Agent(), "host:1", directory.open).beat()
    assert len({record.id for record in directory.records}) == 2


def test_directory_that_is_down_is_said_once_and_tried_again_with_growing_pauses(
    heartbeat, directory, caplog
):
    caplog.set_level(logging.INFO)
    heartbeat.beat()
    directory.down = True
    caplog.clear()

    assert [heartbeat.beat() for _ in range(8)] == [10, 20, 30, 40, 50, 60, 60, 60]

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be found: db/inferometer: is down" in caplog.text
    directory.down = False
    caplog.clear()
    assert heartbeat.beat() == 10
    assert caplog.text.count("published as host:1 in db/inferometer") == 1
    assert (directory.opened, directory.closed) == (2, 1)
    assert heartbeat.beat() == 10
    assert len(caplog.records) == 1


def test_agent_is_taken_out_when_it_stops(heartbeat, directory):
    heartbeat.start()
    assert directory.changed.wait(DEADLINE_S)
    heartbeat.stop(DEADLINE_S)

    assert directory.removed == [directory.records[0].id]
    assert directory.closed == 1
    heartbeat.stop()


def test_stop_neither_fails_nor_waits_where_the_directory_is_gone(heartbeat, directory, caplog):
    heartbeat.start()
    assert directory.changed.wait(DEADLINE_S)
    directory.down = True
    heartbeat.stop(DEADLINE_S)
    assert "expires on its own" in caplog.text
    assert directory.closed == 1


def test_stop_does_not_wait_for_a_directory_that_hangs(directory):
    hanging, entered = threading.Event(), threading.Event()

    def open_and_hang():
        entered.set()
        hanging.wait(DEADLINE_S)
        return directory

    heartbeat = Heartbeat(Agent(), "host:1", open_and_hang)
    heartbeat.start()
    assert entered.wait(DEADLINE_S)
    heartbeat.stop(0.01)
    hanging.set()


def test_directory_that_can_never_be_opened_is_said_and_not_tried_again(caplog):
    tries = []

    def refuse():
        tries.append(1)
        raise ConfigurationError("database address db makes no sense")

    heartbeat = Heartbeat(Agent(), "host:1", refuse, 0.001)
    heartbeat.start()
    heartbeat.stop(DEADLINE_S)
    assert len(tries) == 1
    assert "database address db makes no sense" in caplog.text


def test_database_that_dns_does_not_find_for_a_while_is_tried_again(directory, monkeypatch, caplog):
    failed = threading.Event()

    def resolve(*_, **__):
        failed.set()
        raise NXDOMAIN

    def open_directory():
        if failed.is_set():
            return directory.open()
        return open_agent_directory("mongodb+srv://cluster.example.org", "x", Path("unused"))

    monkeypatch.setattr("dns.resolver.resolve", resolve)
    heartbeat = Heartbeat(Agent(), "host:1", open_directory, 0.001)
    heartbeat.start()
    assert directory.changed.wait(DEADLINE_S)
    heartbeat.stop(DEADLINE_S)
    assert "cannot be found: database mongodb+srv://cluster.example.org/x cannot be used" in caplog.text
    assert "--publish" not in caplog.text


def test_stop_of_one_that_never_began_does_nothing(heartbeat, directory):
    heartbeat.stop()
    assert directory.opened == 0
