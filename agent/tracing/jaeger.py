"""Collectors for Jaeger's Thrift, over UDP or HTTP; they require the extra ``jaeger``.

The package of OpenTelemetry's Jaeger exporter translates and encodes the spans. The exporter itself is not
used, because it always reports success and drops spans that are too large for a packet.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.exporter.jaeger.thrift.gen.agent import Agent
from opentelemetry.exporter.jaeger.thrift.gen.jaeger.ttypes import Batch, Process, Span, Tag
from opentelemetry.exporter.jaeger.thrift.send import Collector as HttpSender
from opentelemetry.exporter.jaeger.thrift.translate import ThriftTranslator, _translate_attribute
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TTransport import TMemoryBuffer, TTransportException

from inferometer.agent.tracing.exporting import (
    AGAIN_STATUSES,
    ATTEMPT_TIMEOUT_S,
    Collector,
    DeliveryError,
    TraceAddress,
    innermost,
)

MOST_PACKET_BYTES = 65_000
"""The maximum size of a packet that a Jaeger agent reads, which is also close to the limit of UDP."""
_FIRST_PACKET_SPANS = 64
_FILL = 0.9  # of a packet, going by the size of the spans before


class JaegerHttpCollector(Collector):
    """Thrift's binary protocol over HTTP, to a collector."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        self.span_resource = resource
        self._sender = HttpSender(address.url, timeout_in_millis=ATTEMPT_TIMEOUT_S * 1000)
        transport = self._sender.http_transport
        if address.is_loopback and transport.using_proxy():
            transport.host, transport.port, transport.realhost = address.host, address.port, None

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102 - as in Collector, here and below
        transport = self._sender.http_transport
        batch = Batch(spans=_translated(spans), process=_process(spans[0].resource))
        try:
            batch.write(self._sender.protocol)
            transport.flush()
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {ATTEMPT_TIMEOUT_S:g} s", again=True) from error
        except (OSError, TTransportException) as error:
            raise DeliveryError(innermost(error), again=True) from error
        if not 200 <= transport.code < 300:
            reason = f"HTTP {transport.code} {transport.message}"
            raise DeliveryError(reason, again=transport.code in AGAIN_STATUSES)

    def close(self) -> None:  # noqa: D102
        if self._sender.http_transport.isOpen():
            self._sender.http_transport.close()


class JaegerUdpCollector(Collector):
    """Thrift's compact protocol over UDP, to an agent; deliveries are not acknowledged.

    Packets are known to be rejected only if a host has no listener; only then are spans counted as not sent.
    """

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        self.span_resource = resource
        self._address = address
        self._packet_spans = _FIRST_PACKET_SPANS
        self._socket: socket.socket | None = None

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102
        lost, reason, unreachable = 0, "", False
        process = _process(spans[0].resource)
        for packet, count in self._packets(_translated(spans), process):
            if len(packet) >= MOST_PACKET_BYTES:
                lost += count
                reason = f"a span of {len(packet):,} bytes is larger than a packet"
                continue
            try:
                self._send(packet)
            except OSError as error:
                lost += count
                reason, unreachable = innermost(error), True
        if lost:  # what is too large for a packet would be so again
            again = unreachable and lost == len(spans) and self._socket is None
            raise DeliveryError(reason, again=again, lost=lost)

    def close(self) -> None:  # noqa: D102
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _packets(self, spans: Sequence[Span], process: Process) -> Iterator[tuple[bytes, int]]:
        """Yields packets, each with its number of spans; only a packet of one span may be too large."""
        first = 0
        while first < len(spans):
            part = spans[first : first + self._packet_spans]
            packet = _packet(part, process)
            if len(packet) >= MOST_PACKET_BYTES and len(part) > 1:
                self._packet_spans = len(part) // 2
                continue
            yield packet, len(part)
            first += len(part)
            fitting = int(len(part) * _FILL * MOST_PACKET_BYTES / len(packet))
            self._packet_spans = max(1, min(fitting, 2 * self._packet_spans))

    def _send(self, packet: bytes) -> None:
        """Sends to the address that accepted the last packet, or to the first that accepts this one.

        Raises OSError if the host has no address, or if all of its addresses reject the packet.
        """
        if self._socket is not None:
            try:
                return _send(self._socket, packet)
            except OSError:
                self.close()
        refused: OSError | None = None
        where = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, name in where:
            opened = socket.socket(family, kind, protocol)
            try:
                opened.connect(name)
                _send(opened, packet)
            except OSError as error:
                opened.close()
                refused = error
            else:
                self._socket = opened
                return None
        raise refused or OSError("the host has no address")


def _packet(spans: Sequence[Span], process: Process) -> bytes:
    buffer = TMemoryBuffer()
    client = Agent.Client(TCompactProtocol(buffer))
    client.emitBatch(Batch(spans=spans, process=process))
    packet: bytes = buffer.getvalue()
    return packet


def _send(connected: socket.socket, packet: bytes) -> None:
    """Sends a packet; raises OSError if the host has reported that there is no listener."""
    connected.send(packet)
    # this machine reports it at once; the report of another one arrives with a later packet
    refused = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if refused:
        raise OSError(refused, os.strerror(refused))


class _Translator(ThriftTranslator):
    """Translates attributes: lists become JSON; the resource belongs to the process, not to each span."""

    def _extract_tags(self, span: ReadableSpan) -> Sequence[Tag]:
        bare = ReadableSpan(
            span.name,
            attributes={key: _tag_value(value) for key, value in (span.attributes or {}).items()},
            resource=Resource.get_empty(),
            kind=span.kind,
            status=span.status,
            instrumentation_scope=span.instrumentation_scope,
        )
        tags: Sequence[Tag] = super()._extract_tags(bare)
        return tags


def _translated(spans: Sequence[ReadableSpan]) -> list[Span]:
    return list(map(_Translator()._translate_span, spans))


def _process(resource: Resource) -> Process:
    """Returns the resource in Jaeger's form, which is sent once per batch instead of with each span."""
    attributes = dict(resource.attributes)
    name = str(attributes.pop(SERVICE_NAME, "inferometer"))
    tags = [_translate_attribute(key, _tag_value(value), None) for key, value in attributes.items()]
    return Process(serviceName=name, tags=tags)


def _tag_value(value: Any) -> str | bool | int | float:
    """Returns a value in a form that a tag can hold; lists become JSON."""
    tag: str | bool | int | float = value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, tuple | list) else tag
