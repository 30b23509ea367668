"""The span recorder, which keeps spans in columns, with the context of a trace and its scopes."""

from __future__ import annotations

import re
import secrets
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from inferometer.agent.tracing.span import COLUMNS, NO_BATCH, SpanChunk, SpanKind, TraceLevel
from inferometer.manifests.errors import ConfigurationError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
ALL_BITS = 2**64 - 1
"""A mask that makes an id unsigned, as in messages."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A position in a trace, in the form that processes exchange (W3C Trace Context, level 1).

    ``trace_id`` has 32 lower-case hexadecimal digits, not all zero. ``span_id``, the parent of the spans that
    follow, is a signed number of 64 bits, which databases and NumPy can hold; 0 for none. Spans of a context
    that is not ``sampled`` are not recorded.
    """

    trace_id: str
    span_id: int = 0
    sampled: bool = True

    @classmethod
    def new(cls) -> TraceContext:
        """Returns the context of a new trace."""
        return cls(f"{secrets.randbits(128) or 1:032x}")

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext:
        """Returns the context that a ``traceparent`` header holds; raises ConfigurationError."""
        match = _TRACEPARENT.fullmatch(traceparent.strip())
        if match is None or match[1] == "ff" or not int(match[2], 16) or not int(match[3], 16):
            shown = repr(traceparent[:60])
            raise ConfigurationError(f"traceparent: found {shown}; allowed: 00-TRACE_ID-PARENT_ID-FLAGS")
        if match[1] == "00" and match[5]:
            raise ConfigurationError("traceparent: version 00 has four fields; found more")
        span_id = int(match[3], 16)
        signed = span_id - (ALL_BITS + 1) if span_id > ALL_BITS >> 1 else span_id
        return cls(match[2], signed, bool(int(match[4], 16) & _SAMPLED))

    @property
    def traceparent(self) -> str:
        """The header's value; only for a context with a span."""
        return f"00-{self.trace_id}-{span_id_text(self.span_id)}-{int(self.sampled):02x}"


def span_id_text(span_id: int) -> str:
    """Returns the 16 hexadecimal digits of a span's id."""
    return f"{span_id & ALL_BITS:016x}"


CHUNK_SPANS = 16_384
"""Spans in one chunk, at the most."""
MAX_SPANS = 20_000_000
"""The most spans of one recorder, about 60 bytes each; further ones are dropped and counted."""
_COUNTER_BITS = 32
_KIND_CHARACTERS_PER_CHUNK = 2_000_000  # a chunk becomes a document, and MongoDB's hold 16 MB


class SpanRecorder:
    """Keeps the spans of one trace that this process records or receives, at most ``limit``. Thread-safe.

    Times are given on ``clock`` and kept as nanoseconds since 1970, read once from ``wall_clock``, so that a
    step of the system's clock does not distort a trace. ``context`` has the parent of the topmost spans.
    Callers add no spans of levels deeper than ``level``.
    """

    def __init__(
        self,
        context: TraceContext,
        level: TraceLevel,
        *,
        limit: int = MAX_SPANS,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.context = context
        self.level = level
        self.clock = clock
        self.epoch_offset_ns = wall_clock() - clock()
        """The difference between nanoseconds since 1970 and a time of ``clock``."""
        self._limit = limit
        self._lock = threading.Lock()
        # The upper half of an id distinguishes the recorders of a trace, and keeps ids positive in 64 bits.
        self._next_id = (secrets.randbits(31) or 1) << _COUNTER_BITS
        self._full: list[SpanChunk] = []
        self._kinds: dict[SpanKind, int] = {}
        self._kind_characters = 0
        self._columns = _empty_columns()
        self._count = 0
        self._dropped = 0
        self._notes: dict[str, None] = {}

    def wants(self, level: TraceLevel) -> bool:
        """Returns whether spans of a level are recorded."""
        return level <= self.level

    def new_id(self) -> int:
        """Returns the id of a span that will be added later, for its children."""
        with self._lock:
            self._next_id += 1
            return self._next_id

    def add(
        self,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        parent_id: int,
        *,
        span_id: int | None = None,
        batch: int = NO_BATCH,
        thread: int = 0,
    ) -> int:
        """Keeps a span that has ended, and returns its id: one of ``new_id``, or else a new one.

        Its times are on ``clock``, and it does not end before its start. The parent of a topmost span is
        ``context.span_id``.
        """
        with self._lock:
            if span_id is None:
                self._next_id += 1
                span_id = self._next_id
            if self._count >= self._limit:
                self._dropped += 1
                return span_id
            place = self._kinds.get(kind)
            if place is None:
                place = self._kinds[kind] = len(self._kinds)
                self._kind_characters += len(kind.name) + len(str(kind.attributes))
            values = (place, span_id, parent_id, start_ns + self.epoch_offset_ns, end_ns - start_ns)
            for column, value in zip(self._columns, (*values, batch, thread), strict=True):
                column.append(value)
            self._count += 1
            if len(self._columns[0]) >= CHUNK_SPANS or self._kind_characters >= _KIND_CHARACTERS_PER_CHUNK:
                self._cut()
        return span_id

    def add_chunk(self, chunk: SpanChunk) -> None:
        """Keeps spans of the same trace that another process has recorded."""
        with self._lock:
            if self._count + len(chunk) > self._limit:
                self._dropped += len(chunk)
                return
            self._full.append(chunk)
            self._count += len(chunk)

    def add_dropped(self, count: int) -> None:
        """Counts spans that another process has dropped."""
        with self._lock:
            self._dropped += count

    def note(self, text: str) -> None:
        """Keeps a note, in one line, about missing data of this trace; duplicates are ignored."""
        with self._lock:
            self._notes[text] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes, in order."""
        with self._lock:
            return tuple(self._notes)

    @property
    def dropped(self) -> int:
        """The number of spans that were dropped because of the limit."""
        with self._lock:
            return self._dropped

    def __len__(self) -> int:
        """Returns the number of spans that are kept."""
        with self._lock:
            return self._count

    def chunks(self) -> tuple[SpanChunk, ...]:
        """Returns the spans until now, and keeps them."""
        with self._lock:
            self._cut()
            return tuple(self._full)

    def take(self) -> tuple[SpanChunk, ...]:
        """Returns the spans since the last call, and discards them; they still count towards the limit."""
        with self._lock:
            self._cut()
            taken, self._full = tuple(self._full), []
            return taken

    def _cut(self) -> None:
        """Moves the spans in the columns to a new chunk."""
        if not len(self._columns[0]):
            return
        columns = [np.frombuffer(column, np.int64) for column in self._columns]
        self._full.append(SpanChunk(tuple(self._kinds), *columns))
        self._kinds, self._kind_characters, self._columns = {}, 0, _empty_columns()


def _empty_columns() -> tuple[array[int], ...]:
    return tuple(array("q") for _ in COLUMNS)


@dataclass(frozen=True, slots=True)
class TraceScope:
    """An open span, which is the parent of further ones, and their recorder.

    Attributes:
        layers: Whether layers are recorded too, at the levels that have them. A warm-up runs under the
            profiler, to warm it up as well, but its layers are not recorded.
        first_batch: The number of the next batch.
    """

    recorder: SpanRecorder
    parent_id: int
    layers: bool = True
    first_batch: int = 0

    @classmethod
    def top(cls, recorder: SpanRecorder) -> TraceScope:
        """Returns the scope of the topmost spans of a recorder."""
        return cls(recorder, recorder.context.span_id)

    @property
    def context(self) -> TraceContext:
        """The context to send to another process."""
        return replace(self.recorder.context, span_id=self.parent_id)

    @contextmanager
    def span(self, kind: SpanKind) -> Iterator[TraceScope]:
        """Records the time of the ``with`` block, also if it raises; yields the scope below."""
        clock = self.recorder.clock
        inner = TraceScope(self.recorder, self.recorder.new_id(), self.layers)
        started_ns = clock()
        try:
            yield inner
        finally:
            self.recorder.add(kind, started_ns, clock(), self.parent_id, span_id=inner.parent_id)

    def add(
        self, kind: SpanKind, start_ns: int, end_ns: int, *, batch: int = NO_BATCH, thread: int = 0
    ) -> TraceScope:
        """Records a span that has ended, and returns the scope below it; see ``SpanRecorder.add``."""
        span_id = self.recorder.add(kind, start_ns, end_ns, self.parent_id, batch=batch, thread=thread)
        return TraceScope(self.recorder, span_id, self.layers)

    def without_layers(self) -> TraceScope:
        """Returns the same scope without spans below MODEL_TRACE."""
        return replace(self, layers=False)


@contextmanager
def traced(scope: TraceScope | None, kind: SpanKind) -> Iterator[TraceScope | None]:
    """``scope.span(kind)``; does nothing without a scope."""
    if scope is None:
        yield None
    else:
        with scope.span(kind) as inner:
            yield inner
