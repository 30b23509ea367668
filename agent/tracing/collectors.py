"""Collectors for OTLP, over gRPC or HTTP, and for Zipkin's JSON, version 2, over HTTP.

``CollectorSession`` makes a single attempt over HTTP, whose error states the cause. OpenTelemetry's exporters
encode spans for OTLP, and read headers, certificates and compression from their ``OTEL_EXPORTER_OTLP_…``
variables. They only log the reason for a failed attempt, and retry after seconds. Each is therefore given a
transport that raises ``DeliveryError``, which they propagate. For Zipkin, spans are translated as
OpenTelemetry's Zipkin exporter specification requires. Zipkin has no resources, lists or links: the resource
becomes tags of each span, lists become JSON, and links are left out.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import requests
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from requests import Response

from inferometer.agent.tracing.exporting import (
    AGAIN_STATUSES,
    ATTEMPT_TIMEOUT_S,
    Collector,
    DeliveryError,
    TraceAddress,
    innermost,
)

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk.trace.export import SpanExportResult


class CollectorSession(requests.Session):
    """A session that raises DeliveryError for every response that does not come from a collector."""

    def __init__(self, address: TraceAddress) -> None:
        super().__init__()
        # requests merges these with the proxies of the environment
        self._proxies_of_calls = {"no_proxy": address.host} if address.is_loopback else None

    def post(self, url: str | bytes, data: Any = None, json: Any = None, **given: Any) -> Response:
        """Sends a request; see ``requests.Session.post``."""
        proxies = self._proxies_of_calls
        try:
            # a redirected POST becomes a GET, and its answer looks like success
            answer = super().post(url, data, json, allow_redirects=False, proxies=proxies, **given)
        except requests.Timeout as error:
            raise DeliveryError(f"no answer within {ATTEMPT_TIMEOUT_S:g} s", again=True) from error
        except requests.ConnectionError as error:
            raise DeliveryError(innermost(error), again=True) from error
        except requests.RequestException as error:
            raise DeliveryError(innermost(error)) from error
        status = status_of(answer)
        if answer.is_redirect:
            raise DeliveryError(f"{status}, to {answer.headers['Location']}")
        if not 200 <= answer.status_code < 300:
            raise DeliveryError(status, again=answer.status_code in AGAIN_STATUSES)
        if kind_of(answer) == "text/html":
            raise DeliveryError(f"{status} with a web page: the server there is not a collector")
        return answer


def status_of(answer: Response) -> str:
    """Returns the status of a response in words."""
    return f"HTTP {answer.status_code} {answer.reason}"


def kind_of(answer: Response) -> str:
    """Returns the media type of a response."""
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


# what may be sent again according to the specification of OTLP
_AGAIN_CODES = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
# Any: the exporter's types allow text only, but it passes the options to grpc unchanged.
_CHANNEL_OPTIONS: Any = (
    # a restarted collector is found within a second, and not within gRPC's two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class OtlpGrpcCollector(Collector):
    """A collector for OTLP over gRPC, without TLS."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        # imported here, so that this module does not load grpc
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        self.span_resource = resource
        self._error = grpc.RpcError
        self._exporter = OTLPSpanExporter(
            endpoint=f"http://{address.netloc}",
            insecure=True,
            timeout=ATTEMPT_TIMEOUT_S,
            channel_options=(*_CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(not address.is_loopback))),
        )
        stub = self._exporter._client
        self._call = stub.Export
        stub.Export = self._export

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102 - as in Collector, here and below
        _check_exported(self._exporter.export(spans))

    def close(self) -> None:  # noqa: D102
        # not the exporter's shutdown, which logs a warning if a delivery is about to begin
        self._exporter._channel.close()

    def _export(self, request: Any, metadata: Any, timeout: float) -> ExportTraceServiceResponse:
        try:
            response: ExportTraceServiceResponse = self._call(request, metadata=metadata, timeout=timeout)
        except self._error as error:
            name = error.code().name
            reason = f"{name}: {error.details()}" if error.details() else name
            raise DeliveryError(reason, again=name in _AGAIN_CODES) from error
        _check_taken(response)
        return response


class OtlpHttpCollector(Collector):
    """A collector for OTLP over HTTP or HTTPS, in protobuf."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        class Session(CollectorSession):
            """Also raises DeliveryError for a response in which a collector rejects spans."""

            def post(self, url: str | bytes, data: Any = None, json: Any = None, **given: Any) -> Response:
                answer = super().post(url, data, json, **given)
                _check_http_answer(answer)
                return answer

        self.span_resource = resource
        self._session = Session(address)
        self._exporter = OTLPSpanExporter(
            endpoint=address.url, timeout=ATTEMPT_TIMEOUT_S, session=self._session
        )

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102
        _check_exported(self._exporter.export(spans))

    def close(self) -> None:  # noqa: D102
        self._session.close()


def _check_exported(result: SpanExportResult) -> None:
    """Raises DeliveryError if an exporter has failed for a reason that it only logged."""
    if result.name != "SUCCESS":
        raise DeliveryError("OpenTelemetry's exporter failed")


def _check_http_answer(response: Response) -> None:
    """Raises DeliveryError unless the server has accepted all spans."""
    if kind_of(response) == "application/x-protobuf":
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        try:
            answer = ExportTraceServiceResponse.FromString(response.content)
        except DecodeError as error:
            raise DeliveryError(f"{status_of(response)} with an invalid answer of OTLP") from error
        _check_taken(answer)


def _check_taken(answer: ExportTraceServiceResponse) -> None:
    """Raises DeliveryError if a collector has rejected some of the spans."""
    rejected = answer.partial_success.rejected_spans
    if rejected:
        raise DeliveryError(f"rejected: {answer.partial_success.error_message}", lost=rejected)


_NS_PER_US = 1000
_KINDS = {SpanKind.CLIENT: "CLIENT", SpanKind.SERVER: "SERVER"}
_PEERS = {SpanKind.CLIENT: "server", SpanKind.SERVER: "client"}
"""The side whose address is in a call's attributes, for both kinds of spans."""


class ZipkinCollector(Collector):
    """A collector for Zipkin's JSON over HTTP: a Zipkin, or a Jaeger that accepts it."""

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
    """Returns the other side of a call; Zipkin accepts only IP addresses."""
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
    """Returns a value as text for a tag: numbers, booleans and lists become JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
