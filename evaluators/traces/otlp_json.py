"""Export of traces as OTLP JSON, which OpenTelemetry's collectors and viewers read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferometer.agent.tracing.readable import plain
from inferometer.agent.tracing.recorder import span_id_text
from inferometer.agent.tracing.span import (
    NO_BATCH,
    NO_PARENT,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanRole,
)

SCOPE = "inferometer"
_KINDS = {SpanRole.INTERNAL: 1, SpanRole.SERVER: 2, SpanRole.CLIENT: 3}
"""The numbers of OTLP's ``SpanKind``."""


def otlp_json(
    chunks: Iterable[SpanChunk], trace_id: str, resource: Mapping[str, AttributeValue]
) -> Iterator[str]:
    """Yields the pieces of a JSON text: one ``ExportTraceServiceRequest`` in OTLP's JSON encoding (1.0).

    Args:
        chunks: The spans.
        trace_id: 32 hexadecimal digits.
        resource: The attributes of the process that recorded chunks which name none.
    """
    yield '{"resourceSpans": ['
    begun: Attributes | None = None
    separator = ""
    for chunk in chunks:
        of_chunk = chunk.resource or tuple(resource.items())
        if of_chunk != begun:
            yield ("" if begun is None else "\n]}]},\n") + _head(of_chunk)
            begun, separator = of_chunk, "\n"
        for span in _spans(chunk, trace_id):
            yield separator + _text(span)
            separator = ",\n"
    if begun is None:
        yield _head(tuple(resource.items()))
    yield "\n]}]}]}\n"


def _head(resource: Attributes) -> str:
    """Returns the beginning of the spans of one resource."""
    head = {"attributes": [_attribute(key, value) for key, value in resource]}
    return f'{{"resource": {_text(head)}, "scopeSpans": [{{"scope": {_text({"name": SCOPE})}, "spans": ['


def _spans(chunk: SpanChunk, trace_id: str) -> Iterator[dict[str, Any]]:
    shared = [[_attribute(key, value) for key, value in kind.attributes] for kind in chunk.kinds]
    for position, id_, parent, start, duration, batch, thread in chunk.values():
        kind = chunk.kinds[position]
        own: list[tuple[str, AttributeValue]] = [("inferometer.trace_level", kind.level.name)]
        if batch != NO_BATCH:
            own.append(("inferometer.batch", batch))
        if thread:
            own.append(("thread.id", thread))
        yield {
            "traceId": trace_id,
            "spanId": span_id_text(id_),
            **({} if parent == NO_PARENT else {"parentSpanId": span_id_text(parent)}),
            "name": plain(kind.name),
            "kind": _KINDS[kind.role],
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + duration),
            "attributes": shared[position] + [_attribute(key, value) for key, value in own],
        }


def _attribute(key: str, value: AttributeValue) -> dict[str, Any]:
    return {"key": key, "value": _value(plain(value))}


def _value(value: AttributeValue) -> dict[str, Any]:
    """Returns a value in protobuf's JSON mapping: 64-bit integers, NaN and infinities are strings."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else _NAMES[str(value)]}
        case str():
            return {"stringValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
