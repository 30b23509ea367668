"""Calls that are made again when the connection was lost under them.

Only calls are that may be made twice: those that list and describe, and ``Predict``, which answers the same
to the same and changes nothing. ``Open`` is not, as each call opens a model; nor are streams, of which nobody
knows how far they came: what was lost with a stream is done again by the pool of agents, where there is one.
Nor are the queries of a load: one that was lost has failed, and is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from agent.server.status import ERROR_CLASS_KEY

_Answer = TypeVar("_Answer")
FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 4
_TRIES = 3


def retried(
    call: Callable[[float | None], _Answer],
    timeout_s: float | None,
    *,
    tries: int = _TRIES,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Answer:
    """Makes a call, and makes it again after a growing pause where the connection was lost.

    A connection that is refused is not tried again: nobody listens there, which is better said at once.

    Args:
        call: Makes it, within the time that it is given, in seconds.
        timeout_s: How long all tries may take together, in seconds; None waits.
        tries: How often it is made at the most.
        wait: Pauses for so many seconds.
        clock: A monotonic clock in seconds.

    Raises:
        grpc.RpcError: It failed, and once more would come too late or do no good. What is raised is why the
            connection was lost first: that nobody listens any more says less.
    """
    began_s = clock()
    pause_s = FIRST_PAUSE_S
    left_s = timeout_s
    first: grpc.RpcError | None = None
    for left in range(tries - 1, -1, -1):
        try:
            return call(left_s)
        except grpc.RpcError as error:
            if timeout_s is not None:
                left_s = timeout_s - (clock() - began_s) - pause_s
            lost = _connection_lost(error)
            if not left or not lost or (left_s is not None and left_s <= 0):
                if first is None or not _unavailable(error):
                    raise
                raise first from error
            first = first or error
        wait(pause_s)
        pause_s *= _PAUSE_GROWTH
    raise ValueError(f"{tries} tries are none")


def _connection_lost(error: grpc.RpcError) -> bool:
    """Whether a connection that there was has gone, and a new one may do."""
    if not _unavailable(error):
        return False
    metadata: Any = error.trailing_metadata()  # pairs, whatever grpc's types say
    if ERROR_CLASS_KEY in dict(metadata or ()):
        return False  # the agent itself has answered
    details = (error.details() or "").casefold()
    return any(sign in details for sign in ("reset", "closed", "broken pipe", "keepalive"))


def _unavailable(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.UNAVAILABLE
