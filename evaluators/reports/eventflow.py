"""The eventflow report: every span of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from agent.trace_level import TraceLevel
from agent.tracing.context import span_id_text
from agent.tracing.span import NO_BATCH, NO_PARENT, SpanChunk
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Column, Row
from evaluators.reports.trace_report import TraceReport

_NS_PER_US = 1000


class EventflowReport(TraceReport):
    """One row for each span, in the order in which the spans are kept: that in which they ended, mostly."""

    name: ClassVar[str] = "eventflow"
    summary: ClassVar[str] = "every span of the traces"
    level: ClassVar[TraceLevel] = TraceLevel.APPLICATION_TRACE
    columns: ClassVar[tuple[Column, ...]] = (
        Column("id", "id"),
        Column("span_id", "span"),
        Column("parent_id", "parent"),
        Column("name", "name"),
        Column("level", "level"),
        Column("start_unix_ns", "start (ns since 1970)"),
        Column("duration_us", "duration (us)"),
        Column("batch", "batch"),
        Column("thread", "thread"),
        Column("attributes", "attributes"),
    )

    def rows_of_one(self, evaluation: Evaluation, chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each span of an evaluation; ``attributes`` is a JSON object."""
        for chunk in chunks:
            attributes = [json.dumps(dict(kind.attributes), ensure_ascii=False) for kind in chunk.kinds]
            for place, span_id, parent_id, start_ns, duration_ns, batch, thread in zip(
                chunk.kind.tolist(),
                chunk.span_id.tolist(),
                chunk.parent_id.tolist(),
                chunk.start_ns.tolist(),
                chunk.duration_ns.tolist(),
                chunk.batch.tolist(),
                chunk.thread.tolist(),
                strict=True,
            ):
                kind = chunk.kinds[place]
                yield {
                    "id": evaluation.id,
                    "span_id": span_id_text(span_id),
                    "parent_id": None if parent_id == NO_PARENT else span_id_text(parent_id),
                    "name": kind.name,
                    "level": kind.level.name,
                    "start_unix_ns": start_ns,
                    "duration_us": duration_ns / _NS_PER_US,
                    "batch": None if batch == NO_BATCH else batch,
                    "thread": thread,
                    "attributes": attributes[place],
                }
