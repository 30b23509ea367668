"""The collector that speaks Zipkin's JSON, version 2, over HTTP.

Spans are translated as OpenTelemetry's specification of the Zipkin exporter says. Zipkin has no resource,
no lists and no links: the resource becomes tags of each span, lists become JSON, and links are left out.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from inferometer.agent.tracing.address import TraceAddress
from inferometer.agent.tracing.exporting import ATTEMPT_TIMEOUT_S, Collector
from inferometer.agent.tracing.http_session import CollectorSession

_NS_PER_US = 1000
_KINDS = {SpanKind.CLIENT: "CLIENT", SpanKind.SERVER: "SERVER"}
_PEERS = {SpanKind.CLIENT: "server", SpanKind.SERVER: "client"}
"""Whose address the attributes of a call name, from either side."""


class ZipkinCollector(Collector):
    """Zipkin's JSON over HTTP, to a Zipkin or to a Jaeger that listens for it."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        self.span_resource = resource
        self._url = address.url
        self._session = CollectorSession(address)

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102 - as in Collector, here and below
        body = json.dumps(list(map(_zipkin_span, spans)), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        self._session.post(self._url, body, headers=headers, timeout=ATTEMPT_TIMEOUT_S)

    def close(self) -> None:  # noqa: D102
        self._session.close()


def _zipkin_span(span: ReadableSpan) -> dict[str, Any]:
    context, attributes = span.context, span.attributes or {}
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    resource = dict(span.resource.attributes)
    found: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "id": f"{context.span_id:016x}",
        "name": span.name,
        "timestamp": _microseconds(start_ns),
        "duration": max(1, _microseconds(end_ns - start_ns)),  # 0 means that it is not known
        "localEndpoint": {"serviceName": str(resource.pop(SERVICE_NAME, "inferometer"))},
        "tags": {key: _text(value) for key, value in {**resource, **attributes}.items()},
    }
    if span.parent is not None:
        found["parentId"] = f"{span.parent.span_id:016x}"
    if span.kind in _KINDS:
        found["kind"] = _KINDS[span.kind]
        found |= _remote_endpoint(attributes, _PEERS[span.kind])
    if span.status.status_code is StatusCode.ERROR:
        found["tags"] |= {"otel.status_code": "ERROR", "error": span.status.description or "true"}
    if span.instrumentation_scope is not None:
        found["tags"]["otel.scope.name"] = span.instrumentation_scope.name
        found["tags"]["otel.scope.version"] = span.instrumentation_scope.version or ""
    return found


def _remote_endpoint(attributes: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Returns the other side of a call; only an IP address has a place there."""
    try:
        address = ipaddress.ip_address(str(attributes.get(f"{side}.address", "")))
    except ValueError:
        return {}
    endpoint: dict[str, Any] = {f"ipv{address.version}": str(address)}
    if (port := attributes.get(f"{side}.port")) is not None:
        endpoint["port"] = port
    return {"remoteEndpoint": endpoint}


def _microseconds(time_ns: int) -> int:
    return (time_ns + _NS_PER_US // 2) // _NS_PER_US


def _text(value: object) -> str:
    """Returns a value as a tag, which is a text: numbers and truth values as in JSON, and so lists."""
    if isinstance(value, str):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
