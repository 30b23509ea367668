"""Calls, and the observers of predictions and queues. An observer must not raise, and must not take long."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

REQUEST_ID_KEY = "x-request-id"
"""The metadata key of the request id, which the client sends or the agent makes."""
_USABLE = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Call:
    """A call of a method ``package.Service/Method``.

    ``request_id`` is the client's, or made here. ``trace_id`` is that of the client's trace, None without
    one; ``peer`` is as gRPC names it, "unknown" of a client that left before the call began. The model's
    name is set once it is known, and is one of the agent's own.
    """

    method: str
    request_id: str
    trace_id: str | None = None
    peer: str = ""
    model: str = ""


class RequestIds:
    """Ids of requests that came without one: unique in this process, and most likely anywhere."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def name(self, given: str | bytes | None) -> str:
        """Returns the id that the client sent, if it is fit for a line of a log, or another."""
        if isinstance(given, str) and _USABLE.fullmatch(given):
            return given
        return f"{self._prefix}-{next(self._numbers):x}"


def enter_call(call: Call) -> None:
    """Makes this the call of the current context; each call has a task, and so a context, of its own."""
    _CURRENT.set(call)


def current_call() -> Call | None:
    """The call of the current context; None outside of calls."""
    return _CURRENT.get()


def is_about(model: str) -> None:
    """Sets the model of the call in this context; the name is that of the manifest, never a client's."""
    if (call := _CURRENT.get()) is not None:
        call.model = model


class PredictionObserver(Protocol):
    """Observes every prediction, in the thread that makes it."""

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """A model has run on a batch of so many inputs."""

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """A model has failed on a batch."""

    def prediction_hangs(self, model: str) -> None:
        """A prediction takes too long; called once for each."""


class QueueObserver(Protocol):
    """Observes how long requests wait for their batch to begin."""

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """A batch has begun whose requests waited so long each, in nanoseconds."""
