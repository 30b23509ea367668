"""Exports recorded spans to a collector at an address, in the background and within limits.

Defines a collector's address (its protocol, host, port and path), the interface of a collector, and the
thread that delivers spans.
"""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pkgutil import resolve_name
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from inferometer.agent.hardware.environment import process_resource
from inferometer.agent.tracing.recorder import MAX_SPANS, Attributes, SpanChunk
from inferometer.manifests.errors import ConfigurationError, one_line

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan


JAEGER_UI_PORT = 16686
_ALLOWED = (
    "HOST[:PORT], http[s]://HOST[:PORT][/PATH], jaeger://HOST[:PORT], jaeger+http://HOST[:PORT] or "
    "zipkin://HOST[:PORT]"
)
TRACE_ID_MARK = "{trace_id}"
"""The placeholder for the trace id in a template of links."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_MAX_PORT = 65_535
_SHOWN = 80


class TraceProtocol(Enum):
    """A collector's protocol: its common name, and an address's scheme, default port and default path.

    The last value is the module and the class of its ``Collector``.
    """

    def __init__(self, title: str, scheme: str, port: int, path: str, collector: str) -> None:
        self.title = title
        self.scheme = scheme
        self.port = port
        self.path = path
        self.collector = collector

    OTLP_GRPC = ("OTLP/gRPC", "", 4317, "", "collectors:OtlpGrpcCollector")
    OTLP_HTTP = ("OTLP/HTTP", "http", 4318, "/v1/traces", "collectors:OtlpHttpCollector")
    OTLP_HTTPS = ("OTLP/HTTPS", "https", 4318, "/v1/traces", "collectors:OtlpHttpCollector")
    JAEGER_UDP = ("Jaeger Thrift over UDP", "jaeger", 6831, "", "jaeger:JaegerUdpCollector")
    JAEGER_HTTP = (
        "Jaeger Thrift over HTTP",
        "jaeger+http",
        14268,
        "/api/traces?format=jaeger.thrift",
        "jaeger:JaegerHttpCollector",
    )
    ZIPKIN = ("Zipkin's JSON over HTTP", "zipkin", 9411, "/api/v2/spans", "collectors:ZipkinCollector")


@dataclass(frozen=True, slots=True)
class TraceAddress:
    """The address of a collector, to which spans are sent.

    ``host`` is a name, an IPv4 address, or an IPv6 address without its brackets; ``path`` is the path and
    query on an HTTP server, with its leading slash; it is empty for other protocols.
    """

    protocol: TraceProtocol
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> TraceAddress:
        """Returns the address that ``--tracer_address`` names; raises ConfigurationError if it is not valid.

        A bare ``HOST`` means OTLP/gRPC, ``http://`` and ``https://`` OTLP/HTTP, ``jaeger://`` Jaeger's Thrift
        over UDP, ``jaeger+http://`` Jaeger's Thrift over HTTP, and ``zipkin://`` Zipkin's JSON over HTTP. The
        port of Jaeger's web pages, on which no Jaeger accepts spans, is replaced by the default port.
        """
        given = text.strip()
        scheme, separator, _ = given.rpartition("://")
        protocol = next((p for p in TraceProtocol if p.scheme == scheme.lower()), None)
        if protocol is None or bool(separator) != bool(protocol.scheme):
            raise _refused(text)
        if any(character.isspace() or not character.isprintable() for character in given):
            raise _refused(text)  # urlsplit would remove some of them
        try:
            parts = urlsplit(given if separator else f"//{given}")
        except ValueError:  # its own message does not help, such as "Invalid IPv6 URL"
            raise _refused(text) from None
        host = _host(text, parts)
        port = _port(text, parts)
        asked = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
        if parts.fragment or (asked and not protocol.path):
            raise _refused(text)
        if port is None or (port == JAEGER_UI_PORT and not asked):
            port = protocol.port
        return cls(protocol, host, port, asked or protocol.path)

    @property
    def netloc(self) -> str:
        """The host and the port, in the form used in URLs."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        """The URL that accepts spans; only valid for protocols over HTTP."""
        scheme = "https" if self.protocol is TraceProtocol.OTLP_HTTPS else "http"
        return f"{scheme}://{self.netloc}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, which no proxy can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").rpartition(".")[2] == "localhost"

    def trace_url(self, trace_id: str) -> str:
        """Returns a trace's web page in a Zipkin at this address, or a Jaeger on this host's usual port."""
        if self.protocol is TraceProtocol.ZIPKIN:
            return f"http://{self.netloc}/zipkin/traces/{trace_id}"
        return f"http://{self._bracketed}:{JAEGER_UI_PORT}/trace/{trace_id}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        """Returns the full address, in a form that ``parse`` accepts."""
        scheme = self.protocol.scheme
        return f"{scheme}://{self.netloc}{self.path}" if scheme else self.netloc


@dataclass(frozen=True, slots=True)
class TraceLink:
    """The web pages of traces, if they differ from those that the collector's address implies.

    ``template`` is a URL that contains ``{trace_id}``.
    """

    template: str

    @classmethod
    def parse(cls, text: str) -> TraceLink:
        """Parses ``--trace_url``; raises ConfigurationError if it is not valid.

        A URL without ``{trace_id}`` is taken as the address of a Jaeger.
        """
        given = text.strip()
        try:
            parts = urlsplit(given)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in {"http", "https"} or not given.isprintable() or " " in given:
            raise ConfigurationError(
                f"trace url {given[:_SHOWN]!r}: allowed: http[s]://HOST[:PORT] of a Jaeger, or a URL with "
                f"{TRACE_ID_MARK} in it"
            )
        if "@" in parts.netloc:  # the link is displayed and stored
            raise ConfigurationError("trace url: it must not contain a user or a password")
        return cls(given if TRACE_ID_MARK in given else f"{given.rstrip('/')}/trace/{TRACE_ID_MARK}")

    def of(self, trace_id: str) -> str:
        """Returns the web page of a trace."""
        return self.template.replace(TRACE_ID_MARK, trace_id)


def _host(text: str, parts: SplitResult) -> str:
    """Returns the host; raises ConfigurationError if it is not valid."""
    host = parts.hostname or ""
    if "@" in parts.netloc:
        # without the address, which contains a password
        raise ConfigurationError(
            "tracer address: it must not contain a user or a password; OTEL_EXPORTER_OTLP_HEADERS may"
        )
    if parts.netloc.startswith("["):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _refused(text, f'"{host[:_SHOWN]}" is not an IPv6 address') from None
    elif parts.netloc.count(":") > 1:
        raise _refused(text, "an IPv6 address must be in brackets, such as [::1]:4317")
    elif not _HOST_NAME.fullmatch(host):
        raise _refused(text)
    return host


def _port(text: str, parts: SplitResult) -> int | None:
    """Returns the port, or None if none is given; raises ConfigurationError if it is not valid."""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise _refused(text, f"the port must be 1 to {_MAX_PORT}")
    return port


def _refused(text: str, what: str = f"allowed: {_ALLOWED}") -> ConfigurationError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return ConfigurationError(f"tracer address {shown!r}: {what}")


ATTEMPT_TIMEOUT_S = 10.0
"""The time limit of one delivery attempt."""
AGAIN_STATUSES = {429, 502, 503, 504}
"""The HTTP statuses after which a later attempt may succeed."""
_LONGEST_REASON = 240


class DeliveryError(Exception):
    """A collector did not accept ``lost`` spans, or any if None; ``again`` if a later attempt may succeed."""

    def __init__(self, reason: str, *, again: bool = False, lost: int | None = None) -> None:
        self.reason = one_line(reason, _LONGEST_REASON) or "it gave no reason"
        self.again = again
        self.lost = lost
        super().__init__(self.reason)


class Collector(ABC):
    """One connection to a collector, which opens with the first delivery.

    ``deliver`` is called from one thread, ``close`` from any thread, even during a delivery.
    """

    span_resource: Resource
    """The resource of this process."""

    @abstractmethod
    def deliver(self, spans: Sequence[ReadableSpan]) -> None:
        """Sends spans with the same resource in one attempt; returns once the collector has accepted them.

        Raises DeliveryError if the collector did not accept all of them.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the connection, and cancels a delivery in progress as far as the protocol allows."""


def innermost(error: BaseException) -> str:
    """Returns the operating system's message from an error that libraries have wrapped."""
    said = str(error)
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said or type(error).__name__


BATCH_SPANS = 512
"""The number of spans in one delivery; no more than these exist as objects at any time."""
GRACE_S = 1.0
"""How long ``close`` waits without progress before it gives up."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The outcome of an export.

    ``delivered`` counts the spans that the collector has acknowledged, or over UDP those that were sent;
    ``undelivered`` counts all others, including those whose acknowledgement did not arrive in time.
    ``reason`` is the most frequent reason.
    """

    address: TraceAddress
    delivered: int
    undelivered: int
    reason: str = ""

    def __str__(self) -> str:
        kind = f"{self.address} ({self.address.protocol.title})"
        if self.undelivered:
            total = self.delivered + self.undelivered
            return f"{self.undelivered:,} of {total:,} spans were not delivered to {kind}: {self.reason}"
        if self.address.protocol is TraceProtocol.JAEGER_UDP:
            return f"{self.delivered:,} spans sent to {kind}; UDP does not say whether they arrived"
        return f"{self.delivered:,} spans delivered to {kind}"


class TraceExport:
    """Spans on their way to one collector. Thread-safe.

    The first ``send`` connects. If the collector cannot be reached, deliveries are retried with growing
    pauses until ``close`` gives up; rejected spans are not sent again. At most ``limit`` spans wait; a chunk
    that does not fit is dropped and its spans are counted. ``close`` also closes the collector.
    """

    def __init__(
        self,
        address: TraceAddress,
        collector: Collector,
        *,
        limit: int = MAX_SPANS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._collector = collector
        self._limit = limit
        self._clock = clock
        self._changed = threading.Condition()
        self._given_up = threading.Event()
        self._queue: deque[tuple[str, SpanChunk]] = deque()
        self._worker: threading.Thread | None = None
        self._closing = False
        self._closed = False
        self._waiting = 0
        self._delivered = 0
        self._lost: Counter[str] = Counter()
        self._trouble = ""
        self._progress_s = clock()

    @classmethod
    def open(cls, address: TraceAddress, resource: Attributes | None = None) -> TraceExport:
        """Returns an export whose libraries are loaded, without connecting.

        ``resource`` applies to spans whose chunk specifies none; None means this process's resource. Raises
        ConfigurationError if a package that the protocol requires is not installed, or one of OpenTelemetry's
        environment variables is not valid.
        """
        try:
            from inferometer.agent.tracing.readable import otel_resource

            opener = resolve_name(f"inferometer.agent.tracing.{address.protocol.collector}")
            collector = opener(address, otel_resource(process_resource() if resource is None else resource))
        except ImportError as error:
            extra = "[jaeger]" if address.protocol.scheme.startswith("jaeger") else ""
            raise ConfigurationError(
                f'tracer address "{address}": {error.name or error} is not installed; '
                f'run: pip install "inferometer{extra}"'
            ) from error
        except Exception as error:  # the exporters raise various errors for their own variables
            reason = DeliveryError(innermost(error)).reason
            raise ConfigurationError(f'tracer address "{address}": {reason}') from error
        return cls(address, collector)

    def send(self, trace_id: str, chunks: Iterable[SpanChunk]) -> None:
        """Queues spans for delivery and returns immediately."""
        with self._changed:
            for chunk in chunks:
                if self._closing:
                    self._lost["the export was closed"] += len(chunk)
                elif self._waiting + len(chunk) > self._limit:
                    self._lost[f"more than {self._limit:,} spans were waiting"] += len(chunk)
                else:
                    self._queue.append((trace_id, chunk))
                    self._waiting += len(chunk)
            if self._waiting and self._worker is None:
                # a daemon, so that a hanging delivery does not block the exit of the process
                self._worker = threading.Thread(target=self._run, name="trace-export", daemon=True)
                self._worker.start()
            self._changed.notify_all()

    def wait_below(self, spans: int, grace_s: float = GRACE_S) -> bool:
        """Waits until fewer than ``spans`` wait; returns False after ``grace_s`` seconds without progress."""
        with self._changed:
            self._progress_s = self._clock()
            while self._waiting >= spans:
                left_s = self._progress_s + grace_s - self._clock()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            return True

    def close(self, grace_s: float = GRACE_S) -> ExportReport:
        """Waits for the deliveries, closes the connection and returns the report; it never raises.

        It waits as long as the collector accepts spans, and gives up after ``grace_s`` seconds without
        progress. Further calls return the same report.
        """
        try:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self.wait_below(1, grace_s)
        finally:  # also when the user interrupts
            report = self._give_up(grace_s)
        return report

    def _give_up(self, grace_s: float) -> ExportReport:
        """Counts waiting spans as undelivered, and closes the connection."""
        with self._changed:
            self._given_up.set()
            if self._waiting:
                self._lost[self._trouble or f"no answer within {grace_s:g} s"] += self._waiting
                self._waiting = 0
                self._queue.clear()
            closed, self._closed = self._closed, True
            lost = self._lost.total()
            reason = self._lost.most_common(1)[0][0] if lost else ""
            report = ExportReport(self.address, self._delivered, lost, reason)
        if not closed:
            with suppress(Exception):  # a broken connection must not fail a run
                self._collector.close()
        return report

    def _run(self) -> None:
        """Delivers until the export is closed and no spans wait, or until it gives up."""
        from inferometer.agent.tracing.readable import otel_resource, readable_spans

        own = self._collector.span_resource
        while taken := self._next():
            resource = otel_resource(taken[0][1].resource) if taken[0][1].resource else own
            together: list[ReadableSpan] = []  # what several chunks have, which fits into one batch
            for trace_id, chunk in taken:
                left = len(chunk)
                try:
                    for batch in readable_spans(trace_id, chunk, resource, BATCH_SPANS):
                        if len(taken) > 1:
                            together += batch
                        else:
                            self._deliver(batch)
                        left -= len(batch)
                        if self._given_up.is_set():
                            return
                except Exception as error:  # noqa: BLE001 - a chunk that cannot be read must not hold up the others
                    self._settle(0, left, f"{type(error).__name__}: {error}")
            if together:
                self._deliver(together)

    def _next(self) -> list[tuple[str, SpanChunk]]:
        """Waits for a chunk; returns it with others that fit into the same batch, or nothing at the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            taken: list[tuple[str, SpanChunk]] = []
            spans = 0
            while self._queue:
                chunk = self._queue[0][1]
                spans += len(chunk)
                if taken and (spans > BATCH_SPANS or chunk.resource != taken[0][1].resource):
                    break
                taken.append(self._queue.popleft())
            return taken

    def _deliver(self, batch: list[ReadableSpan]) -> None:
        """Delivers a batch, with retries if they can help."""
        pause_s = _FIRST_PAUSE_S
        while not self._given_up.is_set():
            try:
                self._collector.deliver(batch)
            except DeliveryError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - an exporter that fails must not end the run
                failure = DeliveryError(f"{type(error).__name__}: {error}")
            else:
                return self._settle(len(batch), 0, "")
            if not failure.again:
                lost = len(batch) if failure.lost is None else min(failure.lost, len(batch))
                return self._settle(len(batch) - lost, lost, failure.reason)
            with self._changed:
                self._trouble = failure.reason
            self._given_up.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _settle(self, delivered: int, lost: int, reason: str) -> None:
        """Counts a batch's spans, unless the export has given up and thus counted them already."""
        with self._changed:
            if self._given_up.is_set():
                return
            self._waiting -= delivered + lost
            self._delivered += delivered
            if lost:
                self._lost[reason] += lost
            if delivered:
                self._progress_s = self._clock()
            self._trouble = reason
            self._changed.notify_all()
