"""``PredictService``: opens models and runs them.

Its method ``Dataset`` runs an evaluation in a thread and reports its progress.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import time_ns as unix_ns
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.conditions import GpuReader, read_counters
from inferometer.agent.inference.session import Session
from inferometer.agent.inference.stages import BatchResult
from inferometer.agent.preprocessing.inputs import Input, NamedTensors, Tensor, Tensors
from inferometer.agent.protocol.conversion import TracePart, conditions_response, open_response, read_inputs
from inferometer.agent.protocol.messages import PredictCall, decode_request, encode_answer, encode_response
from inferometer.agent.protocol.status import NotOfferedError
from inferometer.agent.server.admission import Limits, StreamLimit
from inferometer.agent.server.calls import CallContext, Codec, Method, finished, methods_of
from inferometer.agent.server.native.call_tracing import CallTrace, ServerTracing
from inferometer.agent.server.native.sessions import ModelFinder, Sessions
from inferometer.agent.serving.observers import is_about
from inferometer.agent.serving.served_model import Lease
from inferometer.agent.serving.served_models import ServedModels
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import ConfigurationError, InputError, RequestCancelledError
from inferometer.protos.inferometer.v1 import predict_pb2


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """The options of an evaluation that a client requests.

    Without a name, the dataset of the model's manifest is used; without a category, any category matches.
    ``num_file_parts`` parts of ``partition_list_size`` inputs are evaluated (-1 evaluates all), after
    ``warmup_num_file_parts`` parts that are not measured. ``feature_limit`` is the number of best classes
    that are kept for each input; 0 keeps all.
    """

    dataset_name: str | None
    dataset_category: str | None
    batch_size: int
    partition_list_size: int
    num_file_parts: int
    warmup_num_file_parts: int
    feature_limit: int
    fail_on_error: bool


class DatasetRunner(Protocol):
    """Evaluates an open model on a dataset. Several calls may run at once, each with its own session."""

    def __call__(
        self,
        session: Session,
        order: DatasetOrder,
        on_progress: Callable[[int, int], None],
        stop_requested: Callable[[], bool],
    ) -> str:
        """Evaluates to the end or until a stop is requested; returns the evaluation as the store's JSON.

        After every batch it calls ``on_progress`` with the number of finished inputs and the total, and then
        ``stop_requested``, which returns True once nobody waits for the result. The caller closes the
        session.

        Raises:
            InferometerError: The evaluation fails.
        """


_ALL_PARTS = -1
_DEFAULT_WARMUP_PARTS = 1
_PROGRESS_INTERVAL_S = 0.25
"""The interval between reports of progress, which take processor time from the model being timed."""


def read_order(request: predict_pb2.DatasetRequest) -> DatasetOrder:
    """Returns the evaluation that a request specifies; raises ConfigurationError if it is invalid."""
    parts = request.num_file_parts if request.HasField("num_file_parts") else _ALL_PARTS
    if request.batch_size < 1:
        raise ConfigurationError(f"batch_size is {request.batch_size}; it must be at least 1")
    if parts < _ALL_PARTS or parts == 0:
        raise ConfigurationError(f"num_file_parts is {parts}; it must be at least 1, or -1 for all")
    warmup = request.HasField("warmup_num_file_parts")
    return DatasetOrder(
        dataset_name=request.dataset_name or None,
        dataset_category=request.dataset_category or None,
        batch_size=request.batch_size,
        partition_list_size=request.partition_list_size or request.batch_size,
        num_file_parts=parts,
        warmup_num_file_parts=request.warmup_num_file_parts if warmup else _DEFAULT_WARMUP_PARTS,
        feature_limit=request.model.feature_limit,
        fail_on_error=request.fail_on_error,
    )


class DatasetStream:
    """One evaluation and its progress."""

    def __init__(
        self,
        runner: DatasetRunner,
        session: Session,
        order: DatasetOrder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._session = session
        self._order = order
        self._clock = clock
        self._stop = threading.Event()
        self._sent_s = float("-inf")
        self._progress: predict_pb2.DatasetProgress | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def responses(self, call: CallContext) -> AsyncGenerator[predict_pb2.DatasetResponse, None]:
        """Yields the progress, and finally the evaluation.

        When the call is cancelled or this iterator is closed, it stops the evaluation and waits for it.
        """
        if not call.is_active():
            self._stop.set()
        running = asyncio.create_task(call.in_thread(self._run))
        running.add_done_callback(lambda _: self._changed.set())
        try:
            while await self._changed.wait():
                self._changed.clear()
                if self._progress is not None:
                    progress, self._progress = self._progress, None
                    yield predict_pb2.DatasetResponse(progress=progress)
                # if the evaluation ended together with its last progress, no later change signals it
                if running.done() and self._progress is None:
                    yield predict_pb2.DatasetResponse(evaluation_json=await running)
                    return
        finally:
            self._stop.set()
            running.cancel()  # an evaluation that still waits for a thread never starts
            await finished(running)
            del running  # drop the reference cycle: an error's traceback holds this frame

    def _run(self) -> str:
        return self._runner(self._session, self._order, self._on_progress, self._stop.is_set)

    def _on_progress(self, done: int, total: int) -> None:
        now_s = self._clock()
        if done >= total or now_s - self._sent_s >= _PROGRESS_INTERVAL_S:
            self._sent_s = now_s
            progress = predict_pb2.DatasetProgress(done_inputs=done, total_inputs=total)
            self._loop.call_soon_threadsafe(self._set_progress, progress)

    def _set_progress(self, progress: predict_pb2.DatasetProgress) -> None:
        """Replaces the progress that has not been sent yet; the latest one supersedes all others."""
        self._progress = progress
        self._changed.set()


MAX_HELD = 256
"""The maximum number of results of a round to hold until the round ends."""
BATCHES_WAITING = 4
"""The maximum number of received batches not yet in the pipeline; limits the memory of a stream."""
RESPONSES_WAITING = 2
"""The maximum number of responses that the pipeline has produced and that are not yet sent."""
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class StreamedBatch:
    """A batch of a stream; ``more`` means that the client announced another batch of the same round."""

    inputs: Sequence[Input]
    more: bool = False


class BatchStream:
    """Predicts the batches of a stream as they arrive, and returns the results in order.

    The pipeline blocks, and runs in one thread; the event loop receives the batches and sends the responses.
    The pipeline reads several batches before it returns the first result, while a client may wait for a
    result before it sends the next batch. The pipeline therefore receives runs of batches: a run ends when no
    further batch has arrived and none was announced. A client that sends ahead produces one long run. An
    error that the iterator ``others`` raises is raised after the results.
    """

    def __init__(self, first: StreamedBatch, others: AsyncIterator[StreamedBatch]) -> None:
        self._others = others
        self._received: queue.SimpleQueue[StreamedBatch | None] = queue.SimpleQueue()
        self._received.put(first)
        self._error: Exception | None = None
        self._ended = False
        self._abandoned = False
        self._loop = asyncio.get_running_loop()
        self._batch_places = asyncio.Semaphore(BATCHES_WAITING - 1)
        self._response_places = threading.Semaphore(RESPONSES_WAITING)
        self._announced: deque[bool] = deque()  # per batch in the pipeline: whether another was announced
        self._given = 0

    async def run(
        self, call: CallContext, respond: Callable[[], Generator[_Response, None, None]]
    ) -> AsyncGenerator[_Response, None]:
        """Yields the responses that ``respond`` yields in a thread, and finally waits for that thread."""
        responses: asyncio.Queue[_Response | None] = asyncio.Queue()

        def work() -> None:
            with closing(respond()) as given:
                for response in given:
                    self._response_places.acquire()
                    if self._abandoned:
                        return
                    self._loop.call_soon_threadsafe(responses.put_nowait, response)

        receiving = asyncio.create_task(self._receive())
        working = asyncio.create_task(call.in_thread(work))
        working.add_done_callback(lambda _: responses.put_nowait(None))
        try:
            while (response := await responses.get()) is not None:
                yield response
                self._response_places.release()
            await working
        finally:
            self._abandoned = True
            receiving.cancel()
            self._received.put(None)  # the thread may be waiting for a batch, or for a free slot
            self._response_places.release()
            await finished(working)
            await finished(receiving)  # the iterator of the requests cannot be closed while it runs
            self._error = None
            del working  # drop the reference cycle: an error's traceback holds this frame

    def results(
        self, session: Session, trace: TraceScope | None = None
    ) -> Generator[BatchResult, None, None]:
        """Yields one result per batch, in the pipeline's thread. Closing the iterator stops the work.

        Batch numbers in a trace continue through the whole stream.
        """
        while (first := self._next(wait=True)) is not None:
            scope = trace and replace(trace, first_batch=self._given)
            yield from self._answered(session.predict_batches(self._run(first), scope))
        if self._error is not None:
            raise self._error

    def _answered(self, results: Iterator[BatchResult]) -> Generator[BatchResult, None, None]:
        """Yields the results of a round once all are available: sending one disturbs the next prediction."""
        held: list[BatchResult] = []
        for result in results:
            held.append(result)
            if not self._announced.popleft() or len(held) >= MAX_HELD:
                yield from held
                held.clear()
        yield from held

    def _run(self, first: StreamedBatch) -> Iterator[Sequence[Input]]:
        batch: StreamedBatch | None = first
        while batch is not None:
            self._announced.append(batch.more)
            self._given += 1
            yield batch.inputs
            batch = self._next(wait=batch.more)

    def _next(self, wait: bool) -> StreamedBatch | None:
        """Returns the next batch; None at the end or, unless ``wait`` is set, if none has arrived yet."""
        if self._ended or self._abandoned:
            return None
        try:
            batch = self._received.get(block=wait)
        except queue.Empty:
            return None
        if batch is None:
            self._ended = True
        else:
            self._loop.call_soon_threadsafe(self._batch_places.release)
        return batch

    async def _receive(self) -> None:
        try:
            async for batch in self._others:
                await self._batch_places.acquire()
                self._received.put(batch)
        except Exception as error:  # noqa: BLE001 - raised again after the results
            self._error = error
        finally:
            self._received.put(None)


_SERVICE = predict_pb2.DESCRIPTOR.services_by_name["PredictService"]
SERVICE = _SERVICE.full_name


@dataclass(frozen=True, slots=True, eq=False)
class PredictService:
    """The service that opens and runs models; without a ``dataset_runner``, it does not evaluate datasets.

    The batches of ``Predict`` wait in the model's queue and may be batched with the requests of other
    clients. The batches of streams and datasets run unchanged between the batches of the queue.
    """

    finder: ModelFinder
    models: ServedModels
    sessions: Sessions
    dataset_runner: DatasetRunner | None
    streams: StreamLimit
    tracing: ServerTracing
    limits: Limits

    def methods(self) -> list[Method]:
        """The service's methods."""
        codecs: dict[str, Codec] = {
            "Predict": (decode_request, encode_response),
            "PredictStream": (decode_request, encode_answer),
        }
        return methods_of(_SERVICE, self, codecs, aside=["Hold"])

    def open(self, request: predict_pb2.OpenRequest, call: CallContext) -> predict_pb2.OpenResponse:
        """Loads a model."""
        trace = self.tracing.begin(call)
        with trace or nullcontext():  # the spans of a failed load are exported, too
            id_, lease = self._open(request, trace.scope if trace else None)
            is_about(lease.model.manifest.name)
            if not call.is_active():  # nobody would receive its id
                self.sessions.close(id_)
                raise RequestCancelledError("the client disconnected while its model was being loaded")
            return open_response(id_, lease.model.description, trace.part(last=True) if trace else None)

    def _open(self, request: predict_pb2.OpenRequest, trace: TraceScope | None = None) -> tuple[str, Lease]:
        """Opens the model that a request names: a private copy, or one that other clients share."""
        manifest, options = self.finder.find(request)
        shared = self.models.shares(manifest)
        lease = partial(self.models.lease_model, manifest, options, shared=shared, trace=trace)
        return self.sessions.open(lease)

    async def hold(self, request: predict_pb2.HoldRequest, _: CallContext) -> predict_pb2.HoldResponse:
        """Returns when a session has ended; if the call is cancelled first, the session's client is gone."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with self.sessions.hold(request.session_id, partial(loop.call_soon_threadsafe, ended.set)):
            await ended.wait()
        return predict_pb2.HoldResponse()

    async def clock(self, _: predict_pb2.ClockRequest, __: CallContext) -> predict_pb2.ClockResponse:
        """Returns the current time of the agent's clock."""
        return predict_pb2.ClockResponse(unix_ns=unix_ns())

    def conditions(
        self, request: predict_pb2.ConditionsRequest, _: CallContext
    ) -> predict_pb2.ConditionsResponse:
        """Returns the counters of this host and process, and of the session's GPU."""
        with self.sessions.use(request.session_id) as model:
            is_about(model.manifest.name)
            with GpuReader(model.description.device) as gpu:
                return conditions_response(read_counters(gpu.read()))

    def close(self, request: predict_pb2.CloseRequest, _: CallContext) -> predict_pb2.CloseResponse:
        """Closes a session."""
        self.sessions.close(request.session_id)
        return predict_pb2.CloseResponse()

    def reset(self, _: predict_pb2.ResetRequest, __: CallContext) -> predict_pb2.ResetResponse:
        """Closes every session."""
        return predict_pb2.ResetResponse(closed_sessions=self.sessions.close_all())

    async def predict(self, request: PredictCall, call: CallContext) -> BatchResult:
        """Predicts one batch; preprocessing runs in a thread."""
        self.limits.check_inputs(request.size)
        with self.sessions.use(request.message.session_id) as model:
            is_about(model.manifest.name)
            trace = self.tracing.begin(call)
            with trace or nullcontext():
                scope = trace.scope if trace else None
                batch = request.preprocessed()
                limits: dict[str, Any] = {
                    "deadline_ns": call.deadline_ns(self.models.clock),
                    "is_active": call.is_active,
                    "trace": scope,
                }
                if batch is not None:
                    return await model.session.predict_tensor_async(
                        batch, partial(model.infer_async, **limits)
                    )
                infer = partial(model.infer, **limits)
                return await call.in_thread(
                    lambda: model.session.predict(read_inputs(request.message.inputs), infer, scope)
                )

    async def predict_stream(
        self, requests: AsyncIterator[PredictCall], call: CallContext
    ) -> AsyncIterator[BatchResult | TracePart]:
        """Predicts batch after batch in one thread, with the session that the first request names.

        Spans for the client are sent between the results and after the last one.
        """
        with self.streams.one():
            first = await anext(requests, None)
            if first is None:
                return
            id_ = first.message.session_id
            with self.sessions.use(id_) as model:
                is_about(model.manifest.name)
                trace = self.tracing.begin(call)
                stream = BatchStream(self._batch(first, id_), (self._batch(r, id_) async for r in requests))
                respond = partial(_results, stream, model.session, trace)
                async with aclosing(stream.run(call, respond)) as responses:
                    async for response in responses:
                        yield response

    def _batch(self, request: PredictCall, session_id: str) -> StreamedBatch:
        self.limits.check_inputs(request.size)
        return StreamedBatch(_inputs(request, session_id), request.message.more)

    async def dataset(
        self, request: predict_pb2.DatasetRequest, call: CallContext
    ) -> AsyncIterator[predict_pb2.DatasetResponse]:
        """Evaluates a model on a dataset that the agent has."""
        if self.dataset_runner is None:
            raise NotOfferedError("this agent does not evaluate datasets")
        order = read_order(request)
        self.limits.check_inputs(order.batch_size)
        with self.streams.one():
            id_, lease = await call.in_thread(self._open, request.model)
            is_about(lease.model.manifest.name)
            try:
                with self.sessions.use(id_) as model:
                    stream = DatasetStream(self.dataset_runner, model.session, order)
                    async with aclosing(stream.responses(call)) as responses:
                        async for response in responses:
                            yield response
            finally:  # also when the call is cancelled in the meantime
                await finished(asyncio.ensure_future(call.in_thread(self.sessions.close, id_)))


def _results(
    stream: BatchStream, session: Session, trace: CallTrace | None
) -> Generator[BatchResult | TracePart, None, None]:
    if trace is None:
        yield from stream.results(session)
        return
    with trace, closing(stream.results(session, trace.scope)) as results:
        for result in results:
            yield result
            if part := trace.part():
                yield part
        if part := trace.part(last=True):
            yield part


def _inputs(call: PredictCall, session_id: str) -> Sequence[Input]:
    if call.message.session_id != session_id:
        raise InputError("all requests of a stream must name the session of the first one")
    batch = call.preprocessed()
    inputs = read_inputs(call.message.inputs) if batch is None else _rows(batch)
    if not inputs:
        raise InputError("the batch is empty; it needs at least one input")
    return inputs


def _rows(batch: Tensors | NDArray[Any]) -> tuple[Input, ...]:
    if isinstance(batch, np.ndarray):
        return tuple(Input(str(i), Tensor(row)) for i, row in enumerate(batch)) if batch.ndim else ()
    sizes = {array.shape[:1] for array in batch.values()}
    if len(sizes) > 1 or () in sizes:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
        raise InputError(f"the tensors of a batch differ in batch size: {shapes}")
    rows = ({name: array[i] for name, array in batch.items()} for i in range(max(sizes)[0]))
    return tuple(Input(str(i), NamedTensors(row)) for i, row in enumerate(rows))
