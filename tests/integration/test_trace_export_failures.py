"""Collectors that hang, refuse, fail or die: the cost, the counts and the messages."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from trace_collectors import COLLECTORS, HOST, Seen, hanging, jaeger_http, otlp_grpc, otlp_http

from inferometer.agent.tracing.collectors import OtlpGrpcCollector, OtlpHttpCollector
from inferometer.agent.tracing.exporting import ExportReport, TraceAddress, TraceExport
from inferometer.agent.tracing.jaeger import JaegerHttpCollector, JaegerUdpCollector
from inferometer.agent.tracing.recorder import SpanChunk, SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.manifests.errors import ConfigurationError

TRACE_ID = "0" * 31 + "7"
PATIENT_S = 60.0
BOUND_S = 30.0  # of what must take 0.3 s, on a machine that may be busy; without a bound it takes forever
OVER_TCP = ("", "http://", "jaeger+http://")
HTTP = {"http://": otlp_http, "jaeger+http://": jaeger_http}


def chunks(count: int) -> tuple[SpanChunk, ...]:
    recorder = SpanRecorder(TraceContext(TRACE_ID), TraceLevel.FULL_TRACE)
    kind = SpanKind.of("conv1", TraceLevel.FRAMEWORK_TRACE)
    for number in range(count):
        recorder.add(kind, number, number + 1, 7)
    return recorder.chunks()


def export_to(address: str, count: int, grace_s: float = PATIENT_S) -> ExportReport:
    export = TraceExport.open(TraceAddress.parse(address))
    export.send(TRACE_ID, chunks(count))
    return export.close(grace_s)


class Attempts:
    """Counts the deliveries that have begun, of every kind of collector."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._begun = threading.Semaphore(0)
        for collector in (OtlpGrpcCollector, OtlpHttpCollector, JaegerUdpCollector, JaegerHttpCollector):
            patch.setattr(collector, "deliver", self._counted(collector.deliver))

    def _counted(self, deliver: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: object) -> None:
            self._begun.release()
            deliver(*arguments)

        return counted

    def export_until_repeated(self, address: str, count: int, grace_s: float) -> ExportReport:
        """Closes an export once a second delivery has begun, when the first has failed for a known reason."""
        export = TraceExport.open(TraceAddress.parse(address))
        export.send(TRACE_ID, chunks(count))
        for _ in range(2):
            assert self._begun.acquire(timeout=PATIENT_S)
        return export.close(grace_s)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Tells of deliveries, so that no test waits for as long as one may take on a busy machine."""
    return Attempts(monkeypatch)


def wait_for_acknowledgements(export: TraceExport) -> None:
    """Waits until a collector has answered; that spans have arrived does not mean that it has."""
    assert export.wait_below(1, PATIENT_S)


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens at, and nobody gets while it is held."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("scheme", OVER_TCP)
def test_a_collector_that_hangs_costs_the_grace_and_no_more(scheme: str) -> None:
    with hanging() as port:
        started = time.monotonic()
        report = export_to(f"{scheme}{HOST}:{port}", 2000, grace_s=0.3)
        took_s = time.monotonic() - started

    assert 0.3 <= took_s < BOUND_S
    assert (report.delivered, report.undelivered, report.reason) == (0, 2000, "no answer within 0.3 s")


@pytest.mark.parametrize("scheme", OVER_TCP)
def test_a_port_that_refuses_costs_the_grace_and_the_reason_is_said(
    scheme: str, closed_port: int, attempts: Attempts
) -> None:
    started = time.monotonic()
    report = attempts.export_until_repeated(f"{scheme}{HOST}:{closed_port}", 2000, grace_s=0.1)

    assert time.monotonic() - started < BOUND_S
    assert (report.delivered, report.undelivered) == (0, 2000)
    assert "Connection refused" in report.reason


def test_a_port_that_refuses_packets_is_said_where_the_host_tells(
    closed_port: int, attempts: Attempts
) -> None:
    report = attempts.export_until_repeated(f"jaeger://{HOST}:{closed_port}", 2000, grace_s=0.0)

    assert (report.delivered, report.undelivered, report.reason) == (0, 2000, "Connection refused")


@pytest.mark.parametrize("scheme", ["http://", "jaeger://", "jaeger+http://"])
def test_a_host_without_an_address_is_said(
    scheme: str, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    report = attempts.export_until_repeated(f"{scheme}nowhere", 3, grace_s=0.0)

    assert (report.delivered, report.undelivered, report.reason) == (0, 3, "Name or service not known")


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize(("status", "reason"), [(500, "Internal Server Error"), (404, "Not Found")])
def test_what_an_http_server_refuses_is_counted_and_not_sent_again(
    scheme: str, status: int, reason: str
) -> None:
    seen = Seen(lambda number: (status, {}, b"no") if number else None)

    with HTTP[scheme](seen) as port:
        report = export_to(f"{scheme}{HOST}:{port}", 1500)

    assert (report.delivered, report.undelivered) == (512, 988)
    assert report.reason == f"HTTP {status} {reason}"
    assert seen.requests == 3


@pytest.mark.parametrize("scheme", HTTP)
def test_what_an_http_server_cannot_take_now_is_sent_again(scheme: str) -> None:
    seen = Seen(lambda number: (503, {}, b"busy") if number in {1, 2} else None)

    with HTTP[scheme](seen) as port:
        report = export_to(f"{scheme}{HOST}:{port}", 1500)

    assert (report.delivered, report.undelivered, report.reason) == (1500, 0, "")
    assert seen.requests == 5
    assert len(seen.spans) == 1500


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((302, {"Location": "/ui/"}, b""), "HTTP 302 Found, to /ui/"),
        (
            (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>"),
            "the server there is not a collector",
        ),
        ((200, {"Content-Type": "application/x-protobuf"}, b"\xff"), "an invalid answer of OTLP"),
    ],
    ids=["redirect", "web page", "garbage"],
)
def test_an_http_server_that_is_no_collector_does_not_count_as_one(answer: object, reason: str) -> None:
    seen = Seen(lambda number: answer)

    with otlp_http(seen) as port:
        report = export_to(f"http://{HOST}:{port}", 3)

    assert (report.delivered, report.undelivered) == (0, 3)
    assert reason in report.reason
    assert seen.requests == 1


def test_what_grpc_refuses_is_counted_and_not_sent_again() -> None:
    seen = Seen(lambda number: grpc.StatusCode.INVALID_ARGUMENT if number == 1 else None)

    with otlp_grpc(seen) as port:
        report = export_to(f"{HOST}:{port}", 1500)

    assert (report.delivered, report.undelivered) == (988, 512)
    assert report.reason == "INVALID_ARGUMENT: said the test"
    assert seen.requests == 3


def test_what_grpc_cannot_take_now_is_sent_again() -> None:
    seen = Seen(lambda number: grpc.StatusCode.UNAVAILABLE if number in {1, 2} else None)

    with otlp_grpc(seen) as port:
        report = export_to(f"{HOST}:{port}", 1500)

    assert (report.delivered, report.undelivered) == (1500, 0)
    assert (seen.requests, len(seen.spans)) == (5, 1500)


@pytest.mark.parametrize("scheme", ["", "http://"], ids=["grpc", "http"])
def test_spans_that_a_collector_rejects_are_counted(scheme: str) -> None:
    part = ExportTracePartialSuccess(rejected_spans=5, error_message="too old")
    response = ExportTraceServiceResponse(partial_success=part)
    over_http = (200, {"Content-Type": "application/x-protobuf"}, response.SerializeToString())
    seen = Seen(lambda number: over_http if scheme else response)

    with COLLECTORS[scheme](seen) as port:
        report = export_to(f"{scheme}{HOST}:{port}", 600)

    assert (report.delivered, report.undelivered, report.reason) == (590, 10, "rejected: too old")


@pytest.mark.parametrize("scheme", OVER_TCP)
def test_a_collector_that_dies_costs_what_it_had_not_acknowledged(scheme: str) -> None:
    seen = Seen()
    with ExitStack() as collector:
        port = collector.enter_context(COLLECTORS[scheme](seen))
        export = TraceExport.open(TraceAddress.parse(f"{scheme}{HOST}:{port}"))
        export.send(TRACE_ID, chunks(512))
        wait_for_acknowledgements(export)

    started = time.monotonic()
    export.send(TRACE_ID, chunks(1000))
    report = export.close(0.3)

    assert time.monotonic() - started < BOUND_S
    assert (report.delivered, report.undelivered) == (512, 1000)
    assert report.reason


def test_a_collector_that_comes_back_gets_everything() -> None:
    before, after = Seen(), Seen()
    with otlp_grpc(before) as port:
        export = TraceExport.open(TraceAddress.parse(f"{HOST}:{port}"))
        export.send(TRACE_ID, chunks(512))
        wait_for_acknowledgements(export)
    export.send(TRACE_ID, chunks(1000))
    with otlp_grpc(after, port):
        report = export.close(PATIENT_S)

    assert (report.delivered, report.undelivered) == (1512, 0)
    assert (len(before.spans), len(after.spans)) == (512, 1000)


def test_a_failing_export_prints_nothing_and_does_not_hold_up_the_end(closed_port: int) -> None:
    code = f"""
import numpy as np
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.agent.tracing.exporting import TraceAddress
from inferometer.agent.tracing.exporting import TraceExport
from inferometer.agent.tracing.recorder import SpanChunk, SpanKind
columns = [np.zeros(2000, np.int64) for _ in range(7)]
columns[1] += 1
kind = SpanKind.of("conv\\udcff", TraceLevel.FRAMEWORK_TRACE, big=2**70, bad="\\udcff")
chunk = SpanChunk((kind,), *columns)
for scheme in {[*COLLECTORS]!r}:
    export = TraceExport.open(TraceAddress.parse(f"{{scheme}}{HOST}:{closed_port}"))
    export.send({TRACE_ID!r}, [chunk])
    print(export.close(0.3).undelivered)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT_S)

    assert (done.stdout, done.stderr) == ("2000\n" * len(COLLECTORS), "")


@pytest.mark.parametrize("address", ["localhost", "http://localhost"])
def test_an_environment_variable_that_makes_no_sense_is_one_line_at_the_start(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")

    with pytest.raises(ConfigurationError, match="zip") as refused:
        TraceExport.open(TraceAddress.parse(address))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scheme", OVER_TCP)
def test_a_collector_on_this_machine_is_not_looked_for_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch, scheme: str, closed_port: int
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:{closed_port}")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    seen = Seen()

    with COLLECTORS[scheme](seen) as port:
        report = export_to(f"{scheme}{HOST}:{port}", 3, grace_s=5.0)

    assert (report.delivered, len(seen.spans)) == (3, 3)


def test_headers_of_the_environment_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    seen = Seen()

    with otlp_http(seen) as port:
        export_to(f"http://{HOST}:{port}", 1)

    assert seen.headers["x-token"] == "secret"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package look as if it was not installed."""

    def hide(package: str) -> None:
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, "inferometer.agent.tracing.jaeger", raising=False)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize("package", ["thrift", "deprecated", "opentelemetry.exporter.jaeger"])
def test_a_missing_extra_is_said_with_the_command_that_installs_it(
    without: Callable[[str], None], package: str
) -> None:
    without("opentelemetry.exporter.jaeger")
    without(package)

    with pytest.raises(ConfigurationError, match=r'run: pip install "inferometer\[jaeger\]"$'):
        TraceExport.open(TraceAddress.parse("jaeger://localhost"))
