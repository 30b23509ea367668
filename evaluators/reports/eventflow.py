"""The eventflow report: every span of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator

from inferometer.agent.tracing.recorder import span_id_text
from inferometer.agent.tracing.span import NO_BATCH, NO_PARENT, SpanChunk, TraceLevel
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.trace_report import TRACED, Traced, TraceReport

_NS_PER_US = 1000


class EventflowReport(TraceReport[Traced]):
    """One row for each span, in the stored order, which is mostly the order in which the spans ended."""

    name = "eventflow"
    summary = "every span of the traces"
    level = TraceLevel.APPLICATION_TRACE
    takes = TRACED
    columns = (
        Column("id", "id", is_id=True),
        Column("span_id", "span", detail=1),
        Column("parent_id", "parent", detail=1),
        Column("name", "name"),
        Column("level", "level"),
        Column("start_unix_ns", "start (ns since 1970)", detail=1),
        Column("duration_us", "duration (us)"),
        Column("batch", "batch"),
        Column("thread", "thread", detail=1),
        Column("attributes", "attributes", detail=1),
    )

    def rows_of_one(self, evaluation: Evaluation[Traced], chunks: Iterator[SpanChunk]) -> Iterator[Row]:
        """Yields a row for each span of an evaluation; ``attributes`` is a JSON object."""
        for chunk in chunks:
            attributes = [json.dumps(dict(kind.attributes), ensure_ascii=False) for kind in chunk.kinds]
            for position, span_id, parent_id, start_ns, duration_ns, batch, thread in chunk.values():
                kind = chunk.kinds[position]
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
                    "attributes": attributes[position],
                }
