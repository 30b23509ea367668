"""What gRPC raises, as errors of the program that say in one line what happened to which agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from agent.server.status import ERROR_CLASS_KEY, STATUS_CODES, one_line
from client.remote.connecting import explain_closed, explain_handshake
from manifests.errors import AgentError, DeadlineError, InferscopeError

_CLASSES = {kind.__name__: kind for kind in STATUS_CODES}
_BUSY = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)
_TOO_LARGE = re.compile(r"message larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")


@contextmanager
def told(agent: object) -> Iterator[None]:
    """Turns what gRPC raises within into an error of the program.

    Args:
        agent: The agent's address.

    Raises:
        AgentError: The agent cannot be reached, was lost, or broke the protocol.
        InferscopeError: Of the class that the agent named.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise translate(error, agent) from error


def translate(error: grpc.RpcError, agent: object) -> InferscopeError:
    """Returns the program's error for one that a call of gRPC raised."""
    details = one_line(error.details() or "")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # the agent and this side find it out together
        return DeadlineError(f"agent {agent}: did not answer in time")
    named = _CLASSES.get(_named_class(error))
    if named is not None:
        return named(details)
    return AgentError(f"agent {agent}: {_explain(error.code(), details, agent)}")


def busy_with(error: grpc.RpcError, agent: object) -> str | None:
    """Returns why an agent that has told its health did not tell more; None where it is not for being busy.

    Args:
        error: What a call raised after its health had answered.
        agent: Its address.
    """
    if error.code() not in _BUSY:
        return None
    return str(translate(error, agent)).removeprefix(f"agent {agent}: ")


def _named_class(error: grpc.RpcError) -> str:
    metadata: Any = error.trailing_metadata()  # pairs, whatever grpc's types say
    return str(dict(metadata or ()).get(ERROR_CLASS_KEY, ""))


def _explain(code: grpc.StatusCode, details: str, agent: object) -> str:
    if too_large := _TOO_LARGE.search(details):
        return (
            f"a message of {too_large['size']} bytes is larger than its limit of {too_large['limit']}; "
            "use a smaller --batch_size here, or serve it with a larger --max_message_mb"
        )
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return (
                explain_handshake(details) or explain_closed(agent, details) or _explain_unavailable(details)
            )
        case grpc.StatusCode.CANCELLED:
            return "broke the call off"
        case grpc.StatusCode.UNAUTHENTICATED:
            return "asks for a secret; give the right one with --secret"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"does not offer this; is it an inferscope agent, and of this version? ({details})"
    return f"{code.name.lower().replace('_', ' ')}: {details}"


def _explain_unavailable(details: str) -> str:
    lowered = details.casefold()
    if "connection refused" in lowered:
        return "cannot be reached: connection refused; is `agent serve` running there?"
    if "http1" in lowered or "http/2" in lowered:
        return (
            "speaks no gRPC there; is it the port of an agent, and not that of its metrics or a web server?"
        )
    if "dns" in lowered or "name resolution" in lowered or "domain name" in lowered:
        return "cannot be reached: the host's name is not known"
    if "timed out" in lowered or "timeout" in lowered or "unreachable" in lowered:
        return "cannot be reached: no connection within the time allowed"
    if "shutting down" in lowered or "goaway" in lowered or "cancelling all calls" in lowered:
        return "is stopping, and did not finish the call"
    if "reset" in lowered or "closed" in lowered or "broken pipe" in lowered:
        return "the connection was lost; the agent was stopped or has crashed"
    return f"is not available: {details}"
