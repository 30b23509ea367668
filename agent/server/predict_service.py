"""The ``Predict`` service: convert, call, convert."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from time import perf_counter_ns
from time import time_ns as unix_ns
from typing import Any, TypeAlias

import grpc

from agent.inputs import Input, Tensor
from agent.results import BatchResult, Infer
from agent.server.call_tracing import ServerTracing
from agent.server.conversion import open_response, read_inputs
from agent.server.dataset_runner import DatasetRunner
from agent.server.dataset_stream import DatasetStream, read_order
from agent.server.limits import Limits
from agent.server.messages import PredictCall, decode_request, encode_answer, encode_response
from agent.server.models.queued_session import QueuedSession
from agent.server.observing.call import is_about
from agent.server.predict_stream import BatchStream, StreamedBatch
from agent.server.rpc import Methods
from agent.server.sessions import Sessions
from agent.server.span_messages import TracePart
from agent.server.status import NotOfferedError
from agent.server.steps import Steps, Work
from agent.server.stream_limit import StreamLimit
from agent.session import Session
from agent.tracing.scope import TraceScope
from manifests.errors import InputError, RequestCancelledError
from protos.inferscope.v1 import predict_pb2

OpenModel: TypeAlias = Callable[[predict_pb2.OpenRequest, TraceScope | None], Callable[[], Session]]
"""Finds the model that a request names, and returns what loads it."""
SERVICE = predict_pb2.DESCRIPTOR.services_by_name["Predict"].full_name


class PredictService:
    """Opens models and runs them.

    Args:
        open_model: See ``OpenModel``.
        sessions: The open sessions.
        dataset_runner: Evaluates datasets; None where the agent cannot.
        streams: Lets streams in.
        tracing: Begins the traces of calls.
        limits: What a request may ask for.
    """

    def __init__(
        self,
        open_model: OpenModel,
        sessions: Sessions,
        dataset_runner: DatasetRunner | None,
        streams: StreamLimit,
        tracing: ServerTracing,
        limits: Limits,
    ) -> None:
        self._open_model = open_model
        self._sessions = sessions
        self._dataset_runner = dataset_runner
        self._streams = streams
        self._tracing = tracing
        self._limits = limits

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's methods by name."""
        methods = Methods(SERVICE)
        unary, pb = methods.unary, predict_pb2
        return {
            "Open": unary("Open", self.open, pb.OpenRequest.FromString, pb.OpenResponse.SerializeToString),
            "Close": unary(
                "Close", self.close, pb.CloseRequest.FromString, pb.CloseResponse.SerializeToString
            ),
            "Reset": unary(
                "Reset", self.reset, pb.ResetRequest.FromString, pb.ResetResponse.SerializeToString
            ),
            "Clock": unary(
                "Clock", self.clock, pb.ClockRequest.FromString, pb.ClockResponse.SerializeToString
            ),
            "Predict": methods.in_steps("Predict", self.predict, decode_request, encode_response),
            "PredictStream": methods.both_stream(
                "PredictStream", self.predict_stream, decode_request, encode_answer
            ),
            "Dataset": methods.server_stream(
                "Dataset",
                self.dataset,
                pb.DatasetRequest.FromString,
                pb.DatasetResponse.SerializeToString,
            ),
        }

    def open(
        self, request: predict_pb2.OpenRequest, context: grpc.ServicerContext
    ) -> predict_pb2.OpenResponse:
        """Loads a model."""
        trace = self._tracing.begin(context)
        with trace or nullcontext():  # what was recorded of a loading that fails is exported, too
            id_, session = self._sessions.open(self._open_model(request, trace.scope if trace else None))
            is_about(session.description.manifest.name)
            if not context.is_active():  # nobody would learn its id
                self._sessions.close(id_)
                raise RequestCancelledError("the client went away while its model was loaded")
            return open_response(id_, session.description, trace.part(last=True) if trace else None)

    def clock(self, _: predict_pb2.ClockRequest, __: grpc.ServicerContext) -> predict_pb2.ClockResponse:
        """Tells the time."""
        return predict_pb2.ClockResponse(unix_ns=unix_ns())

    def close(self, request: predict_pb2.CloseRequest, _: grpc.ServicerContext) -> predict_pb2.CloseResponse:
        """Frees a session."""
        self._sessions.close(request.session_id)
        return predict_pb2.CloseResponse()

    def reset(self, _: predict_pb2.ResetRequest, __: grpc.ServicerContext) -> predict_pb2.ResetResponse:
        """Closes every session."""
        return predict_pb2.ResetResponse(closed_sessions=self._sessions.close_all())

    def predict(self, call: PredictCall, context: grpc.ServicerContext) -> Steps[BatchResult]:
        """Predicts one batch, in steps; what is to be preprocessed or traced takes a thread."""
        self._limits.check_inputs(call.size)
        with self._sessions.use(call.message.session_id) as session:
            is_about(session.description.manifest.name)
            trace = self._tracing.begin(context)
            if trace is None and call.batch is not None and isinstance(session, QueuedSession):
                _check_only_batch(call)
                array = call.batch.array("batch")
                return (yield from session.tensor_steps(array, context, perf_counter_ns))
            with trace or nullcontext():
                scope, infer = (None, _infer_for(session, context)) if trace is None else (trace.scope, None)
                result: BatchResult = yield Work(lambda: _predicted(session, call, scope, infer))
            return result

    def predict_stream(
        self, calls: Iterator[PredictCall], context: grpc.ServicerContext
    ) -> Generator[BatchResult | TracePart, None, None]:
        """Predicts batch after batch, all with the session that the first request names.

        Spans that the client wants come between the results and after the last one.
        """
        with self._streams.one():
            first = next(calls, None)
            if first is None:
                return
            id_ = first.message.session_id
            with self._sessions.use(id_) as session:
                is_about(session.description.manifest.name)
                every = itertools.chain([first], calls)
                stream = BatchStream(self._streamed(call, id_) for call in every)
                trace = self._tracing.begin(context)
                if trace is None:
                    yield from _while_active(stream.results(session), context)
                    return
                with trace:
                    for result in _while_active(stream.results(session, trace.scope), context):
                        yield result
                        if part := trace.part():
                            yield part
                    if context.is_active() and (part := trace.part(last=True)):
                        yield part

    def _streamed(self, call: PredictCall, session_id: str) -> StreamedBatch:
        self._limits.check_inputs(call.size)
        return StreamedBatch(_inputs(call, session_id), call.message.more)

    def dataset(
        self, request: predict_pb2.DatasetRequest, context: grpc.ServicerContext
    ) -> Generator[predict_pb2.DatasetResponse, None, None]:
        """Evaluates a dataset of the agent's."""
        if self._dataset_runner is None:
            raise NotOfferedError("this agent evaluates no datasets")
        order = read_order(request)
        self._limits.check_inputs(order.batch_size)
        with self._streams.one():
            id_, session = self._sessions.open(self._open_model(request.model, None))
            is_about(session.description.manifest.name)
            try:
                with self._sessions.use(id_):
                    yield from DatasetStream(self._dataset_runner, session, order).responses(context)
            finally:
                self._sessions.close(id_)


def _infer_for(session: Session, context: grpc.ServicerContext) -> Infer | None:
    return session.infer_for(context, perf_counter_ns) if isinstance(session, QueuedSession) else None


def _predicted(
    session: Session, call: PredictCall, trace: TraceScope | None, infer: Infer | None = None
) -> BatchResult:
    """The result of one request that is no stream's: the same one, traced or not."""
    if call.batch is not None:
        _check_only_batch(call)
        return session.predict_tensor(call.batch.array("batch"), trace, infer)
    inputs = read_inputs(call.message.inputs)
    if trace is None:
        return session.predict(inputs, infer)
    [result] = session.predict_batches([inputs], trace)
    return result


def _while_active(
    results: Generator[BatchResult, None, None], context: grpc.ServicerContext
) -> Generator[BatchResult, None, None]:
    """The results, as long as the client is there."""
    with closing(results):
        for result in results:
            yield result
            if not context.is_active():
                return


def _inputs(call: PredictCall, session_id: str) -> Sequence[Input]:
    """The inputs of one request of a stream."""
    if call.message.session_id != session_id:
        raise InputError("the requests of a stream all name the session of the first one")
    if call.batch is None:
        inputs = read_inputs(call.message.inputs)
    else:
        _check_only_batch(call)
        array = call.batch.array("batch")
        inputs = tuple(Input(str(i), Tensor(row)) for i, row in enumerate(array)) if array.ndim else ()
    if not inputs:
        raise InputError("the batch is empty; it needs at least one input")
    return inputs


def _check_only_batch(call: PredictCall) -> None:
    if call.message.inputs:
        raise InputError("the request has both inputs and batch; give one of them")
