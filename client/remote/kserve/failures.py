"""The errors of calls to a server of the Open Inference Protocol, over gRPC or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from inferometer.agent.protocol.status import one_line
from inferometer.client.remote.channel.address import KServeAddress
from inferometer.client.remote.channel.failures import Hints, explain
from inferometer.manifests.errors import AgentError, PredictionError, UnknownModelError

_HINTS = Hints(
    refused="is it the port of gRPC, and not that of HTTP?",
    no_grpc="does not speak gRPC there; give the port of gRPC, and not that of HTTP",
    unauthenticated="refuses the call: {}; a secret is given with --secret",
    unimplemented="does not speak the Open Inference Protocol over gRPC ({})",
    crashed="the server",
    secure_scheme="kserves:",
)
_HTTP_HINTS = Hints(
    refused="is it the port of HTTP, and not that of gRPC?",
    no_grpc="does not speak HTTP/1.1 there; give the port of HTTP, and not that of gRPC",
    unauthenticated="refuses the call: {}; a secret is given with --secret",
    unimplemented="does not speak the Open Inference Protocol over HTTP ({})",
    crashed="the server",
    secure_scheme="kserve+https:",
)
_LOST = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""The statuses that concern the server; the others concern the one request."""


@contextmanager
def translate_errors(server: KServeAddress, what: str = "", *, late: str = "") -> Iterator[None]:
    """Raises what a call about the server, or about ``what``, raises as an error of the program.

    ``late`` is what to do if it does not answer in time.

    Raises:
        UnknownModelError: The server does not have the model.
        AgentError: The server cannot be reached, does not respond, or responds with another status.
    """
    try:
        yield
    except grpc.RpcError as error:
        text = f"server {what or server.server}: {_explain(error, server)}"
        if late and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{text}; {late}"
        kind = UnknownModelError if error.code() is grpc.StatusCode.NOT_FOUND else AgentError
        raise kind(text) from error


@contextmanager
def translate_infer_errors(server: KServeAddress) -> Iterator[None]:
    """Raises what one ``ModelInfer`` raises as an error of the program.

    Raises:
        PredictionError: The server refused this request, or failed on it; others may succeed.
        AgentError: The server or its model is gone, or did not answer in time.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise infer_error(error, server) from error


def infer_error(error: grpc.RpcError, server: KServeAddress) -> AgentError | PredictionError:
    """Returns the error of the program for what one ``ModelInfer`` raises; see ``translate_infer_errors``."""
    kind = AgentError if error.code() in _LOST else PredictionError
    return kind(f"server {server.server}: {_explain(error, server)}")


def _explain(error: grpc.RpcError, server: KServeAddress) -> str:
    code, details = error.code(), one_line(error.details() or "")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        code = grpc.StatusCode.UNAUTHENTICATED
    return explain(code, details, server.agent, _HTTP_HINTS if server.http else _HINTS)
