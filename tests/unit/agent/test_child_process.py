"""Child processes: how they start, and how they end early."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection

import pytest

from inferometer.agent import child_process
from inferometer.agent.child_process import end_children, start_child
from inferometer.agent.hardware import allocator
from inferometer.manifests.errors import ConfigurationError, DatasetError


def stays(connection: Connection) -> None:
    connection.close()
    signal.pause()


def test_a_process_that_only_closes_its_connection_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_MOST_END_S", 0.1)
    child = start_child("the reader", stays)
    try:
        assert child.process.name == "the reader"
        with pytest.raises(DatasetError, match=r"^the reader closed its connection .*, and was killed$"):
            child.receive()
        assert child.has_ended
    finally:
        end_children([child])


def tells_the_allocator(connection: Connection) -> None:
    connection.send((allocator.allocator_in_use(), allocator._configure.cache_info().currsize))


def test_a_process_has_the_allocator_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allocator.VARIABLE, "keep")
    child = start_child("the reader", tells_the_allocator)
    try:
        assert child.receive() == (allocator.Allocator.KEEP, 1)
    finally:
        end_children([child])


def test_a_daemon_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"^a daemonic process cannot start the reader; create"):
        start_child("the reader", stays)
