"""The traces of an agent's calls: begun by what the client sends, and given back to it or exported."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import grpc
from typing_extensions import Self

from agent.server.span_messages import TracePart
from agent.trace_level import TraceLevel
from agent.tracing.context import TraceContext
from agent.tracing.exporting import ExportReport, TraceExport
from agent.tracing.recorder import CHUNK_SPANS, SpanRecorder
from agent.tracing.scope import TraceScope
from manifests.errors import ConfigurationError

TRACEPARENT_KEY = "traceparent"
"""The W3C header; a call without it, with one that makes no sense or that is not sampled is not traced."""
LEVEL_KEY = "inferscope-trace-level"
"""The level, from a client that takes the spans itself."""
LAYERS_KEY = "inferscope-trace-layers"
"""``0`` where a client wants no layers, as of a warm-up."""


class CallTrace:
    """The trace of one call, as long as it is entered.

    Args:
        scope: Where the call's spans go.
        export: Where they are sent; None keeps them for the client.
    """

    def __init__(self, scope: TraceScope, export: TraceExport | None) -> None:
        self.scope = scope
        self._export = export
        self._recorder = scope.recorder
        self._taken = 0
        self._dropped = 0
        self._notes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hands over what is left to the agent's own collector; what the client has not taken is lost."""
        self.part(last=True)

    def part(self, *, last: bool = False) -> TracePart:
        """Returns what is to be sent to the client now: whole chunks, and with ``last`` all the rest.

        What the client does not take goes to the agent's own collector, as much of it at a time.
        """
        if not last and len(self._recorder) - self._taken < CHUNK_SPANS:
            return TracePart()
        chunks = self._recorder.take()
        self._taken = len(self._recorder)
        if self._export is not None:
            self._export.send(self._recorder.context.trace_id, chunks)
            return TracePart()
        dropped, notes = self._recorder.dropped, self._recorder.notes
        part = TracePart(chunks, dropped - self._dropped, notes[self._notes :])
        self._dropped, self._notes = dropped, len(notes)
        return part


class ServerTracing:
    """Traces the calls of clients that ask for it. Thread-safe.

    Args:
        export: Where the spans of those go that do not take them themselves; None traces only the others.
        level: The level of what is exported.
    """

    def __init__(self, export: TraceExport | None = None, level: TraceLevel = TraceLevel.MODEL_TRACE) -> None:
        self._export = export
        self._level = level

    def begin(self, context: grpc.ServicerContext) -> CallTrace | None:
        """Returns the trace of a call; None where it is not traced.

        Raises:
            ConfigurationError: The client names a level that there is not.
        """
        metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        return self.trace_of(metadata)

    def trace_of(self, metadata: Mapping[str, str]) -> CallTrace | None:
        """Returns the trace that a call's metadata asks for; see ``begin``."""
        header = metadata.get(TRACEPARENT_KEY)
        if header is None:
            return None
        try:
            caller = TraceContext.parse(header)
        except ConfigurationError:  # as the recommendation of the W3C has it
            return None
        wanted = metadata.get(LEVEL_KEY)
        level = self._level if wanted is None else TraceLevel.named(wanted)
        export = self._export if wanted is None else None
        if not caller.sampled or level is TraceLevel.NO_TRACE or (wanted is None and export is None):
            return None
        recorder = SpanRecorder(caller, level)
        layers = metadata.get(LAYERS_KEY) != "0"
        return CallTrace(TraceScope(recorder, caller.span_id, layers), export)

    def close(self) -> ExportReport | None:
        """Ends the export; returns what became of the spans, where there were any."""
        if self._export is None:
            return None
        report = self._export.close()
        return report if report.delivered or report.undelivered else None
