"""Calls are retried only after a lost connection."""

import grpc
import pytest

from inferometer.client.remote.native.calls import retried

LOST = "Connection reset by peer"


class Failure(grpc.RpcError):
    def __init__(self, code=grpc.StatusCode.UNAVAILABLE, details=LOST, metadata=()):
        self._values = code, details, metadata

    def code(self):
        return self._values[0]

    def details(self):
        return self._values[1]

    def trailing_metadata(self):
        return self._values[2]


class Calls:
    """Gives one outcome after the other, on a clock that pauses move on."""

    def __init__(self, *outcomes, takes_s=0.0):
        self._outcomes = list(outcomes)
        self._takes_s = takes_s
        self.now_s = 0.0
        self.limits = []
        self.pauses = []

    def __call__(self, left_s):
        self.limits.append(left_s)
        self.now_s += self._takes_s
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self, seconds):
        self.pauses.append(seconds)
        self.now_s += seconds

    def made(self, timeout_s=None, tries=3):
        return retried(self, timeout_s, tries=tries, wait=self.wait, clock=lambda: self.now_s)


def test_lost_connection_is_tried_again_after_growing_pauses():
    calls = Calls(Failure(), Failure(), "answer")
    assert calls.made() == "answer"
    assert calls.pauses == pytest.approx([0.1, 0.4])


@pytest.mark.parametrize(
    "failure",
    [
        Failure(details="failed to connect: Connection refused"),
        Failure(details="Socket closed", metadata=(("inferometer-error", "StoreError"),)),
        Failure(grpc.StatusCode.DEADLINE_EXCEEDED),
        Failure(grpc.StatusCode.INTERNAL),
        Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, LOST),
    ],
    ids=["refused", "answered", "late", "internal", "full"],
)
def test_everything_else_is_raised_at_once(failure):
    calls = Calls(failure, "answer")
    with pytest.raises(Failure) as error:
        calls.made()
    assert error.value is failure
    assert calls.pauses == []


def test_tries_are_bounded_and_the_first_reason_is_raised():
    first, refused = Failure(), Failure(details="Connection refused")
    with pytest.raises(Failure) as error:
        Calls(first, refused).made(tries=2)
    assert error.value is first
    later = Failure(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(Failure) as error:
        Calls(first, later).made(tries=2)
    assert error.value is later


def test_all_tries_together_keep_the_deadline():
    calls = Calls(Failure(), Failure(), "answer", takes_s=1.0)
    assert calls.made(timeout_s=10.0) == "answer"
    assert calls.limits == pytest.approx([10.0, 8.9, 7.5])
    calls = Calls(Failure(), "answer", takes_s=1.0)
    with pytest.raises(Failure):
        calls.made(timeout_s=1.05)
    assert len(calls.limits) == 1
