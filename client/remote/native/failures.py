"""Maps failed calls to an agent to the program's errors, and retries calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import grpc

from inferometer.agent.protocol.status import ERROR_CLASS_KEY, STATUS_CODES, one_line
from inferometer.client.remote.channel.failures import Hints, explain
from inferometer.manifests.errors import AgentError, DeadlineError, InferometerError

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 4
_TRIES = 3
_CLASSES = {kind.__name__: kind for kind in STATUS_CODES}
_BUSY = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
_HINTS = Hints(
    refused="is `agent serve` running there?",
    no_grpc="speaks no gRPC there; is it the port of an agent, and not that of its metrics or a web server?",
    unauthenticated="requires a secret; give the right one with --secret",
    unimplemented="does not offer this; is it an inferometer agent, and of this version? ({})",
    crashed="the agent",
)
_OPENED_HINTS = replace(
    _HINTS, unreached="cannot be reached any more:", refused="was it stopped, or has it crashed?"
)
_TOO_LARGE = re.compile(r"message larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")


@contextmanager
def translate_errors(agent: object, *, opened: bool = False) -> Iterator[None]:
    """Raises what gRPC raises within as an error of the program.

    Args:
        agent: The agent's address.
        opened: Whether the agent has opened a model for this client, and so was reached before.

    Raises:
        AgentError: The agent cannot be reached, was lost, or broke the protocol.
        InferometerError: Of the class that the agent named.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise translate(error, agent, _OPENED_HINTS if opened else _HINTS) from error


def translate(error: grpc.RpcError, agent: object, hints: Hints = _HINTS) -> InferometerError:
    """Returns the program's error for one that a call of gRPC raised."""
    details = one_line(error.details() or "")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # both ends notice it together
        return DeadlineError(f"agent {agent}: did not answer in time")
    named = _CLASSES.get(_named_class(error))
    if named is not None:
        return named(details)
    if too_large := _TOO_LARGE.search(details):
        return AgentError(
            f"agent {agent}: a message of {too_large['size']} bytes is larger than its limit of "
            f"{too_large['limit']}; use a smaller --batch_size here, or serve it with a larger "
            "--max_message_mb"
        )
    return AgentError(f"agent {agent}: {explain(error.code(), details, agent, hints)}")


def busy_with(error: grpc.RpcError, agent: object) -> str | None:
    """Returns why an agent that has answered a health check may be too busy for another call, or None."""
    if error.code() not in _BUSY:
        return None
    return str(translate(error, agent)).removeprefix(f"agent {agent}: ")


def _named_class(error: grpc.RpcError) -> str:
    metadata: Any = error.trailing_metadata()  # pairs, whatever grpc's types say
    return str(dict(metadata or ()).get(ERROR_CLASS_KEY, ""))


def retried(
    call: Callable[[float | None], _Answer],
    timeout_s: float | None,
    *,
    tries: int = _TRIES,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Answer:
    """Makes a call, and retries it after a growing pause if the connection was lost.

    Only calls that change nothing are retried: those that list and describe, and ``Predict``. ``Open`` is
    not, as each call opens a model; nor are streams, whose progress is unknown, nor the queries of a load,
    which have failed. A refused connection is not retried either, because nobody listens there.

    Args:
        call: Makes the call, within the seconds that it is given.
        timeout_s: How long all tries may take together, in seconds; None sets no limit.
        tries: The most tries.
        wait: Pauses for seconds.
        clock: A monotonic clock in seconds.

    Raises:
        grpc.RpcError: The last try failed. What is raised is why the connection was lost first, which says
            more than that nobody listens any more.
    """
    began_s = clock()
    pause_s = _FIRST_PAUSE_S
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
                if first is None or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                raise first from error
            first = first or error
        wait(pause_s)
        pause_s *= _PAUSE_GROWTH
    raise ValueError(f"{tries} tries are none")


def _connection_lost(error: grpc.RpcError) -> bool:
    """Returns whether an established connection was lost."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or _named_class(error):  # the agent has answered
        return False
    details = (error.details() or "").casefold()
    return any(sign in details for sign in ("reset", "closed", "broken pipe", "keepalive"))
