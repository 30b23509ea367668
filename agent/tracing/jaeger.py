"""Collectors that speak Jaeger's Thrift, over UDP and over HTTP; needs the extra ``jaeger``.

The exporter's package translates and encodes the spans. Its exporter itself is not used: it reports success
whatever happens, and drops what is too large for a packet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

from opentelemetry.exporter.jaeger.thrift.gen.agent import Agent
from opentelemetry.exporter.jaeger.thrift.gen.jaeger.ttypes import Batch, Process, Span
from opentelemetry.exporter.jaeger.thrift.send import Collector as HttpSender
from opentelemetry.exporter.jaeger.thrift.translate import ThriftTranslator, _translate_attribute
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TTransport import TMemoryBuffer, TTransportException

from agent.tracing.address import TraceAddress
from agent.tracing.collector import ATTEMPT_TIMEOUT_S, Collector, DeliveryError, innermost

MOST_PACKET_BYTES = 65_000
"""What an agent of Jaeger reads of one packet; also what UDP can carry, nearly."""
_FIRST_PACKET_SPANS = 64
_FILL = 0.9  # of a packet, going by the size of the spans before
_AGAIN_STATUSES = {429, 502, 503, 504}


class JaegerHttpCollector(Collector):
    """Thrift's binary protocol over HTTP, to a collector."""

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        self.span_resource = Resource.get_empty()
        self._process = _process(resource)
        self._sender = HttpSender(address.url, timeout_in_millis=ATTEMPT_TIMEOUT_S * 1000)
        transport = self._sender.http_transport
        if address.is_loopback and transport.using_proxy():
            transport.host, transport.port, transport.realhost = address.host, address.port, None

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102 - as in Collector, here and below
        transport = self._sender.http_transport
        batch = Batch(spans=_translated(spans), process=self._process)
        try:
            batch.write(self._sender.protocol)
            transport.flush()
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {ATTEMPT_TIMEOUT_S:g} s", again=True) from error
        except (OSError, TTransportException) as error:
            raise DeliveryError(innermost(error), again=True) from error
        if not 200 <= transport.code < 300:
            reason = f"HTTP {transport.code} {transport.message}"
            raise DeliveryError(reason, again=transport.code in _AGAIN_STATUSES)

    def close(self) -> None:  # noqa: D102
        if self._sender.http_transport.isOpen():
            self._sender.http_transport.close()


class JaegerUdpCollector(Collector):
    """Thrift's compact protocol over UDP, to an agent; nothing says whether a packet arrives.

    Only a host that has nobody at the port may say so, and only then are spans counted as not sent.
    """

    acknowledges = False

    def __init__(self, address: TraceAddress, resource: Resource) -> None:
        self.span_resource = Resource.get_empty()
        self._process = _process(resource)
        self._address = address
        self._packet_spans = _FIRST_PACKET_SPANS
        self._socket: socket.socket | None = None

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:  # noqa: D102
        lost, reason = 0, ""
        for packet, count in self._packets(_translated(spans)):
            if len(packet) >= MOST_PACKET_BYTES:
                lost += count
                reason = f"a span of {len(packet):,} bytes is larger than a packet"
                continue
            try:
                self._send(packet)
            except OSError as error:
                lost += count
                reason = innermost(error)
        if lost:
            again = lost == len(spans) and self._socket is None
            raise DeliveryError(reason, again=again, lost=lost)

    def close(self) -> None:  # noqa: D102
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _packets(self, spans: Sequence[Span]) -> Iterator[tuple[bytes, int]]:
        """Yields packets, each with the number of its spans; only one of a single span may be too large."""
        first = 0
        while first < len(spans):
            part = spans[first : first + self._packet_spans]
            packet = self._packet(part)
            if len(packet) >= MOST_PACKET_BYTES and len(part) > 1:
                self._packet_spans = len(part) // 2
                continue
            yield packet, len(part)
            first += len(part)
            fitting = int(len(part) * _FILL * MOST_PACKET_BYTES / len(packet))
            self._packet_spans = max(1, min(fitting, 2 * self._packet_spans))

    def _packet(self, spans: Sequence[Span]) -> bytes:
        buffer = TMemoryBuffer()
        client = Agent.Client(TCompactProtocol(buffer))
        client.emitBatch(Batch(spans=spans, process=self._process))
        packet: bytes = buffer.getvalue()
        return packet

    def _send(self, packet: bytes) -> None:
        """Sends to the address that took the last packet, or to the first that does not refuse.

        Raises:
            OSError: All refuse, or there is none.
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


def _send(connected: socket.socket, packet: bytes) -> None:
    """Sends a packet; raises OSError when the host has said already that nobody is there."""
    connected.send(packet)
    # on this machine the answer is there at once; from another it comes with one of the next packets
    refused = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if refused:
        raise OSError(refused, os.strerror(refused))


def _translated(spans: Sequence[ReadableSpan]) -> list[Span]:
    translator = ThriftTranslator()
    return [translator._translate_span(span) for span in spans]


def _process(resource: Resource) -> Process:
    """Returns the resource as Jaeger has it, once with each batch instead of with each span."""
    attributes = dict(resource.attributes)
    name = str(attributes.pop(SERVICE_NAME, "inferscope"))
    tags = [_translate_attribute(key, value, None) for key, value in attributes.items()]
    return Process(serviceName=name, tags=tags)
