"""Export of traces as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from inferometer.agent.tracing.recorder import span_id_text
from inferometer.agent.tracing.span import NO_BATCH, SpanChunk, TraceLevel

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
