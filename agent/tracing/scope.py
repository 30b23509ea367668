"""The scope: where in a trace the work that is under way belongs; it is handed on explicitly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.tracing.context import TraceContext
from agent.tracing.recorder import SpanRecorder
from agent.tracing.span import NO_BATCH, SpanKind


@dataclass(frozen=True, slots=True)
class TraceScope:
    """A span that is still open, and what records those below it.

    Attributes:
        recorder: Takes the spans.
        parent_id: The span that they hang under.
        layers: Whether layers are wanted too, at the levels that have them. A warm-up's are not: it runs
            under the profiler, so that the profiler warms up as well.
        first_batch: The number that the next batch has.
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
        """The scope as another process gets it."""
        return self.recorder.context.under(self.parent_id)

    @contextmanager
    def span(self, kind: SpanKind) -> Iterator[TraceScope]:
        """Records the time inside the ``with``, whether or not an error leaves it; gives the scope below."""
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
        """Returns the same scope for what is recorded no deeper than MODEL_TRACE."""
        return replace(self, layers=False)

    def from_batch(self, number: int) -> TraceScope:
        """Returns the same scope for a run that begins with the batch of a number."""
        return replace(self, first_batch=number)


@contextmanager
def traced(scope: TraceScope | None, kind: SpanKind) -> Iterator[TraceScope | None]:
    """``scope.span(kind)``, and nothing at all without a scope."""
    if scope is None:
        yield None
    else:
        with scope.span(kind) as inner:
            yield inner
