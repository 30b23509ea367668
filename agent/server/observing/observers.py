"""Who is told of what an agent does. Each observer takes what it wants; none may raise, or take long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc

from agent.server.observing.call import Call


class CallObserver(Protocol):
    """Is told of every call, from the thread that answers it."""

    def call_began(self, call: Call) -> None:
        """A thread has taken the call."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """The call was answered, or broken off; from ``call_began`` on, a stream to its end."""


class PredictionObserver(Protocol):
    """Is told of every prediction, from the thread that made it, and of what is wrong with them."""

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """A model has run on a batch of so many inputs."""

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """A model has failed on a batch."""

    def prediction_hangs(self, model: str) -> None:
        """A prediction takes longer than one may; told once of each."""


class QueueObserver(Protocol):
    """Is told how long requests waited for their batch to begin."""

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """A batch has begun whose requests waited so long each, in nanoseconds."""
