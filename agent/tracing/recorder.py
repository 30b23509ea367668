"""The recorder: takes spans as they end, and keeps them in columns."""

from __future__ import annotations

import secrets
import threading
import time
from array import array
from collections.abc import Callable

import numpy as np

from agent.trace_level import TraceLevel
from agent.tracing.context import TraceContext
from agent.tracing.span import COLUMNS, NO_BATCH, SpanChunk, SpanKind

CHUNK_SPANS = 16_384
"""Spans in one chunk, at the most."""
MAX_SPANS = 20_000_000
"""Spans that one recorder keeps, about 60 bytes each; what comes after is counted and left out."""
_COUNTER_BITS = 32
_KIND_CHARACTERS_PER_CHUNK = 2_000_000  # a chunk becomes a document, and MongoDB's hold 16 MB


class SpanRecorder:
    """Keeps the spans of one trace that this process records, or gets from another. Thread-safe.

    Times are given on ``clock`` and kept as nanoseconds since 1970: how far the two are apart is read once,
    so that a step of the system's clock does not tear a trace.

    Args:
        context: The trace, and the span that the topmost ones hang under.
        level: What is recorded; spans of deeper levels are not to be added.
        limit: The most spans that are kept.
        clock: A monotonic clock in nanoseconds.
        wall_clock: Nanoseconds since 1970.
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
        """What is added to a time of ``clock`` to have nanoseconds since 1970."""
        self._limit = limit
        self._lock = threading.Lock()
        # The upper half of an id tells the recorders of a trace apart; it keeps ids positive in 64 bits.
        self._next_id = (secrets.randbits(31) or 1) << _COUNTER_BITS
        self._full: list[SpanChunk] = []
        self._kinds: dict[SpanKind, int] = {}
        self._kind_characters = 0
        self._columns = _empty_columns()
        self._count = 0
        self._dropped = 0
        self._notes: dict[str, None] = {}

    def wants(self, level: TraceLevel) -> bool:
        """Whether spans of a level are recorded."""
        return level <= self.level

    def new_id(self) -> int:
        """Returns the id of a span that will be added later, for those below it."""
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
        """Keeps a span that has ended, and returns its id.

        Args:
            kind: What it is.
            start_ns: When it began, on ``clock``.
            end_ns: When it ended; not before it began.
            parent_id: The span that it lies in; ``context.span_id`` for a topmost one.
            span_id: From ``new_id``; None draws one.
            batch: The number of its batch.
            thread: What it ran on.
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
        """Keeps spans of the same trace that another process has recorded, as they are."""
        with self._lock:
            if self._count + len(chunk) > self._limit:
                self._dropped += len(chunk)
                return
            self._full.append(chunk)
            self._count += len(chunk)

    def add_dropped(self, count: int) -> None:
        """Counts spans that another process has left out."""
        with self._lock:
            self._dropped += count

    def note(self, text: str) -> None:
        """Keeps, once, what this trace cannot give and why, in one line for a person."""
        with self._lock:
            self._notes[text] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was noted, in order."""
        with self._lock:
            return tuple(self._notes)

    @property
    def dropped(self) -> int:
        """Spans that were left out because of the limit."""
        with self._lock:
            return self._dropped

    def __len__(self) -> int:
        """The number of spans that are kept."""
        with self._lock:
            return self._count

    def chunks(self) -> tuple[SpanChunk, ...]:
        """Returns what was recorded until now; it stays here."""
        with self._lock:
            self._cut()
            return tuple(self._full)

    def take(self) -> tuple[SpanChunk, ...]:
        """Returns what was recorded since the last time, and forgets it; it still counts to the limit."""
        with self._lock:
            self._cut()
            taken, self._full = tuple(self._full), []
            return taken

    def _cut(self) -> None:
        """Makes a chunk of the spans that are in none yet."""
        if not len(self._columns[0]):
            return
        columns = [np.frombuffer(column, np.int64) for column in self._columns]
        self._full.append(SpanChunk(tuple(self._kinds), *columns))
        self._kinds, self._kind_characters, self._columns = {}, 0, _empty_columns()


def _empty_columns() -> tuple[array[int], ...]:
    return tuple(array("q") for _ in COLUMNS)
