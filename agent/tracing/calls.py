"""The spans of calls between processes, named according to OpenTelemetry's gRPC and HTTP conventions."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from urllib.parse import unquote

from inferometer.agent.tracing.recorder import Attributes, AttributeValue, SpanKind, SpanRole, TraceLevel

_OK = "OK"
_SERVER_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""The codes with which a server's span has failed; all other codes are caused by the client."""

_HTTP_OK, _HTTP_CLIENT_ERRORS, _HTTP_SERVER_ERRORS = 200, 400, 500


def client_call(path: str, host: str, port: int) -> SpanKind:
    """Returns the kind of span for a call to a server's method at ``package.Service/Method``."""
    return _call(SpanRole.CLIENT, path, _rpc(path) | _at("server", host, port))


def http_client_call(verb: str, template: str, host: str, port: int) -> SpanKind:
    """Returns the kind of span for a request to a server; ``template`` is its path with names in braces."""
    attributes = {"http.request.method": verb, "url.template": template, **_at("server", host, port)}
    return _call(SpanRole.CLIENT, f"{verb} {template}", attributes)


def http_server_call(title: str, scheme: str, path: str, peer: str, listens_at: Attributes = ()) -> SpanKind:
    """Returns the kind of span for a client's request for a ``path``; see ``server_call``.

    ``title`` consists of the verb and the route, which is a path with names in braces.
    """
    verb, _, route = title.partition(" ")
    attributes = {"http.request.method": verb, "http.route": route, "url.path": path, "url.scheme": scheme}
    return _call(SpanRole.SERVER, title, {**attributes, **dict(listens_at), **_client_at(peer)})


def server_call(path: str, peer: str, listens_at: Attributes = ()) -> SpanKind:
    """Returns the kind of span for a call received from a client.

    ``peer`` is the client's address in gRPC's notation; ``listens_at`` has the server's as attributes.
    """
    return _call(SpanRole.SERVER, path, _rpc(path) | dict(listens_at) | _client_at(peer))


def _client_at(peer: str) -> dict[str, AttributeValue]:
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if kind not in {"ipv4", "ipv6"} or not port.isdecimal():
        return {}
    return _at("client", host, int(port))


def _at(side: str, host: str, port: int) -> dict[str, AttributeValue]:
    return {f"{side}.address": host.strip("[]"), f"{side}.port": port}


def ended(call: SpanKind, code: Enum | None = None, http_status: int | None = None) -> SpanKind:
    """Returns the kind of span for a call once it has ended with a ``grpc.StatusCode``, or None for OK.

    A request over HTTP has its ``http_status`` instead, if there was any response.
    """
    name, number = (_OK, 0) if code is None else (code.name, code.value[0])
    attributes = dict(call.attributes)
    if "http.request.method" in attributes:
        return replace(call, attributes=_ended_http(call.role, attributes, name, http_status))
    attributes["rpc.grpc.status_code"] = number
    if name != _OK and (call.role is SpanRole.CLIENT or name in _SERVER_FAULTS):
        attributes["error.type"] = name
    return replace(call, attributes=tuple(sorted(attributes.items())))


def _ended_http(
    role: SpanRole, attributes: dict[str, AttributeValue], code: str, status: int | None
) -> Attributes:
    if status is None and code == _OK:
        status = _HTTP_OK
    if status is not None:
        attributes["http.response.status_code"] = status
    least = _HTTP_CLIENT_ERRORS if role is SpanRole.CLIENT else _HTTP_SERVER_ERRORS
    if status is None or status >= least:
        attributes["error.type"] = code if status is None else str(status)
    return tuple(sorted(attributes.items()))


def _rpc(path: str) -> dict[str, AttributeValue]:
    service, _, method = path.rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def _call(role: SpanRole, name: str, attributes: dict[str, AttributeValue]) -> SpanKind:
    return SpanKind(name, TraceLevel.APPLICATION_TRACE, tuple(sorted(attributes.items())), role)
