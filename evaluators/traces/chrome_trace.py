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


class _Tracks:
    """The processes and threads of a trace, numbered from 1 on.

    Viewers take 32 bits without a sign for both, and a stream of a device has a negative number. The thread
    with the number of its process is the main one to them.
    """

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.threads: dict[tuple[int, int], tuple[int, int]] = {}
        self._last = 0

    def of(self, recorder: int, thread: int) -> tuple[int, int]:
        """Returns ``pid`` and ``tid``."""
        known = self.threads.get((recorder, thread))
        if known is None:
            process = self.processes.get(recorder) or self._next()
            self.processes[recorder] = process
            known = process, self._next() if thread else process
            self.threads[recorder, thread] = known
        return known

    def names(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the events that name them."""
        for count, process in enumerate(self.processes.values(), 1):
            yield _named("process_name", process, process, f"{name} ({count})")
        for (_, thread), (process, number) in self.threads.items():
            # A thread has its number of the system, a stream its own, below -1; see SpanChunk.thread.
            kind = f"thread {thread}" if thread > 0 else f"stream {-1 - thread}" if thread else "main"
            yield _named("thread_name", process, number, kind)

    def _next(self) -> int:
        self._last += 1
        return self._last


def chrome_trace(chunks: Iterable[SpanChunk], name: str) -> Iterator[str]:
    """Yields the pieces of a JSON text: an object with ``traceEvents``.

    Each span is a complete event (``ph: X``). ``ts`` and ``dur`` are microseconds with three decimals, and
    ``ts`` counts from ``baseTimeNanoseconds``, the earliest start in the first chunk, so that no digit is
    lost in a double. What one process has recorded is one ``pid``; a thread, or a stream of a device, is one
    ``tid``; both are numbers of this text alone, and have names.

    Args:
        chunks: The spans.
        name: What the processes are called.
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
        process, track = tracks.of(id_ >> _RECORDER_SHIFT, thread)
        yield {
            "ph": "X",
            "name": kind.name,
            "cat": TraceLevel(kind.level).name,
            "pid": process,
            "tid": track,
            "ts": _microseconds(start - base_ns),
            "dur": _microseconds(duration),
            "args": arguments,
        }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _microseconds(time_ns: int) -> float:
    return time_ns / _NS_PER_US
