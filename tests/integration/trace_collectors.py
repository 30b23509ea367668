"""Trace collectors in this process, which decode what arrives over the socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.exporter.jaeger.thrift.gen.agent import Agent
from opentelemetry.exporter.jaeger.thrift.gen.jaeger.ttypes import Batch, TagType
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TTransport import TMemoryBuffer

HOST = "127.0.0.1"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class SeenSpan:
    """A span as a collector decoded it; times in ns."""

    name: str
    trace_id: str
    parent_id: int
    start_ns: int
    duration_ns: int
    attributes: dict
    scope: str
    failed: bool
    role: str = "internal"
    links: tuple[tuple[str, int], ...] = ()
    resource: dict = field(default_factory=dict, compare=False)


class Seen:
    """What arrived, and what is answered to it.

    Args:
        answer: Called with the number of the request, from 0, before its spans count; raises or returns what
            the collector answers instead of success.
    """

    def __init__(self, answer: Callable[[int], object] = lambda number: None) -> None:
        self.spans: dict[int, SeenSpan] = {}
        self.resources: list[dict] = []
        self.sizes: list[int] = []
        self.requests = 0
        self.headers: dict[str, str] = {}
        self.changed = threading.Condition()
        self._answer = answer

    def answer(self) -> object:
        with self.changed:
            number, self.requests = self.requests, self.requests + 1
            self.changed.notify_all()
        return self._answer(number)

    def add(self, resource: dict, spans: dict[int, SeenSpan]) -> None:
        with self.changed:
            assert not self.spans.keys() & spans.keys(), "a span came twice"
            self.spans.update(spans)
            self.resources.append(resource)
            self.sizes.append(len(spans))
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), f"{len(self.spans)} spans came"


@contextmanager
def otlp_grpc(seen: Seen, port: int = 0) -> Iterator[int]:
    """Serves OTLP over gRPC, and gives its port."""

    class Servicer(TraceServiceServicer):
        def Export(self, request, context):
            answer = seen.answer()
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "said the test")
            if not isinstance(answer, ExportTraceServiceResponse):
                _add_otlp(seen, request)
            return answer or ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    add_TraceServiceServicer_to_server(Servicer(), server)
    bound = server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(0).wait()


@contextmanager
def otlp_http(seen: Seen) -> Iterator[int]:
    """Serves OTLP over HTTP, and gives its port."""

    def take(path: str, kind: str, body: bytes) -> bytes:
        assert (path, kind) == ("/v1/traces", "application/x-protobuf")
        _add_otlp(seen, ExportTraceServiceRequest.FromString(body))
        return ExportTraceServiceResponse().SerializeToString()

    with _http(seen, take, "application/x-protobuf") as port:
        yield port


@contextmanager
def jaeger_http(seen: Seen) -> Iterator[int]:
    """Serves Jaeger's Thrift over HTTP, and gives its port."""

    def take(path: str, kind: str, body: bytes) -> bytes:
        assert (path, kind) == ("/api/traces?format=jaeger.thrift", "application/x-thrift")
        batch = Batch()
        batch.read(TBinaryProtocol(TMemoryBuffer(body)))
        _add_jaeger(seen, batch)
        return b""

    with _http(seen, take, "text/plain") as port:
        yield port


@contextmanager
def jaeger_udp(seen: Seen) -> Iterator[int]:
    """Takes Jaeger's Thrift over UDP, and gives its port."""

    class Reader:
        def emitBatch(self, batch):
            _add_jaeger(seen, batch)

    def read() -> None:
        processor = Agent.Processor(Reader())
        while packet := opened.recv(100_000):
            assert len(packet) < 65_000
            processor.process(TCompactProtocol(TMemoryBuffer(packet)), None)

    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as opened:
        opened.bind((HOST, 0))
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield opened.getsockname()[1]
        finally:
            opened.sendto(b"", opened.getsockname())
            reader.join()


@contextmanager
def zipkin(seen: Seen) -> Iterator[int]:
    """Serves Zipkin's JSON over HTTP, and gives its port."""

    def take(path: str, kind: str, body: bytes) -> bytes:
        assert (path, kind) == ("/api/v2/spans", "application/json")
        _add_zipkin(seen, json.loads(body))
        return b""

    with _http(seen, take, "text/plain") as port:
        yield port


COLLECTORS = {
    "": otlp_grpc,
    "http://": otlp_http,
    "jaeger://": jaeger_udp,
    "jaeger+http://": jaeger_http,
    "zipkin://": zipkin,
}
"""Each kind, by what stands before the host in its address."""


@contextmanager
def hanging() -> Iterator[int]:
    """Accepts connections and never says a word."""
    with closing(socket.create_server((HOST, 0))) as listening:
        yield listening.getsockname()[1]


@contextmanager
def _http(seen: Seen, take: Callable[[str, str, bytes], bytes], kind: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.headers.update(self.headers)
            answer = seen.answer()
            status, headers, content = answer or (200, {"Content-Type": kind}, None)
            if content is None:
                content = take(self.path, self.headers["Content-Type"], body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Nothing: a test's output is no place for it."""

    connections = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self):
            connections.append(super().get_request())
            return connections[-1]

    with Server((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
            for connection, _ in connections:
                with suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)


def _add_otlp(seen: Seen, request: ExportTraceServiceRequest) -> None:
    for of_resource in request.resource_spans:
        resource = {pair.key: _otlp_value(pair.value) for pair in of_resource.resource.attributes}
        spans = {}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                spans[int.from_bytes(span.span_id, "big")] = SeenSpan(
                    span.name,
                    span.trace_id.hex(),
                    int.from_bytes(span.parent_span_id, "big"),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano - span.start_time_unix_nano,
                    {pair.key: _otlp_value(pair.value) for pair in span.attributes},
                    of_scope.scope.name,
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    tuple((link.trace_id.hex(), int.from_bytes(link.span_id, "big")) for link in span.links),
                    resource,
                )
        seen.add(resource, spans)


def _otlp_value(value) -> object:
    if value.WhichOneof("value") == "array_value":
        return tuple(_otlp_value(element) for element in value.array_value.values)
    return getattr(value, value.WhichOneof("value"))


_OF_JAEGER = {"span.kind", "error"}


def _add_jaeger(seen: Seen, batch: Batch) -> None:
    process = {tag.key: _jaeger_value(tag) for tag in batch.process.tags}
    resource = {"service.name": batch.process.serviceName, **process}
    spans = {}
    for span in batch.spans:
        tags = {tag.key: _jaeger_value(tag) for tag in span.tags}
        spans[span.spanId] = SeenSpan(
            span.operationName,
            _jaeger_trace_id(span),
            span.parentSpanId,
            span.startTime * 1000,
            span.duration * 1000,
            {
                key: value
                for key, value in tags.items()
                if key not in _OF_JAEGER and not key.startswith("otel.")
            },
            tags["otel.scope.name"],
            tags.get("error", False),
            tags["span.kind"],
            tuple((_jaeger_trace_id(ref), ref.spanId) for ref in span.references or ()),
            resource,
        )
    seen.add(resource, spans)


def _jaeger_trace_id(of) -> str:
    return f"{of.traceIdHigh % 2**64:016x}{of.traceIdLow % 2**64:016x}"


def _jaeger_value(tag) -> object:
    kinds = {
        TagType.STRING: tag.vStr,
        TagType.BOOL: tag.vBool,
        TagType.LONG: tag.vLong,
        TagType.DOUBLE: tag.vDouble,
    }
    return kinds[tag.vType]


_OF_RESOURCE = ("service.", "host.", "process.", "os.", "telemetry.", "deployment.")


def _add_zipkin(seen: Seen, received: list[dict]) -> None:
    spans, resource = {}, {}
    for span in received:
        tags = {key: _zipkin_value(value) for key, value in span["tags"].items()}
        told = {key: value for key, value in tags.items() if key.startswith(_OF_RESOURCE)}
        resource = {"service.name": span["localEndpoint"]["serviceName"], **told}
        spans[int(span["id"], 16)] = SeenSpan(
            span["name"],
            span["traceId"],
            int(span.get("parentId", "0"), 16),
            span["timestamp"] * 1000,
            span["duration"] * 1000,
            {
                key: value
                for key, value in tags.items()
                if key not in told and key != "error" and not key.startswith("otel.")
            },
            tags["otel.scope.name"],
            "error" in tags,
            span.get("kind", "INTERNAL").lower(),
            resource=resource,
        )
    seen.add(resource, spans)


def _zipkin_value(text: str) -> object:
    """What a tag was; a text that looks like another value cannot be told from it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value
