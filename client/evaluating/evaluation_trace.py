"""The trace of one evaluation: recorded while it runs, exported at its end, and kept with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from agent.trace_level import TraceLevel
from agent.tracing.context import TraceContext
from agent.tracing.recorder import SpanRecorder
from agent.tracing.scope import TraceScope
from agent.tracing.span import SpanKind
from evaluators.evaluation import Evaluation, TraceSummary

if TYPE_CHECKING:
    from agent.tracing.address import TraceAddress
    from agent.tracing.exporting import TraceExport


class EvaluationTrace:
    """Records one evaluation.

    Args:
        level: What is recorded; NO_TRACE records nothing and makes no recorder.
        address: Where spans are sent too; None keeps them in the store only.
        group_id: The group that the evaluation belongs to, if any.

    Raises:
        ConfigurationError: The address is none, or what sends spans there is not installed.
    """

    def __init__(self, level: TraceLevel, address: str | None, group_id: str | None = None) -> None:
        self._recorder = SpanRecorder(TraceContext.new(), level) if level > TraceLevel.NO_TRACE else None
        self._group_id = group_id
        self._address: TraceAddress | None = None
        self._export: TraceExport | None = None
        if address is not None:
            from agent.tracing.address import TraceAddress

            self._address = TraceAddress.parse(address)
        if self._address is not None and self._recorder is not None:
            from agent.tracing.exporting import TraceExport

            self._export = TraceExport.open(self._address)

    @contextmanager
    def root(self, model_name: str) -> Iterator[TraceScope | None]:
        """Records the span that holds the whole evaluation; None where nothing is recorded."""
        if self._recorder is None:
            yield None
            return
        kind = SpanKind.of(
            "evaluation", TraceLevel.APPLICATION_TRACE, model_name=model_name, group_id=self._group_id
        )
        with TraceScope.top(self._recorder).span(kind) as scope:
            yield scope

    def kept(self, evaluation: Evaluation) -> Evaluation:
        """Returns the evaluation with its trace, and begins to send that; to be called after ``root``."""
        recorder = self._recorder
        if recorder is None:
            return evaluation
        chunks = recorder.chunks()
        trace_id = recorder.context.trace_id
        if self._export is not None:
            self._export.send(trace_id, chunks)
        summary = TraceSummary(
            trace_id=trace_id,
            span_count=len(recorder),
            dropped=recorder.dropped,
            notes=recorder.notes,
            url=self._address.trace_url(trace_id) if self._address else None,
        )
        return replace(evaluation, trace=summary, spans=chunks)

    def close(self) -> None:
        """Waits for what is still to be sent as long as the collector takes it, and says what was not."""
        export, self._export = self._export, None
        if export is not None:
            report = export.close()
            if report.undelivered or report.delivered:
                click.echo(str(report), err=True)
