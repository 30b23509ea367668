"""The call that a thread of the agent is answering: which method, whose request, and of which model."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID_KEY = "x-request-id"
"""Metadata: what a client calls its request, and what the agent calls one that came without."""
_USABLE = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Call:
    """A call.

    Attributes:
        method: As ``package.Service/Method``.
        request_id: The client's, or one that was made here.
        trace_id: Of the trace that the client says the call belongs to; None without one.
        peer: Tells where it came from, as gRPC names it.
        model: The name of the model it is about, once that is known and is one of the agent's own.
    """

    method: str
    request_id: str
    trace_id: str | None = None
    peer: Callable[[], str] = str
    model: str = ""


class RequestIds:
    """Names for requests that came without one: unique in this process, and most likely anywhere."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def name(self, asked: str | bytes | None) -> str:
        """Returns the client's own name for its request, if that is fit for a line of a log, or another."""
        if isinstance(asked, str) and _USABLE.fullmatch(asked):
            return asked
        return f"{self._prefix}-{next(self._numbers):x}"


def enter_call(call: Call) -> None:
    """Makes this the call of the thread's context; gRPC gives each call a context of its own."""
    _CURRENT.set(call)


def current_call() -> Call | None:
    """The call that this thread answers; None in others."""
    return _CURRENT.get()


def is_about(model: str) -> None:
    """Says which model the call of this thread is about; to be called with the name in the manifest only."""
    if (call := _CURRENT.get()) is not None:
        call.model = model
