"""Export of traces as Chrome trace events, as OTLP JSON and as a flame graph.

Perfetto and chrome://tracing open the first; OpenTelemetry's collectors and viewers read the second. A flame
graph shows stacks of span names, as wide as their time: spans are aggregated into frames by their own names
and those of their ancestors.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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

    Viewers require unsigned 32-bit numbers for both, while a device's stream has a negative number. They
    show the thread with the number of its process as the main thread.
    """

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.threads: dict[tuple[int, int], tuple[int, int]] = {}
        self._numbers = itertools.count(1)

    def of(self, recorder: int, thread: int) -> tuple[int, int]:
        """Returns the ``pid`` and ``tid`` of a recorder's thread."""
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
        resource: The attributes of the recording process, for chunks that name none.
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


Spans: TypeAlias = Callable[[], Iterable[SpanChunk]]
"""Returns an iteration over the spans of a trace from the first; can be called repeatedly."""

_OUTSIDE = -1  # the position of the parent of a root span
_NOWHERE = -1  # the stack of a span below itself
_TOP = 0
_LATEST_NS = int(np.iinfo(np.int64).max)


@dataclass(slots=True)
class Frame:
    """All spans with the same name and the same names of ancestors: their count and total time."""

    name: str
    count: int = 0
    total_ns: int = 0
    children: list[Frame] = field(default_factory=list)

    @property
    def width_ns(self) -> int:
        """The time that the frame's width shows: the total, or the sum of its children if that is longer."""
        return max(self.total_ns, sum(child.width_ns for child in self.children))


def frames(spans: Spans) -> Frame:
    """Aggregates spans into frames; spans without a parent in the trace are at the top.

    Sibling frames are ordered by the earliest start of their spans. Spans in a cycle of parents are omitted.

    Memory: about 40 bytes for each span with children, one chunk, and the frames. The spans are read three
    times: to find the spans with children, to read these, and to aggregate all.

    Returns:
        A frame without a name whose children are the top frames.
    """
    above = _above(spans())
    names: dict[str, int] = {}
    found: list[tuple[NDArray[np.int64], ...]] = [(np.empty(0, np.int64),) * 3]
    for chunk in spans():
        has_others = _positions(above, chunk.span_id) >= 0
        columns = (_names(chunk, names), chunk.span_id, chunk.parent_id)
        found.append(tuple(column[has_others] for column in columns))
    name, span_id, parent_id = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(span_id, kind="stable")
    name, span_id, parent_id = name[order], span_id[order], parent_id[order]
    stacks = _Stacks(list(names))
    stack_of = _stacked(stacks, name, _positions(span_id, parent_id))
    for chunk in spans():
        parents = _positions(span_id, chunk.parent_id)
        stack_above = np.where(parents == _OUTSIDE, _TOP, np.append(stack_of, _NOWHERE)[parents])
        known = stack_above != _NOWHERE
        stacks.add(
            stack_above[known], _names(chunk, names)[known], chunk.start_ns[known], chunk.duration_ns[known]
        )
    return stacks.as_frame()


class _Stacks:
    """Stacks of names, each with a number; ``_TOP`` is the empty stack."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._number: dict[int, int] = {}
        self._key, self._start_ns = [0], [_LATEST_NS]
        self._frames = [Frame("")]

    def numbers(
        self, above: NDArray[np.int64], name: NDArray[np.int64]
    ) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the distinct stacks of spans below others, and for each span the index of its stack."""
        keys, inverse = np.unique(above * len(self._names) + name, return_inverse=True)
        return [self._number.get(key) or self._new(key) for key in keys.tolist()], inverse

    def add(
        self,
        above: NDArray[np.int64],
        name: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
    ) -> None:
        """Adds spans and their time."""
        numbers, inverse = self.numbers(above, name)
        counts = np.bincount(inverse, minlength=len(numbers))
        totals = np.zeros(len(numbers), np.int64)
        np.add.at(totals, inverse, duration_ns)
        starts = np.full(len(numbers), _LATEST_NS)
        np.minimum.at(starts, inverse, start_ns)
        for number, count, total_ns, begin_ns in zip(
            numbers, counts.tolist(), totals.tolist(), starts.tolist(), strict=True
        ):
            self._frames[number].count += count
            self._frames[number].total_ns += total_ns
            self._start_ns[number] = min(begin_ns, self._start_ns[number])

    def as_frame(self) -> Frame:
        """Returns the stacks as a tree of frames."""
        for number in sorted(range(1, len(self._key)), key=lambda n: (self._start_ns[n], self._key[n])):
            self._frames[self._key[number] // len(self._names)].children.append(self._frames[number])
        return self._frames[_TOP]

    def _new(self, key: int) -> int:
        number = self._number[key] = len(self._key)
        self._key.append(key)
        self._start_ns.append(_LATEST_NS)
        self._frames.append(Frame(self._names[key % len(self._names)]))
        return number


def _above(chunks: Iterable[SpanChunk]) -> NDArray[np.int64]:
    """Returns the sorted ids of the spans with children."""
    found: NDArray[np.int64] = np.empty(0, np.int64)
    pieces: list[NDArray[np.int64]] = []
    waiting = 0
    for chunk in chunks:
        pieces.append(np.unique(chunk.parent_id))
        waiting += len(pieces[-1])
        if waiting > len(found):
            found, pieces, waiting = np.unique(np.concatenate([found, *pieces])), [], 0
    ids: NDArray[np.int64] = np.unique(np.concatenate([found, *pieces]))
    return ids


def _stacked(stacks: _Stacks, name: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the number of each span's stack, found from the top down; ``above`` locates its parent."""
    stack_of: NDArray[np.int64] = np.full(len(name), _NOWHERE, np.int64)
    level = np.flatnonzero(above == _OUTSIDE)
    parents = np.full(len(level), _TOP, np.int64)
    while len(level):
        numbers, inverse = stacks.numbers(parents, name[level])
        stack_of[level] = np.array(numbers, np.int64)[inverse]
        left = np.flatnonzero((above != _OUTSIDE) & (stack_of == _NOWHERE))
        level = left[stack_of[above[left]] != _NOWHERE]
        parents = stack_of[above[level]]
    return stack_of


def _names(chunk: SpanChunk, names: dict[str, int]) -> NDArray[np.int64]:
    """Returns the number of each span's name in ``names``, to which new names are added."""
    of_kind = np.array([names.setdefault(kind.name, len(names)) for kind in chunk.kinds], np.int64)
    of_span: NDArray[np.int64] = of_kind[chunk.kind]
    return of_span


def _positions(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each of ``wanted`` in sorted ids; -1 for a missing one."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    found = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    positions: NDArray[np.int64] = np.where(ids[found] == wanted, found, -1)
    return positions


WIDTH_PX = 1200
_ROW_PX = 18
_HEAD_PX = 44
_MARGIN_PX = 10
_CHARACTER_PX = 6.6
_WHOLE_PX = WIDTH_PX - 2 * _MARGIN_PX
_LEAST_CHARACTERS = 2
_SMALLEST_PX = 0.01  # zooming in can reveal a frame of this width
_NS_PER_MS = 1e6
_STYLE = ".flame g { cursor: pointer } .flame g:hover rect { stroke: #000000; stroke-width: 0.5 }"
_SCRIPT = Path(__file__).with_name("flame.js")
"""What zooms: a function of the sizes that the picture has."""


def flame_graph_svg(spans: Spans, title: str) -> str:
    """Returns a flame graph as a self-contained SVG.

    Where scripts run, hovering over a frame shows its figures, and a click zooms in.
    """
    top = frames(spans)
    height = _HEAD_PX + max(_depth(top), 1) * _ROW_PX + _MARGIN_PX
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" width="{WIDTH_PX}" '
        f'height="{height}" font-family="monospace" font-size="11" class="flame">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH_PX}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN_PX}" y="18" font-size="14">{escape(title)}</text>',
    ]
    whole_ns = top.width_ns
    if whole_ns:
        note = f"{whole_ns / _NS_PER_MS:.3f} ms in all; a row lies below what called it"
        lines.append(f'<text x="{_MARGIN_PX}" y="34" fill="#555555" class="note">{note}</text>')
        lines += _drawn(top, _MARGIN_PX, 0, _WHOLE_PX / whole_ns, whole_ns)
        sizes = [_WHOLE_PX, _MARGIN_PX, _CHARACTER_PX, _LEAST_CHARACTERS]
        script = _SCRIPT.read_text(encoding="utf-8").rstrip()
        lines.append(f"<script><![CDATA[\n{script}({sizes});\n]]></script>")
    else:
        lines.append(f'<text x="{_MARGIN_PX}" y="34" fill="#555555">no spans</text>')
    return "\n".join([*lines, "</svg>", ""])


def _drawn(frame: Frame, left_px: float, row: int, scale: float, whole_ns: int) -> Iterator[str]:
    for child in frame.children:
        width_px = child.width_ns * scale
        if width_px >= _SMALLEST_PX:
            yield _box(child, left_px, _HEAD_PX + row * _ROW_PX, width_px, whole_ns)
            yield from _drawn(child, left_px, row + 1, scale, whole_ns)
        left_px += width_px


def _box(frame: Frame, left_px: float, top_px: int, width_px: float, whole_ns: int) -> str:
    room = int((width_px - 4) / _CHARACTER_PX)
    shown = frame.name if len(frame.name) <= room else frame.name[: max(room - 1, 0)] + "…"
    label = (
        f'<text x="{left_px + 3:.2f}" y="{top_px + 12}">{escape(shown)}</text>'
        if room >= _LEAST_CHARACTERS
        else ""
    )
    # a warm colour that is the same for a name in every picture
    digest = hashlib.sha256(frame.name.encode("utf-8", "backslashreplace")).digest()
    colour = f"hsl({20 + digest[0] % 40}, {70 + digest[1] % 25}%, {62 + digest[2] % 14}%)"
    figures = (
        f"{frame.name}: {frame.total_ns / _NS_PER_MS:.3f} ms in {frame.count} spans, "
        f"{100 * frame.total_ns / whole_ns:.2f} %"
    )
    return (
        f'<g><title>{escape(figures)}</title><rect x="{left_px:.5f}" y="{top_px}" width="{width_px:.5f}" '
        f'height="{_ROW_PX - 1}" rx="1" fill="{colour}"/>{label}</g>'
    )


def _depth(frame: Frame) -> int:
    return 1 + max(map(_depth, frame.children)) if frame.children else 0
