"""The spans of requests on their way through a model's queue: the wait, the batch, and the prediction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from inferometer.agent.inference.run_tracing import RunTracing
from inferometer.agent.inference.session import Session
from inferometer.agent.serving.request_queue import Request
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceScope
from inferometer.agent.tracing.span import NO_BATCH, NO_PARENT, SpanChunk, SpanKind, SpanLink, TraceLevel

BATCH = "batch"
"""The name of a batch's span."""
_QUEUE = SpanKind("queue", TraceLevel.APPLICATION_TRACE)
_UPPER = 32  # the bits of an id that tell its recorder; see SpanRecorder


def record_wait(trace: TraceScope, came_ns: int, ended_ns: int) -> None:
    """Records how long a request has waited; times are on the recorder's clock."""
    trace.add(_QUEUE, came_ns, ended_ns)


@contextmanager
def traced_batch(
    requests: Sequence[Request], session: Session, clock: Callable[[], int]
) -> Iterator[RunTracing | None]:
    """Traces a batch for those of its requests that are traced; yields None where none is.

    A batch is recorded once, and is then in the trace of each such request, with ids of its own there and
    links to all the requests that it was made of, as far as they are traced.
    """
    traced = [(request, request.trace) for request in requests if request.trace is not None]
    if not traced:
        yield None
        return
    begun_ns = clock()
    recorder = SpanRecorder(TraceContext.new(), max(trace.recorder.level for _, trace in traced), clock=clock)
    size = sum(request.inputs for request in requests)
    try:
        with session.traced_batch(TraceScope.top(recorder), BATCH, size, len(requests)) as tracing:
            yield tracing
    finally:
        links = [SpanLink(trace.recorder.context.trace_id, trace.parent_id) for _, trace in traced]
        chunks = recorder.chunks()
        for request, trace in traced:
            record_wait(trace, request.came_ns, begun_ns)
            for copied in _copies(chunks, trace, links):
                trace.recorder.add_chunk(copied)


def _copies(chunks: Sequence[SpanChunk], trace: TraceScope, links: Sequence[SpanLink]) -> Iterator[SpanChunk]:
    """The spans of a batch below a request, with new ids; they have no number of a batch."""
    upper = (secrets.randbits(31) or 1) << _UPPER
    lower = (1 << _UPPER) - 1
    for chunk in chunks:
        span_id = (chunk.span_id & lower) | upper
        is_top = chunk.parent_id == NO_PARENT
        parent_id = np.where(is_top, trace.parent_id, (chunk.parent_id & lower) | upper)
        yield replace(
            chunk,
            span_id=span_id,
            parent_id=parent_id,
            batch=np.full_like(chunk.batch, NO_BATCH),
            links={int(id_): links for id_ in span_id[is_top]},
        )
