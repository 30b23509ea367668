"""Export of traces as Chrome trace events and as OTLP JSON.

Perfetto and chrome://tracing open the former; OpenTelemetry's collectors and viewers read the latter.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferometer.agent.tracing.readable import plain
from inferometer.agent.tracing.recorder import (
    NO_BATCH,
    NO_PARENT,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanRole,
    TraceLevel,
    span_id_text,
)

_RECORDER_SHIFT = 32
_NS_PER_US = 1000


class _Tracks:
    """The processes and threads of a trace, numbered from 1 on.

    Viewers require unsigned 32-bit numbers for both, while the stream of a device has a negative one. They
    show the thread with the number of its process as the main thread.
    """

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.threads: dict[tuple[int, int], tuple[int, int]] = {}
        self._numbers = itertools.count(1)

    def of(self, recorder: int, thread: int) -> tuple[int, int]:
        """Returns ``pid`` and ``tid``."""
        known = self.threads.get((recorder, thread))
        if known is None:
            process = self.processes.get(recorder) or next(self._numbers)
            self.processes[recorder] = process
            known = process, next(self._numbers) if thread else process
            self.threads[recorder, thread] = known
        return known

    def names(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the metadata events with the names of processes and threads."""
        for count, process in enumerate(self.processes.values(), 1):
            yield _named("process_name", process, process, f"{name} ({count})")
        for (_, thread), (process, number) in self.threads.items():
            # A thread has its system id, a stream a number below -1; see SpanChunk.thread.
            kind = f"thread {thread}" if thread > 0 else f"stream {-1 - thread}" if thread else "main"
            yield _named("thread_name", process, number, kind)


def chrome_trace(chunks: Iterable[SpanChunk], name: str) -> Iterator[str]:
    """Yields the pieces of a JSON text: an object with ``traceEvents``.

    Each span is a complete event (``ph: X``). ``ts`` and ``dur`` are microseconds with three decimals, and
    ``ts`` counts from ``baseTimeNanoseconds``, the earliest start in the first chunk, so that a double holds
    every digit. Each recording process has a ``pid``, each thread or device stream a ``tid``; the numbers
    are local to this text.

    Args:
        chunks: The spans.
        name: The name of the processes.
    """
    base_ns: int | None = None
    tracks = _Tracks()
    separator = "\n"
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    for chunk in chunks:
        if base_ns is None and len(chunk):
            base_ns = int(chunk.start_ns.min())
        for event in _events(chunk, base_ns or 0, tracks):
            yield separator + json.dumps(event, ensure_ascii=False)
            separator = ",\n"
    for event in tracks.names(name):
        yield separator + json.dumps(event, ensure_ascii=False)
        separator = ",\n"
    yield f'\n], "baseTimeNanoseconds": {base_ns or 0}}}\n'


def _events(chunk: SpanChunk, base_ns: int, tracks: _Tracks) -> Iterator[dict[str, Any]]:
    shared = [
        {key.removeprefix("inferometer."): value for key, value in kind.attributes} for kind in chunk.kinds
    ]
    for position, id_, parent, start, duration, batch, thread in chunk.values():
        kind = chunk.kinds[position]
        arguments = {"span_id": span_id_text(id_), "parent_id": span_id_text(parent)} | shared[position]
        if batch != NO_BATCH:
            arguments["batch"] = batch
        process, track = tracks.of(id_ >> _RECORDER_SHIFT, thread)
        yield {
            "ph": "X",
            "name": kind.name,
            "cat": TraceLevel(kind.level).name,
            "pid": process,
            "tid": track,
            "ts": (start - base_ns) / _NS_PER_US,
            "dur": duration / _NS_PER_US,
            "args": arguments,
        }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


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
