"""Converts recorded spans from columns to OpenTelemetry's objects, which its exporters accept."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as OtelSpanKind

from inferometer.agent import __version__
from inferometer.agent.tracing.recorder import (
    ALL_BITS,
    NO_PARENT,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanKind,
    SpanRole,
)

_SCOPE = InstrumentationScope("inferometer", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_INT64 = range(-(2**63), 2**63)
_ROLES = {
    SpanRole.INTERNAL: OtelSpanKind.INTERNAL,
    SpanRole.CLIENT: OtelSpanKind.CLIENT,
    SpanRole.SERVER: OtelSpanKind.SERVER,
}


def readable_spans(
    trace_id: str, chunk: SpanChunk, resource: Resource, most: int
) -> Iterator[list[ReadableSpan]]:
    """Yields a chunk's spans in order, in lists of ``most`` spans; the last list may be shorter.

    To its kind's attributes, each span adds ``inferometer.trace_level``, ``inferometer.batch`` if it belongs
    to a batch, and ``thread.id`` if the thread is known. Kinds with ``error.type`` get the status ERROR.
    Values that OpenTelemetry's wire format cannot represent become text, as one such value would cause its
    whole list to be lost.
    """
    trace = int(trace_id, 16)
    kinds = [_ReadableKind(kind) for kind in chunk.kinds]
    links = {
        span_id: [Link(_context(int(link.trace_id, 16), link.span_id)) for link in of_span]
        for span_id, of_span in chunk.links.items()
    }
    for first in range(0, len(chunk), most):
        part = slice(first, first + most)
        columns = (chunk.kind, chunk.span_id, chunk.parent_id, chunk.start_ns, chunk.duration_ns)
        rows = zip(*(column[part].tolist() for column in (*columns, chunk.batch, chunk.thread)), strict=True)
        yield [
            ReadableSpan(
                name=kinds[place].name,
                context=_context(trace, span_id),
                parent=None if parent_id == NO_PARENT else _context(trace, parent_id),
                resource=resource,
                attributes=kinds[place].attributes(batch, thread),
                links=links.get(span_id, ()),
                kind=kinds[place].role,
                status=kinds[place].status,
                start_time=start_ns,
                end_time=start_ns + duration_ns,
                instrumentation_scope=_SCOPE,
            )
            for place, span_id, parent_id, start_ns, duration_ns, batch, thread in rows
        ]


def otel_resource(attributes: Attributes) -> Resource:
    """Returns a resource in OpenTelemetry's form, which also names the library that sends it."""
    library = Resource.create().attributes.items()
    return Resource(
        {name: value for name, value in library if name.startswith("telemetry.sdk.")} | dict(attributes)
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id & ALL_BITS, is_remote=False, trace_flags=_SAMPLED)


def plain(value: AttributeValue) -> AttributeValue:
    """Returns a value that the wire formats can represent: 64-bit integers, and valid Unicode."""
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, tuple):
        held = all(plain(element) == element for element in value)
        return value if held else tuple(_unicode(str(element)) for element in value)
    return str(value) if isinstance(value, int) and value not in _INT64 else value


def _unicode(text: str) -> str:
    """Returns text without lone surrogates, as occur in a file name that is not UTF-8."""
    return text.encode(errors="replace").decode()


class _ReadableKind:
    """What all spans of a kind have in common."""

    def __init__(self, kind: SpanKind) -> None:
        self.name = _unicode(kind.name)
        self.role = _ROLES[kind.role]
        self._attributes = {key: plain(value) for key, value in kind.attributes}
        self._attributes["inferometer.trace_level"] = kind.level.name
        error = self._attributes.get("error.type")
        self.status = _UNSET if error is None else Status(StatusCode.ERROR, str(error))

    def attributes(self, batch: int, thread: int) -> dict[str, AttributeValue]:
        """Returns one span's attributes; a negative batch and thread 0 mean that there is none."""
        own = dict(self._attributes)
        if batch >= 0:
            own["inferometer.batch"] = batch
        if thread:
            own["thread.id"] = thread
        return own
