"""The traces of an agent's calls, which go to the client or to a collector."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from inferometer.agent.closeable import Closeable
from inferometer.agent.protocol.metadata import LAYERS_KEY, LEVEL_KEY, TRACEPARENT_KEY
from inferometer.agent.protocol.span_messages import TracePart
from inferometer.agent.server.rpc import CallContext
from inferometer.agent.tracing.exporting import ExportReport, TraceExport
from inferometer.agent.tracing.recorder import CHUNK_SPANS, SpanRecorder, TraceContext, TraceScope
from inferometer.agent.tracing.resource import AGENT_SERVICE, process_resource
from inferometer.agent.tracing.span import Attributes, TraceLevel
from inferometer.manifests.errors import ConfigurationError


def agent_resource() -> Attributes:
    """Returns the resource of an agent in this process, with an instance id of its own."""
    return process_resource(AGENT_SERVICE, secrets.token_hex())


class CallTrace(Closeable):
    """The trace of one call, until it is closed; without an ``export`` it is for the client."""

    def __init__(self, scope: TraceScope, export: TraceExport | None, resource: Attributes = ()) -> None:
        self.scope = scope
        self._resource = resource
        self._export = export
        self._recorder = scope.recorder
        self._taken = 0
        self._dropped = 0
        self._notes = 0

    def close(self) -> None:
        """Exports the spans that are left, if the agent has a collector."""
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
        part = TracePart(chunks, dropped - self._dropped, notes[self._notes :], self._resource)
        self._resource = ()  # one part has it
        self._dropped, self._notes = dropped, len(notes)
        return part


class ServerTracing:
    """Traces the calls of clients that ask for it. Thread-safe.

    The spans of those that do not take them themselves go to ``export``, up to ``level``; with None, such
    calls are not traced. ``resource`` is that of an agent, for the clients that take its spans.
    """

    def __init__(
        self,
        export: TraceExport | None = None,
        level: TraceLevel = TraceLevel.MODEL_TRACE,
        resource: Attributes | None = None,
    ) -> None:
        self._resource = agent_resource() if resource is None else resource
        self._export = export
        self._level = level

    def begin(self, call: CallContext) -> CallTrace | None:
        """Returns the trace of a call; None where it is not traced.

        Raises ConfigurationError if the client names an unknown level.
        """
        return self.trace_of({str(key): str(value) for key, value in call.metadata})

    def trace_of(self, metadata: Mapping[str, str]) -> CallTrace | None:
        """Returns the trace that a call's metadata requests; see ``begin``."""
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
        return CallTrace(TraceScope(recorder, caller.span_id, layers), export, self._resource)

    def close(self) -> ExportReport | None:
        """Ends the export; returns what became of the spans, where there were any."""
        if self._export is None:
            return None
        report = self._export.close()
        return report if report.delivered or report.undelivered else None
