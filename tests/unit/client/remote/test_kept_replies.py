"""Replies of a load that are kept unread, and when they are read after all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferometer.client.remote import call_target
from inferometer.client.remote.call_target import TRUST_NS, CallFlight
from inferometer.client.remote.call_target import Outcome as CallOutcome
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import Outcome, QueryLog

QUERIES = 8


class Answered:
    """A call that is over."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        done(self)


class Run:
    """Sends one query after the other at times of its own, each of which gets a reply at once."""

    def __init__(self) -> None:
        schedule = Schedule(np.arange(QUERIES, dtype=np.int64), "one by one", 1.0)
        self.log = QueryLog(schedule, 0)
        self.now_ns = 0
        self.read: list[bytes] = []
        outcome: Callable[[Any], bytes] = lambda call: call.reply  # noqa: E731 - typed
        self.flight = CallFlight(self.log, outcome, self._read)

    def _read(self, reply: bytes) -> CallOutcome:
        self.read.append(reply)
        return CallOutcome(1) if reply.startswith(b"right") else CallOutcome(0, "wrong")

    def send(self, at_ns: int, reply: bytes) -> Outcome:
        """Sends the next query, and returns its outcome as it is known at once."""
        self.now_ns = at_ns
        query = self.log.sent_count
        self.log.sent(query, at_ns)
        begin: Any = lambda _: Answered(reply)  # noqa: E731 - typed
        self.flight.send(query, b"request", begin)
        return Outcome(self.log.queries().outcome[query])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    found = Run()
    monkeypatch.setattr(call_target, "time", SimpleNamespace(perf_counter_ns=lambda: found.now_ns))
    return found


def test_server_that_turns_wrong_is_noticed_during_the_run(run: Run) -> None:
    assert run.send(1, b"right 1") is Outcome.ANSWERED
    assert run.send(2, b"wrong 2") is Outcome.ANSWERED  # as far as is known
    assert run.send(TRUST_NS + 1, b"wrong 3") is Outcome.FAILED
    assert run.send(TRUST_NS + 2, b"wrong 4") is Outcome.FAILED
    assert run.read == [b"right 1", b"wrong 3", b"wrong 4"]
    assert run.log.late(10 * TRUST_NS, TRUST_NS) == 2  # which is what ends a run early

    assert run.send(TRUST_NS + 3, b"right 5") is Outcome.ANSWERED
    assert run.send(TRUST_NS + 4, b"right 6") is Outcome.ANSWERED
    assert run.read[3:] == [b"right 5"]

    run.flight.cancel()
    assert run.read[4:] == [b"wrong 2", b"right 6"]
    assert run.log.reasons == {"wrong": 3}


def test_server_that_is_right_has_a_reply_read_from_time_to_time(run: Run) -> None:
    for at_ns in (0, 1, TRUST_NS - 1, TRUST_NS, TRUST_NS + 1, 2 * TRUST_NS):
        assert run.send(at_ns, b"right %d" % at_ns) is Outcome.ANSWERED
    assert run.read == [b"right %d" % at_ns for at_ns in (0, TRUST_NS, 2 * TRUST_NS)]
