"""What gRPC raises when a server of the Open Inference Protocol is asked, as errors of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from agent.server.status import one_line
from client.remote.connecting import explain_closed, explain_handshake
from client.remote.kserve.address import KServeAddress
from manifests.errors import AgentError, InferscopeError, PredictionError, UnknownModelError

_LOST = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""The statuses after which the next request is of no use; the others are about the one request."""


@contextmanager
def asked(server: KServeAddress, what: str = "", *, late: str = "") -> Iterator[None]:
    """Turns what gRPC raises while a server is asked about itself or a model into an error of the program.

    Args:
        server: The server's address.
        what: What it is asked about; by default the server itself.
        late: What to do where it does not answer in time.

    Raises:
        UnknownModelError: It does not have the model.
        AgentError: It cannot be reached, or does not answer, or not with what it was asked for.
    """
    try:
        yield
    except grpc.RpcError as error:
        text = f"server {what or server.server}: {_explain(error, server)}"
        if late and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{text}; {late}"
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise UnknownModelError(text) from error
        raise AgentError(text) from error


@contextmanager
def inferring(server: KServeAddress) -> Iterator[None]:
    """Turns what gRPC raises for one ``ModelInfer`` into an error of the program.

    Args:
        server: The server's address.

    Raises:
        PredictionError: The server refused this request, or failed at it; others may do.
        AgentError: The server, or its model, is not there any more, or did not answer in time.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise inference_error(error, server) from error


def inference_error(error: grpc.RpcError, server: KServeAddress) -> InferscopeError:
    """Returns the program's error for one that a ``ModelInfer`` has raised; see ``inferring``."""
    kind = AgentError if error.code() in _LOST else PredictionError
    return kind(f"server {server.server}: {_explain(error, server)}")


def _explain(error: grpc.RpcError, server: KServeAddress) -> str:
    code, details = error.code(), one_line(error.details() or "")
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            about_tls = explain_handshake(details) or explain_closed(server.agent, details)
            return about_tls.replace("grpcs:", "kserves:") if about_tls else _explain_unavailable(details)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "did not answer in time"
        case grpc.StatusCode.CANCELLED:
            return "broke the call off"
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return f"refuses the call: {details}; a secret is given with --secret"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"does not speak the Open Inference Protocol over gRPC ({details or 'unimplemented'})"
    return f"{code.name.lower().replace('_', ' ')}: {details}"


def _explain_unavailable(details: str) -> str:
    lowered = details.casefold()
    if "connection refused" in lowered:
        return "cannot be reached: connection refused; is it the port of gRPC, and not that of HTTP?"
    if "http1" in lowered or "http/2" in lowered:
        return "does not speak gRPC there; give the port of gRPC, and not that of HTTP"
    if "dns" in lowered or "name resolution" in lowered or "domain name" in lowered:
        return "cannot be reached: the host's name is not known"
    if "timed out" in lowered or "timeout" in lowered or "unreachable" in lowered:
        return "cannot be reached: no connection within the time allowed"
    if "reset" in lowered or "closed" in lowered or "broken pipe" in lowered:
        return "the connection was lost; the server was stopped or has crashed"
    return f"is not available: {details}"
