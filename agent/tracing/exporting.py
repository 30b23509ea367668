"""Export: hands recorded spans to a collector, in the background and within bounds."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from agent import __version__
from agent.tracing.address import TraceAddress, TraceProtocol
from agent.tracing.collector import Collector, DeliveryError, innermost
from agent.tracing.recorder import MAX_SPANS
from agent.tracing.span import AttributeValue, SpanChunk
from manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

BATCH_SPANS = 512
"""Spans that are handed over at once; no more exist as objects at any time."""
GRACE_S = 1.0
"""How long a collector may take nothing before it is given up at the end."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_COLLECTORS = {
    TraceProtocol.OTLP_GRPC: ("agent.tracing.otlp", "OtlpGrpcCollector"),
    TraceProtocol.OTLP_HTTP: ("agent.tracing.otlp", "OtlpHttpCollector"),
    TraceProtocol.OTLP_HTTPS: ("agent.tracing.otlp", "OtlpHttpCollector"),
    TraceProtocol.JAEGER_UDP: ("agent.tracing.jaeger", "JaegerUdpCollector"),
    TraceProtocol.JAEGER_HTTP: ("agent.tracing.jaeger", "JaegerHttpCollector"),
}


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What became of the spans that were sent.

    Attributes:
        address: Where they were sent.
        delivered: Spans that the collector has acknowledged; over UDP, that were sent.
        undelivered: All others. Some of them may have arrived all the same: spans whose acknowledgement did
            not come in time are here.
        reason: Why most of them are, in one line; empty when there is none.
    """

    address: TraceAddress
    delivered: int
    undelivered: int
    reason: str = ""

    def __str__(self) -> str:
        """One line for a person."""
        kind = f"{self.address} ({self.address.protocol.title})"
        if self.undelivered:
            total = self.delivered + self.undelivered
            return f"{self.undelivered:,} of {total:,} spans were not delivered to {kind}: {self.reason}"
        if self.address.protocol is TraceProtocol.JAEGER_UDP:
            return f"{self.delivered:,} spans sent to {kind}; UDP does not tell whether they arrived"
        return f"{self.delivered:,} spans delivered to {kind}"


class TraceExport:
    """Spans on their way to one collector. Thread-safe.

    Nothing is connected before the first ``send``. A collector that cannot be reached is tried again, with
    growing pauses, until ``close`` gives it up; what it refuses is not sent again.

    Args:
        address: For the report.
        collector: Takes the spans; closed by ``close``.
        limit: The most spans that wait; a chunk that does not fit is left out and counted.
        clock: A monotonic clock in seconds.
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
    def open(
        cls, address: TraceAddress, attributes: Mapping[str, AttributeValue] | None = None
    ) -> TraceExport:
        """Returns an export with all that it needs loaded; nothing is connected yet.

        Args:
            address: Where to.
            attributes: Of the resource, by OpenTelemetry's semantic conventions; None means this process's.

        Raises:
            ConfigurationError: What the protocol needs is not installed, or one of OpenTelemetry's
                environment variables makes no sense.
        """
        module, name = _COLLECTORS[address.protocol]
        try:
            from opentelemetry.sdk.resources import Resource

            opener = getattr(import_module(module), name)
            given = resource_attributes() if attributes is None else attributes
            collector = opener(address, Resource.create(dict(given)))
        except ImportError as error:
            extra = "[jaeger]" if address.protocol.scheme.startswith("jaeger") else ""
            raise ConfigurationError(
                f'tracer address "{address}": {error.name or error} is not installed; '
                f'run: pip install "inferscope{extra}"'
            ) from error
        except Exception as error:  # the exporters raise errors of many kinds, of their own variables
            reason = DeliveryError(innermost(error)).reason
            raise ConfigurationError(f'tracer address "{address}": {reason}') from error
        return cls(address, collector)

    def send(self, trace_id: str, chunks: Iterable[SpanChunk]) -> None:
        """Takes spans to be delivered, and returns at once."""
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
                # a daemon: whatever it hangs in must not keep the process from ending
                self._worker = threading.Thread(target=self._run, name="trace-export", daemon=True)
                self._worker.start()
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Spans that were sent and of which it is not known yet what becomes of them."""
        with self._changed:
            return self._waiting

    def close(self, grace_s: float = GRACE_S) -> ExportReport:
        """Waits for the deliveries, ends the connection, and returns what became of the spans; never raises.

        It waits as long as the collector takes spans, and gives up when it has taken none for ``grace_s``
        seconds. Calling it again returns the report again.
        """
        try:
            with self._changed:
                self._closing = True
                self._progress_s = self._clock()
                self._changed.notify_all()
                while self._waiting:
                    left_s = self._progress_s + grace_s - self._clock()
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
        finally:  # also when the user does not want to wait
            report = self._give_up(grace_s)
        return report

    def _give_up(self, grace_s: float) -> ExportReport:
        """Counts what still waits as undelivered, and ends the connection."""
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
            with suppress(Exception):  # it is over, and a broken connection must not fail a run
                self._collector.close()
        return report

    def _run(self) -> None:
        """Delivers until the export is closed and nothing waits, or it is given up."""
        from agent.tracing.readable import readable_spans

        resource = self._collector.span_resource
        while (taken := self._next()) is not None:
            trace_id, chunk = taken
            left = len(chunk)
            try:
                for batch in readable_spans(trace_id, chunk, resource, BATCH_SPANS):
                    self._deliver(batch)
                    left -= len(batch)
                    if self._given_up.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - a chunk that cannot be read must not hold up the others
                self._settle(0, left, f"{type(error).__name__}: {error}")

    def _next(self) -> tuple[str, SpanChunk] | None:
        """Waits for a chunk and its trace; None when there will be no more."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _deliver(self, batch: list[ReadableSpan]) -> None:
        """Delivers a batch, with as many attempts as it takes and makes sense."""
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
        """Counts a batch, unless the export was given up and has counted it."""
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


def resource_attributes() -> dict[str, AttributeValue]:
    """Returns what this process is to a trace."""
    return {
        "service.name": "inferscope",
        "service.version": __version__,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
