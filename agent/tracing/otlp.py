"""Collectors that speak OTLP, over gRPC and over HTTP.

OpenTelemetry's exporters encode the spans, and read headers, certificates and compression from their
``OTEL_EXPORTER_OTLP_…`` variables. They hide the reason of a failed attempt, log it, and retry after seconds.
Each therefore has a transport that raises ``DeliveryError``, which they propagate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferometer.agent.tracing.address import TraceAddress
from inferometer.agent.tracing.exporting import ATTEMPT_TIMEOUT_S, Collector, DeliveryError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from requests import Response

# what may be sent again according to the specification of OTLP
_AGAIN_CODES = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
# Any: the exporter's types allow text only, but it passes the options to grpc unchanged.
_CHANNEL_OPTIONS: Any = (
    # a restarted collector is found within a second, and not within gRPC's two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class OtlpGrpcCollector(Collector):
    """OTLP over gRPC, without TLS."""

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
    """OTLP over HTTP or HTTPS, in protobuf."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from inferometer.agent.tracing.http_session import CollectorSession

        class Session(CollectorSession):
            """Also raises DeliveryError for an answer by which OTLP rejects spans."""

            def post(self, url: str | bytes, data: Any = None, json: Any = None, **given: Any) -> Response:
                answer = super().post(url, data, json, **given)
                _check_answer(answer)
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
    """Raises DeliveryError if an exporter failed for a reason that it has logged."""
    if result.name != "SUCCESS":
        raise DeliveryError("OpenTelemetry's exporter failed")


def _check_answer(response: Response) -> None:
    """Raises DeliveryError unless a server has accepted all spans."""
    from inferometer.agent.tracing.http_session import kind_of, status_of

    if kind_of(response) == "application/x-protobuf":
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        try:
            answer = ExportTraceServiceResponse.FromString(response.content)
        except DecodeError as error:
            raise DeliveryError(f"{status_of(response)} with what is no answer of OTLP") from error
        _check_taken(answer)


def _check_taken(answer: ExportTraceServiceResponse) -> None:
    """Raises DeliveryError if a collector has rejected some of the spans."""
    rejected = answer.partial_success.rejected_spans
    if rejected:
        raise DeliveryError(f"rejected: {answer.partial_success.error_message}", lost=rejected)
