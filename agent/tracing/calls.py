"""The spans of calls between processes, named by OpenTelemetry's conventions for gRPC."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from inferometer.agent.tracing.span import Attributes, AttributeValue, SpanKind, SpanRole, TraceLevel

OK = "OK"
_CODES = (
    OK,
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""The names of gRPC's status codes, each at its number."""
_SERVER_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""The codes with which a server's span has failed; of the others the client is the cause."""


def client_call(path: str, host: str, port: int) -> SpanKind:
    """Returns the span of a call of the method at ``package.Service/Method``, to a server."""
    return _call(SpanRole.CLIENT, path, {"server.address": host.strip("[]"), "server.port": port})


def server_call(path: str, peer: str, listens_at: Attributes = ()) -> SpanKind:
    """Returns the span of a call that a client has made.

    ``peer`` is the client's address, as gRPC writes it; ``listens_at`` the attributes of the server's.
    """
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if kind not in {"ipv4", "ipv6"} or not port.isdecimal():
        return _call(SpanRole.SERVER, path, dict(listens_at))
    client: dict[str, AttributeValue] = {"client.address": host.strip("[]"), "client.port": int(port)}
    return _call(SpanRole.SERVER, path, {**dict(listens_at), **client})


def ended(call: SpanKind, code: str) -> SpanKind:
    """Returns the span of a call that has ended with a status code."""
    attributes = dict(call.attributes)
    attributes["rpc.grpc.status_code"] = _CODES.index(code)
    if code != OK and (call.role is SpanRole.CLIENT or code in _SERVER_FAULTS):
        attributes["error.type"] = code
    return replace(call, attributes=tuple(sorted(attributes.items())))


def _call(role: SpanRole, path: str, more: dict[str, AttributeValue]) -> SpanKind:
    service, _, method = path.rpartition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, **more}
    return SpanKind(path, TraceLevel.APPLICATION_TRACE, tuple(sorted(attributes.items())), role)
