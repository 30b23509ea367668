"""The traces of an agent's calls, which go to the client or to a collector."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import grpc

from inferometer.agent.hardware.environment import AGENT_SERVICE, process_resource
from inferometer.agent.protocol.conversion import TracePart
from inferometer.agent.protocol.status import LAYERS_KEY, LEVEL_KEY, status_code
from inferometer.agent.server.calls import CallContext
from inferometer.agent.tracing.exporting import ExportReport, TraceExport
from inferometer.agent.tracing.recorder import (
    CHUNK_SPANS,
    Attributes,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    TraceScope,
    ended,
)

_REQUEST = SpanKind("request", TraceLevel.APPLICATION_TRACE)


def agent_resource() -> Attributes:
    """Returns the resource of an agent in this process, with a new instance id."""
    return process_resource(AGENT_SERVICE, secrets.token_hex())


class CallTrace(AbstractContextManager["CallTrace"]):
    """The trace of one call until it is closed; without an ``export``, the client receives the spans.

    ``scope`` is a child of the call's own span, which begins at construction and ends with the last part.
    """

    def __init__(
        self,
        caller: TraceScope,
        call: CallContext,
        span: SpanKind,
        export: TraceExport | None,
        resource: Attributes,
    ) -> None:
        self._caller = caller
        self._call = call
        self._span: SpanKind | None = span
        self._http_status: int | None = None
        self._recorder = recorder = caller.recorder
        self._began_ns = recorder.clock()
        self.scope = replace(caller, parent_id=recorder.new_id())
        self._code = grpc.StatusCode.OK
        self._resource = resource
        self._export = export
        self._taken = 0
        self._dropped = 0
        self._notes = 0

    def __exit__(self, *raised: object) -> None:
        error = raised[1]
        if isinstance(error, BaseException):
            self._code, self._http_status = status_code(error), self._call.http_status(error)
        self.close()

    def close(self) -> None:
        """Exports the remaining spans if the agent has a collector."""
        self.part(last=True)

    @contextmanager
    def request(self) -> Iterator[TraceScope]:
        """Traces one request of a stream, and exports its spans when it ends."""
        recorder, span_id = self._recorder, self._recorder.new_id()
        began_ns, kind = recorder.clock(), _REQUEST
        try:
            yield replace(self.scope, parent_id=span_id)
        except BaseException as error:
            kind = replace(_REQUEST, attributes=(("error.type", type(error).__name__),))
            raise
        finally:
            recorder.add(kind, began_ns, recorder.clock(), self.scope.parent_id, span_id=span_id)
            if self._export is not None:
                self._export.send(recorder.context.trace_id, recorder.take())

    def part(self, *, last: bool = False) -> TracePart:
        """Returns the spans to send to the client now: whole chunks, plus all remaining spans if ``last``.

        Spans that the client does not receive go to the agent's own collector, in parts of the same size.
        """
        if not last and len(self._recorder) - self._taken < CHUNK_SPANS:
            return TracePart()
        if last:
            self._end_call()
        chunks = self._recorder.take()
        self._taken = len(self._recorder)
        if self._export is not None:
            self._export.send(self._recorder.context.trace_id, chunks)
            return TracePart()
        dropped, notes = self._recorder.dropped, self._recorder.notes
        part = TracePart(chunks, dropped - self._dropped, notes[self._notes :], self._resource)
        self._resource = ()  # only one part of a trace carries the resource
        self._dropped, self._notes = dropped, len(notes)
        return part

    def _end_call(self) -> None:
        """Records the call's own span once."""
        span, self._span = self._span, None
        if span is not None:
            kind, recorder = ended(span, self._code, self._http_status), self._recorder
            span_id, parent_id = self.scope.parent_id, self._caller.parent_id
            recorder.add(kind, self._began_ns, recorder.clock(), parent_id, span_id=span_id)


class ServerTracing:
    """Traces the calls of clients that request it. Thread-safe.

    For clients that do not receive the spans themselves, the spans go to ``export``, up to ``level``; if
    ``export`` is None, such calls are not traced. ``resource`` describes the agent to the clients that
    receive its spans.
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
        self._listens_at: Attributes = ()

    def listens_at(self, host: str, port: int) -> None:
        """Sets the address that the agent listens on, for the spans of its calls."""
        self._listens_at = (("server.address", host), ("server.port", port))

    def begin(self, call: CallContext, *, exported: bool = False) -> CallTrace | None:
        """Returns the trace of a call; None if the call is not traced.

        ``exported`` says that the client receives no spans, whatever it asks for.

        Raises ConfigurationError if the client names an unknown level.
        """
        caller = call.record.trace
        if caller is None:
            return None
        asked = {} if exported else {key: str(value) for key, value in call.metadata}
        wanted = asked.get(LEVEL_KEY)
        level = self._level if wanted is None else TraceLevel.named(wanted)
        export = self._export if wanted is None else None
        if not caller.sampled or level is TraceLevel.NO_TRACE or (wanted is None and export is None):
            return None
        scope = TraceScope(SpanRecorder(caller, level), caller.span_id, asked.get(LAYERS_KEY) != "0")
        return CallTrace(scope, call, call.span(self._listens_at), export, self._resource)

    def close(self) -> ExportReport | None:
        """Ends the export and returns its outcome, if any spans were exported."""
        if self._export is None:
            return None
        report = self._export.close()
        return report if report.delivered or report.undelivered else None
