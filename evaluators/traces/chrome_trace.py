"""A trace as Chrome's trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from agent.trace_level import TraceLevel
from agent.tracing.context import span_id_text
from agent.tracing.span import NO_BATCH, SpanChunk

_RECORDER_SHIFT = 32
_NS_PER_US = 1000


def chrome_trace(chunks: Iterable[SpanChunk], name: str) -> Iterator[str]:
    """Yields the pieces of a JSON text: an object with ``traceEvents``.

    Each span is a complete event (``ph: X``). ``ts`` and ``dur`` are microseconds with three decimals, and
    ``ts`` counts from ``baseTimeNanoseconds``, the earliest start in the first chunk, so that no digit is
    lost in a double. What one process has recorded is one ``pid``; a thread, or a stream of a device, is one
    ``tid``.

    Args:
        chunks: The spans.
        name: What the processes are called.
    """
    base_ns: int | None = None
    processes: dict[int, int] = {}
    separator = "\n"
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    for chunk in chunks:
        if base_ns is None and len(chunk):
            base_ns = int(chunk.start_ns.min())
        for event in _events(chunk, base_ns or 0, processes):
            yield separator + json.dumps(event, ensure_ascii=False)
            separator = ",\n"
    for number in processes.values():
        event = {"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"{name} ({number})"}}
        yield separator + json.dumps(event, ensure_ascii=False)
        separator = ",\n"
    yield f'\n], "baseTimeNanoseconds": {base_ns or 0}}}\n'


def _events(chunk: SpanChunk, base_ns: int, processes: dict[int, int]) -> Iterator[dict[str, Any]]:
    columns = (
        chunk.kind,
        chunk.span_id,
        chunk.parent_id,
        chunk.start_ns,
        chunk.duration_ns,
        chunk.batch,
        chunk.thread,
    )
    shared = [
        {key.removeprefix("inferscope."): value for key, value in kind.attributes} for kind in chunk.kinds
    ]
    for place, id_, parent, start, duration, batch, thread in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        kind = chunk.kinds[place]
        arguments = {"span_id": span_id_text(id_), "parent_id": span_id_text(parent)} | shared[place]
        if batch != NO_BATCH:
            arguments["batch"] = batch
        yield {
            "ph": "X",
            "name": kind.name,
            "cat": TraceLevel(kind.level).name,
            "pid": processes.setdefault(id_ >> _RECORDER_SHIFT, len(processes) + 1),
            "tid": thread,
            "ts": _microseconds(start - base_ns),
            "dur": _microseconds(duration),
            "args": arguments,
        }


def _microseconds(time_ns: int) -> float:
    return time_ns / _NS_PER_US
