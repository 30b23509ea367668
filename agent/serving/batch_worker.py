"""The threads of one model, which take batches from a queue, predict them, and answer each request.

This module also records the spans of queued requests: the wait, the batch, and the prediction.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import bound_to
from inferometer.agent.inference.run_tracing import RunTracing
from inferometer.agent.inference.session import Session
from inferometer.agent.preprocessing.inputs import Tensors, aligned, batch_size
from inferometer.agent.serving.batching import Batcher, BatchingOptions
from inferometer.agent.serving.observers import ModelStatistics, QueueObserver
from inferometer.agent.serving.request_queue import PredictedBatch, QueuedRequest, Request, RequestQueue
from inferometer.agent.tracing.recorder import (
    NO_BATCH,
    NO_PARENT,
    SpanChunk,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
)
from inferometer.manifests.errors import (
    ConfigurationError,
    HungError,
    InferometerError,
    InputError,
    InstanceLostError,
    PredictionError,
)

BATCH = "batch"
"""The name of a batch's span."""
QUEUE = SpanKind("queue", TraceLevel.APPLICATION_TRACE)
"""The span of a request's wait."""
_UPPER = 32  # the bits of an id that tell its recorder; see SpanRecorder


@contextmanager
def traced_batch(
    requests: Sequence[Request], session: Session, clock: Callable[[], int], instance: int = 0
) -> Iterator[RunTracing | None]:
    """Traces a batch, which an instance predicts, for its traced requests; yields None if there are none.

    A batch is recorded once and copied into the trace of each traced request, with new ids and with links to
    all traced requests of the batch.
    """
    traced = [(request, request.trace) for request in requests if request.trace is not None]
    if not traced:
        yield None
        return
    begun_ns = clock()
    recorder = SpanRecorder(TraceContext.new(), max(trace.recorder.level for _, trace in traced), clock=clock)
    size = sum(request.inputs for request in requests)
    try:
        facts = {"batch_requests": len(requests), "instance": instance}
        with session.traced_batch(TraceScope.top(recorder), BATCH, size, facts) as tracing:
            yield tracing
    finally:
        links = [trace.context for _, trace in traced]
        chunks = recorder.chunks()
        for request, trace in traced:
            trace.add(QUEUE, request.came_ns, begun_ns)
            for copied in _copies(chunks, trace, links):
                trace.recorder.add_chunk(copied)


def _copies(
    chunks: Sequence[SpanChunk], trace: TraceScope, links: Sequence[TraceContext]
) -> Iterator[SpanChunk]:
    """Yields the spans of a batch as children of a request, with new ids and without a batch number."""
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


_REMEMBERED = 64
"""The number of predictions over which the mean time is taken."""
_UNKNOWN_NS = 1e6
"""The initial mean; it takes some 150 predictions to identify a quick model."""
_RETRY_S = 1.0
_log = logging.getLogger(__name__)
_Request = TypeVar("_Request", bound=QueuedRequest)
_Predictable = TypeVar("_Predictable", bound=QueuedRequest, contravariant=True)


@dataclass(slots=True, eq=False)
class Predicted:
    """The prediction of a batch: the combined outputs of all requests, and the times in nanoseconds."""

    outputs: Any
    predict_ns: int
    postprocess_ns: int = 0


class BatchPredictor(Protocol[_Predictable]):
    """Predicts the requests of one batch together."""

    def predict(self, requests: Sequence[_Predictable]) -> Predicted:
        """Predicts a batch.

        If it raises InputError or PredictionError, the worker predicts each request alone.
        """

    def split(self, requests: Sequence[_Predictable], outputs: Any) -> Any:
        """Splits a batch's outputs into answers; the statistics include the time that this takes."""

    def answer(self, requests: Sequence[_Predictable], answers: Any, batch: PredictedBatch) -> None:
        """Passes to each request its answer, as returned by ``split``."""

    def recover(self) -> None:
        """Waits until it can predict after InstanceLostError or HungError; raises an error if it cannot."""

    def close(self) -> None:
        """Frees the model."""


class _Closing(Protocol):
    def close(self) -> None: ...


_System = TypeVar("_System", bound=_Closing)


def open_instances(
    first: _System, count: int, open_instance: Callable[[int], _System] | None
) -> list[_System]:
    """Returns ``count`` instances of a model, of which the first is open; the others are opened by number.

    Raises:
        ConfigurationError: The model can have only one instance, as ``open_instance`` is None.
        InferometerError: An instance cannot be opened; all others, except the first, are closed again.
    """
    if count > 1 and open_instance is None:
        raise ConfigurationError(f"instances is {count}, but this model can have only one")
    opened = [first]
    try:
        while open_instance is not None and len(opened) < count:
            opened.append(open_instance(len(opened)))
    except BaseException:
        for instance in opened[1:]:
            instance.close()
        raise
    return opened


@dataclass(slots=True, eq=False)
class _Instance(Generic[_Request]):
    """An instance of the model: its predictor, whose turn it is, its batch, and since when it predicts."""

    predictor: BatchPredictor[_Request]
    turn: threading.Lock
    batch: Sequence[_Request] = ()
    busy_since_ns: int | None = None


class BatchWorkers(Generic[_Request]):
    """Predicts queued requests, and closes the model when the queue ends.

    Each instance of the model has its own predictor and thread. One thread at a time assembles a batch, while
    others predict, so that an idle instance gets the next batch and requests keep their order.
    ``answer_inline`` answers a single request without the queue and the threads.

    If a batch of several requests fails, each request is predicted alone, so that an unsuitable request does
    not fail the others. ``clock`` is the clock of the queue, in nanoseconds; ``on_closed`` is called when all
    instances are closed. Only requests of equal form are batched; see ``Batcher``. The thread of an instance
    is bound to its ``processors``, if there are any.
    """

    def __init__(
        self,
        predictors: Sequence[BatchPredictor[_Request]],
        queue: RequestQueue[_Request],
        options: BatchingOptions,
        clock: Callable[[], int],
        name: str,
        *,
        on_closed: Callable[[], None] = lambda: None,
        statistics: ModelStatistics | None = None,
        observer: QueueObserver | None = None,
        form_of: Callable[[_Request], object] | None = None,
        processors: Sequence[Sequence[int]] = (),
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._name = name
        self._on_closed = on_closed
        self._statistics = statistics
        self._observer = observer
        self._batcher = Batcher[_Request](options, clock, queue, form_of)
        is_one = options.max_batch_size == 1  # a request at a time, which the queue itself can give to any
        self._assembling: AbstractContextManager[object] = nullcontext() if is_one else threading.Lock()
        self._ending = threading.Lock()
        places = processors or ((),) * len(predictors)
        self._instances = [_Instance(predictor, threading.Lock()) for predictor in predictors]
        self._open = len(self._instances)
        self._threads = [
            threading.Thread(
                target=self._work, args=each, name=f"model {name}{f' #{n}' if n else ''}", daemon=True
            )
            for n, each in enumerate(zip(self._instances, places, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy_since_ns(self) -> int | None:
        """The start time of the oldest batch in progress; None if there is none."""
        begun = [since for each in self._instances if (since := each.busy_since_ns) is not None]
        return min(begun, default=None)

    def begun_ns(self, request: _Request | None) -> int | None:
        """Returns when the prediction that a request waits for began: that of its batch.

        For None, a request in the queue, it is the latest one of all instances, or None if one has none.
        """
        own = [i for i in self._instances if request is None or any(each is request for each in i.batch)]
        begun = [since for each in own if (since := each.busy_since_ns) is not None]
        return max(begun, default=None) if len(begun) == len(own) else None

    def join(self, timeout_s: float) -> None:
        """Waits until the threads have ended or the timeout expires."""
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def answer_inline(self, request: _Request) -> bool:
        """Predicts a request that is not queued on the first instance, in the calling thread.

        Returns whether it did. Does nothing if a batch is in progress there, another request is waiting, or
        this one is no longer wanted.
        """
        first = self._instances[0]
        if not first.turn.acquire(blocking=False):
            return False
        try:
            if not self._queue.begin_inline(request):
                return False
            self._answer(first, [request])
            return True
        finally:
            first.turn.release()

    def _work(self, instance: _Instance[_Request], processors: Sequence[int]) -> None:
        try:
            with bound_to(processors):
                self._predict_all(instance)
        finally:
            self._queue.pass_end_on()
            try:
                instance.predictor.close()
            except Exception:
                _log.exception("a model could not be closed")
                raise
            finally:
                with self._ending:
                    self._open -= 1
                    is_last = not self._open
                if is_last:
                    self._on_closed()

    def _predict_all(self, instance: _Instance[_Request]) -> None:
        while (batch := self._assembled()) is not None or not self._queue.closed:
            if batch is not None:
                with instance.turn:
                    if requests := self._queue.begin(batch):
                        instance.batch = requests
                        self._answer(instance, requests)
                # an idle model holds no request's memory
                instance.batch = ()
                del requests
            del batch

    def _assembled(self) -> list[_Request] | None:
        """Waits for the turn to assemble a batch, and then for the batch; returns None at an end mark."""
        with self._assembling:
            return self._batcher.next()

    def _answer(self, instance: _Instance[_Request], requests: list[_Request]) -> None:
        """Predicts a batch, and answers each of its requests."""
        predictor = instance.predictor
        begun_ns = instance.busy_since_ns = self._clock()
        try:
            predicted = predictor.predict(requests)
        except (InstanceLostError, HungError) as error:
            for request in requests:
                request.fail(error)
            instance.busy_since_ns = None
            if len(self._instances) > 1 or isinstance(error, InstanceLostError):
                self._recover(predictor)
            return
        except (InputError, PredictionError) as error:
            if len(requests) == 1:
                requests[0].fail(error)
                return
            for request in requests:
                self._answer(instance, [request])
            return
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is taken
            for request in requests:
                request.fail(error)
            return
        finally:
            instance.busy_since_ns = None
        done_ns, predict_ns = self._clock(), predicted.predict_ns
        batch_ns = max(0, done_ns - begun_ns - predict_ns - predicted.postprocess_ns)
        inputs = requests[0].inputs if len(requests) == 1 else sum([request.inputs for request in requests])
        batch = PredictedBatch(begun_ns, done_ns, batch_ns, predict_ns, inputs)
        answers = predictor.split(requests, predicted.outputs)
        queue_ns = [begun_ns - request.came_ns for request in requests]
        if self._statistics is not None:
            self._statistics.answered(
                len(requests),
                inputs,
                queue_ns=sum(queue_ns),
                assemble_ns=batch_ns,
                predict_ns=predict_ns,
                split_ns=self._clock() - done_ns,
            )
        if self._observer is not None:
            self._observer.waited(self._name, queue_ns)
        # last: it wakes other threads, which then compete for the interpreter
        predictor.answer(requests, answers, batch)

    def _recover(self, predictor: BatchPredictor[_Request]) -> None:
        """Waits for an instance, while the others predict what waits; tries until the queue is closed."""
        failed = False
        while not self._queue.closed:
            try:
                predictor.recover()
            except InferometerError as error:
                if not failed:
                    _log.error("model %s: an instance cannot predict again yet: %s", self._name, error)
                failed = True
                time.sleep(_RETRY_S)
            else:
                _log.warning("model %s: an instance was lost, and predicts again", self._name)
                return


class BatchMemory:
    """Assembles the tensors of several requests in preallocated memory."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._memory: dict[str, NDArray[Any]] = {}
        self._views: dict[str, NDArray[Any]] = {}  # of the memory, in the shape of the last batch

    def assemble(self, batches: Sequence[Tensors]) -> Tensors:
        """Joins several batches of the same tensors into one batch, which is valid until the next call.

        Its tensors are aligned; the given ones need not be. A single batch is not copied if it is aligned.

        Raises:
            InputError: The shapes of a tensor differ in an axis other than the batch.
        """
        if len(batches) == 1:
            return {name: aligned(tensor) for name, tensor in batches[0].items()}
        return {name: self._joined(name, [each[name] for each in batches]) for name in batches[0]}

    def _joined(self, name: str, tensors: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Joins the rows of a tensor from several batches."""
        first = tensors[0]
        shape = first.shape[1:]
        if any(tensor.shape[1:] != shape for tensor in tensors):
            raise InputError(f'input "{name}": the requests differ in shape and cannot be batched')
        if first.dtype.hasobject:  # strings, which the memory would keep
            return np.concatenate(tensors)
        view = self._views.get(name)
        if view is None or view.shape[1:] != shape:
            view = self._views[name] = self._reserved(name, shape, first.dtype)
        return np.concatenate(tensors, out=view[: sum(map(len, tensors))])

    def _reserved(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns memory for a full batch of rows of a shape."""
        size = self._max_batch_size * math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.size < size:
            memory = self._memory[name] = np.empty(size, dtype)
        return memory[:size].reshape(self._max_batch_size, *shape)

    def all_apart(self, outputs: Tensors) -> Tensors:
        """Returns the outputs where the next batch does not overwrite them; a model may return its input."""
        if not self._memory:
            return outputs
        return {
            name: output.copy()
            if any(np.may_share_memory(output, memory) for memory in self._memory.values())
            else output
            for name, output in outputs.items()
        }


class SessionPredictor:
    """Predicts the batches of a served model and closes its session; satisfies ``BatchPredictor``.

    ``clock`` is the clock of the requests, in nanoseconds; ``thread_ns`` returns a thread's processor time.
    ``instance`` is the number of the instance in traces.
    """

    def __init__(
        self,
        session: Session,
        max_batch_size: int,
        clock: Callable[[], int],
        thread_ns: Callable[[], int] = time.thread_time_ns,
        instance: int = 0,
    ) -> None:
        self.traces = False
        """Whether requests may be traced; while False, requests are not checked for a trace."""
        self.mean_thread_ns = _UNKNOWN_NS
        """The moving mean of the thread time that a prediction of one input takes.

        It excludes waits for a processor or the interpreter, which are due to a busy agent, not to the model.
        """
        self._session = session
        self._clock = clock
        self._thread_ns = thread_ns
        self._instance = instance
        self._any_thread = session.any_thread
        self._memory = BatchMemory(max_batch_size)
        self._alone = False

    def predict(self, requests: Sequence[Request]) -> Predicted:
        """Predicts a batch; also raises PredictionError if an output has the wrong number of rows."""
        if not self.traces:
            return self._predict(requests)
        with traced_batch(requests, self._session, self._clock, self._instance) as tracing:
            return self._predict(requests, tracing)

    def _predict(self, requests: Sequence[Request], tracing: RunTracing | None = None) -> Predicted:
        if self._alone:
            self._check_alone(requests)
        batch = self._memory.assemble([request.batch for request in requests])
        size = batch_size(batch)
        is_timed = self._any_thread and size == 1
        began_ns = self._thread_ns() if is_timed else 0
        inferred = self._session.infer(batch, tracing) if tracing else self._session.infer(batch)
        if is_timed:
            self.mean_thread_ns += (self._thread_ns() - began_ns - self.mean_thread_ns) / _REMEMBERED
        if self._session.whole_batch_outputs(inferred.outputs, size):
            self._alone = True
            self._check_alone(requests)
        return Predicted(inferred.outputs, inferred.predict_ns)

    def _check_alone(self, requests: Sequence[Request]) -> None:
        """Raises PredictionError, after which each request is predicted alone, if there are several."""
        if len(requests) > 1:
            raise PredictionError("outputs for the whole batch cannot be split between its requests")

    def split(self, requests: Sequence[Request], outputs: Tensors) -> list[Tensors]:
        """Returns each request's rows, in memory that is not overwritten."""
        outputs = self._memory.all_apart(outputs)
        if len(requests) == 1:
            return [outputs]
        rows: list[Tensors] = []
        end = 0
        for request in requests:
            begin, end = end, end + request.inputs
            rows.append({name: output[begin:end] for name, output in outputs.items()})
        return rows

    def answer(self, requests: Sequence[Request], answers: Sequence[Tensors], batch: PredictedBatch) -> None:
        """Gives each request its rows."""
        for request, answer in zip(requests, answers, strict=True):
            request.answer(answer, batch)

    def recover(self) -> None:
        """Waits for the session; see ``Session.recover``."""
        self._session.recover()

    def close(self) -> None:
        """Closes the session."""
        self._session.close()
