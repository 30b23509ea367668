"""Traces of a sample of the queries under load, chosen during the run and recorded after it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.calls import OK, ended
from inferometer.agent.tracing.recorder import TraceContext, TraceScope
from inferometer.agent.tracing.span import SpanKind, TraceLevel
from inferometer.evaluators.load.issuer import IssuedRun
from inferometer.evaluators.load.queries import Outcome

_BITS = 32
_MASK = (1 << _BITS) - 1
_FACTOR = 0x9E3779B1
"""2³² over the golden ratio: its multiples modulo 2³² are spread evenly (Knuth, TAOCP 3, 6.4)."""
_QUEUE = SpanKind("queue", TraceLevel.APPLICATION_TRACE)


class QuerySample:
    """The queries of one run that are traced, about a ``share`` of them, and the spans that they get.

    Choosing and stamping a query is a multiplication each, and needs no memory.
    """

    __slots__ = ("_base", "_context", "_limit", "_offset")

    def __init__(self, context: TraceContext, share: float, seed: Sequence[int]) -> None:
        self._context = context
        self._limit = round(share * (1 << _BITS))
        self._offset = int(np.random.default_rng(seed).integers(1 << _BITS))
        self._base = (secrets.randbits(31) or 1) << _BITS  # as a recorder makes its ids

    def __contains__(self, query: int) -> bool:
        return (query * _FACTOR + self._offset) & _MASK < self._limit

    def span_id(self, query: int) -> int:
        """Returns the id of the span of a query's call."""
        return self._base + query + 1

    def traceparent(self, query: int) -> str:
        """Returns the header that a query's call carries."""
        return replace(self._context, span_id=self.span_id(query)).traceparent

    def chosen(self, count: int) -> NDArray[np.int64]:
        """Returns those of the first queries that are traced: int64, ascending."""
        numbers = np.arange(count, dtype=np.uint64)
        places = (numbers * np.uint64(_FACTOR) + np.uint64(self._offset)) & np.uint64(_MASK)
        return np.flatnonzero(places < self._limit)


@runtime_checkable
class StampingTarget(Protocol):
    """A target that sends each query as a call, whose process can trace it, too."""

    @property
    def call(self) -> SpanKind:
        """The span of a query's call."""
        ...

    def stamp(self, sample: QuerySample | None) -> None:
        """Sends the trace with the calls of these queries from now on; None stops that."""
        ...


class LoadTrace:
    """The recorder of a sample of the queries of runs, which records each run after it has ended.

    Args:
        scope: The parent of the runs.
        share: The share of the queries that are traced.
        seed: The seed of their choice.
    """

    def __init__(self, scope: TraceScope, share: float, seed: int) -> None:
        self._scope = scope
        self._share = share
        self._seed = seed
        self._runs = 0

    def begin(self, target: object) -> QuerySample:
        """Returns the sample of the next run, with which the target stamps its calls."""
        sample = QuerySample(self._scope.context, self._share, (self._seed, self._runs))
        self._runs += 1
        if isinstance(target, StampingTarget):
            target.stamp(sample)
        return sample

    def record(self, target: object, sample: QuerySample, issued: IssuedRun, rate_qps: float) -> None:
        """Records a run: what is known of each query of its sample."""
        call = target.call if isinstance(target, StampingTarget) else None
        queries, began_ns = issued.queries, issued.began_ns
        last_ns = max(int(queries.done_ns.max()), int(queries.sent_ns.max()), 0) if len(queries) else 0
        kind = SpanKind.of("run", TraceLevel.APPLICATION_TRACE, rate_qps=rate_qps)
        run = self._scope.add(kind, began_ns, began_ns + last_ns)
        for query in sample.chosen(len(queries)).tolist():
            due_ns, sent_ns, done_ns = (
                int(column[query]) for column in (queries.scheduled_ns, queries.sent_ns, queries.done_ns)
            )
            if sent_ns < 0:
                continue
            outcome = Outcome(int(queries.outcome[query]))
            error = None if outcome is Outcome.ANSWERED else outcome.name.lower()
            done_ns = done_ns if done_ns >= 0 else last_ns
            found = {} if error is None else {"error.type": error}
            kind = SpanKind.of("query", TraceLevel.APPLICATION_TRACE, query=query, **found)
            scope = run.add(kind, began_ns + due_ns, began_ns + done_ns)
            if call is not None:
                of_call = ended(call, OK) if error is None else _failed(call, error)
                ids = (scope.parent_id, sample.span_id(query))
                self._scope.recorder.add(
                    of_call, began_ns + sent_ns, began_ns + done_ns, ids[0], span_id=ids[1]
                )
            elif error is None:
                times = tuple(int(getattr(queries, name)[query]) for name in _TIMES)
                _record_batch(scope, began_ns + sent_ns, began_ns + done_ns, times)


_TIMES = ("queue_ns", "batch_ns", "predict_ns", "batch_size")


def _record_batch(scope: TraceScope, sent_ns: int, done_ns: int, times: tuple[int, ...]) -> None:
    """Records the wait and the batch of a query in this process; -1 is a time that is not known."""
    queue_ns, batch_ns, predict_ns, size = times
    if queue_ns < 0:
        return
    begun_ns = min(sent_ns + queue_ns, done_ns)
    scope.add(_QUEUE, sent_ns, begun_ns)
    batch = scope.add(SpanKind.of("batch", TraceLevel.APPLICATION_TRACE, batch_size=size), begun_ns, done_ns)
    if batch_ns >= 0 and predict_ns >= 0:
        predict = SpanKind.of("predict", TraceLevel.MODEL_TRACE, batch_size=size)
        began_ns = min(begun_ns + batch_ns, done_ns)
        batch.add(predict, began_ns, min(began_ns + predict_ns, done_ns))


def _failed(call: SpanKind, error: str) -> SpanKind:
    """Returns the span of a call without a right answer, whose status was not kept."""
    return replace(call, attributes=tuple(sorted((*call.attributes, ("error.type", error)))))
