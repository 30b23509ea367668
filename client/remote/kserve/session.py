"""A model on an Open Inference Protocol server: its session, its load target, and tensors in shared memory.

A server on this host reads tensors in shared memory in place. A segment has a name only during registration.
It is then unlinked, so that it does not outlive this process, however the process ends. A lock on it shows
that the process is alive; agents release a region without one.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import Device, DeviceKind, PredictorOptions, usable_cores
from inferometer.agent.inference.pipeline import Pipeline
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.session import MAX_PREPROCESS_THREADS, Session
from inferometer.agent.inference.stages import BatchResult, Infer, Postprocessor, SystemDescription
from inferometer.agent.open_inference.codec import SEGMENTS
from inferometer.agent.preprocessing.inputs import Input, Payload, Tensors, batch_size
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.tracing.recorder import TRACEPARENT_KEY, SpanKind, TraceLevel, TraceScope, ended
from inferometer.client.remote.call_target import BeginCall, CallFlight, CallTarget, Outcome
from inferometer.client.remote.kserve.control import ModelControl
from inferometer.client.remote.kserve.server import Fit, InferForm, InferReply, KServeServer, TensorPlace
from inferometer.evaluators.load.server_statistics import ReadStatistics
from inferometer.evaluators.load.target import LoadInputs, PreparedInputs
from inferometer.manifests.errors import (
    AgentError,
    InferometerError,
    InputError,
    PredictionError,
    SessionError,
    explained,
)
from inferometer.manifests.schema import ModelManifest

_MODE = 0o600
_ALIGNMENT_BYTES = 64
_log = logging.getLogger(__name__)


def laid_out(batch: Tensors, begin: int = 0) -> tuple[dict[str, TensorPlace], int]:
    """Returns consecutive, aligned places for the tensors of a batch, and the end of the last one.

    ``begin`` is the offset of the first place, in bytes.
    """
    places = {}
    for name, array in batch.items():
        begin += -begin % _ALIGNMENT_BYTES
        places[name] = TensorPlace(array.shape, begin)
        begin += array.nbytes
    return places, begin


class SharedBytes:
    """A segment of shared memory, which the server knows as the region ``region``.

    Raises:
        AgentError: There is no room for it, or the server rejects it.
    """

    def __init__(self, connection: KServeServer, byte_size: int) -> None:
        self._connection = connection
        self.region = f"inferometer-{secrets.token_hex(16)}"
        self.byte_size = max(1, byte_size)
        path = SEGMENTS / self.region
        with explained(AgentError, f"{self.byte_size} bytes in {SEGMENTS}"):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.posix_fallocate(descriptor, 0, self.byte_size)
                mapping = mmap.mmap(descriptor, self.byte_size)  # has the lock too, as long as it is there
                connection.register_memory(self.region, f"/{self.region}", self.byte_size)
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)
        self._memory: NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)

    def tensors(self, places: Mapping[str, TensorPlace], like: Tensors) -> dict[str, NDArray[Any]] | None:
        """Returns the tensors at some places, with the dtypes of ``like``; None after ``close``."""
        memory = self._memory
        if memory is None:
            return None
        found = {}
        for name, place in places.items():
            dtype = like[name].dtype
            part = memory[place.offset : place.offset + math.prod(place.shape) * dtype.itemsize]
            found[name] = part.view(dtype).reshape(place.shape)
        return found

    def write(self, places: Mapping[str, TensorPlace], batch: Tensors) -> bool:
        """Writes a batch to its places; returns False if the segment is closed."""
        found = self.tensors(places, batch)
        for name, array in (found or {}).items():
            np.copyto(array, batch[name])
        return found is not None

    def close(self) -> None:
        """Asks the server to release the region, unless it is gone; calling it again does nothing."""
        if self._memory is None:
            return
        self._memory = None
        with suppress(AgentError, ValueError):  # the second of a connection that is closed
            self._connection.unregister_memory(self.region)


class SharedMemory:
    """The memory that a server and this process share, and the batch that it holds. Thread-safe.

    If ``required``, a lack of room raises AgentError; otherwise, a batch without room is sent in the request.
    """

    def __init__(self, connection: KServeServer, *, required: bool) -> None:
        self._connection = connection
        self._required = required
        self._lock = threading.Lock()
        self._batch: SharedBytes | None = None

    def reserve(self, byte_size: int) -> SharedBytes:
        """Allocates a segment for a batch. The caller holds the lock, or no batch has been sent yet.

        Raises AgentError under the conditions of ``SharedBytes``.
        """
        if self._batch is None or self._batch.byte_size < byte_size:
            found = SharedBytes(self._connection, byte_size)
            if self._batch is not None:
                self._batch.close()
            self._batch = found
        return self._batch

    def take(self, byte_size: int) -> SharedBytes | None:
        """Allocates a separate segment; returns None if there is no room."""
        return self._if_required(lambda: SharedBytes(self._connection, byte_size))

    @contextmanager
    def lent(self, batch: Tensors) -> Iterator[tuple[Mapping[str, TensorPlace], str] | None]:
        """Yields the places of a batch and their region; None without room, or if another batch is in use."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            places, byte_size = laid_out(batch)
            found = self._if_required(lambda: self.reserve(byte_size))
            if found is None or not found.write(places, batch):
                yield None
                return
            yield places, found.region
        finally:
            self._lock.release()

    def close(self) -> None:
        """Releases the batch's region; calling it again does nothing."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()

    def _if_required(self, make: Callable[[], SharedBytes]) -> SharedBytes | None:
        try:
            return make()
        except AgentError as error:
            if self._required:
                raise
            _log.warning("tensors travel in the requests, not through shared memory: %s", error)
            return None


REMOTE = Device(DeviceKind.REMOTE)
_MAX_SLOTS = 256
_MAX_SLOTS_BYTES = 64 * 1024 * 1024


class KServePredictor(Predictor):
    """Sends each batch to a server: ``predict`` is one ``ModelInfer``, and its time includes the round trip.

    The manifest's ``probabilities_layer`` holds the server's name of the output. The predictor does not close
    the connection. ``timeout_s`` is the timeout of one request; None waits indefinitely. Inputs travel
    through the shared ``memory``, or in the requests if there is none.
    """

    def __init__(
        self,
        connection: KServeServer,
        manifest: ModelManifest,
        form: InferForm,
        fit: Fit,
        timeout_s: float | None,
        memory: SharedMemory | None = None,
    ) -> None:
        super().__init__(manifest, Artifacts(), PredictorOptions(REMOTE))
        self.connection = connection
        self.form = form
        self.timeout_s = timeout_s
        self.trace: CallRecorder | None = None
        """Records the requests of a trace; None without a trace."""
        self.fit = fit
        self.memory = memory

    def load(self) -> None:
        """Does nothing: the model is loaded on the server."""

    def predict(self, inputs: Tensors) -> Tensors:
        """Sends a batch and waits for the outputs, which have the server's names.

        Raises:
            ConfigurationError: The server does not accept a batch of this size.
            PredictionError: The server refused the request, failed, or sent an unsuitable answer.
            AgentError: The connection was lost, or the server did not answer in time.
        """
        batch = self.checked_inputs(inputs)
        self.fit.check_batch(batch_size(batch), str(self))
        with self.memory.lent(batch) if self.memory else nullcontext() as lent:
            request = self.form.encode_placed(*lent) if lent else self.form.encode(batch)
            if self.trace is None:
                return self.read(self.connection.infer(request, self.timeout_s)).outputs
            with self.trace.call() as metadata:
                answer = self.connection.infer(request, self.timeout_s, metadata)
            return self.read(answer).outputs

    def read(self, answer: bytes) -> InferReply:
        """Reads an encoded answer.

        Raises:
            PredictionError: The response is malformed, or lacks an output.
        """
        try:
            reply = self.form.decode(answer)
            outputs = outputs_in_order(reply.outputs, self.form.outputs)
        except PredictionError as error:
            raise PredictionError(f"{self}: {error}") from error
        wanted = self.manifest.output.parameters.probabilities_layer
        if self.manifest.output.type == "classification" and isinstance(wanted, str) and len(outputs) == 1:
            # The only output has the name that the manifest has for it.
            outputs = {wanted: next(iter(outputs.values()))}
        return replace(reply, outputs=outputs)

    def __str__(self) -> str:
        return f"server {self.connection.address.server}, model {self.form.model_name}"

    @property
    def threads(self) -> int | None:
        """Always None: the server does not report its threads."""
        return None

    def close(self) -> None:
        """Releases the shared memory; the model stays loaded on the server."""
        if self.memory is not None:
            self.memory.close()


class CallRecorder:
    """Records the requests of a run below its ``scope``; the spans are created after the run.

    One thread makes the requests.
    """

    def __init__(self, scope: TraceScope, kind: SpanKind) -> None:
        self._scope = scope
        self._kind = kind
        self._calls: list[tuple[grpc.StatusCode, int | None, int, int, int]] = []

    @contextmanager
    def call(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Records one request around the body of the ``with`` block; yields the request's metadata."""
        recorder = self._scope.recorder
        span_id = recorder.new_id()
        context = replace(recorder.context, span_id=span_id)
        code, status, began_ns = grpc.StatusCode.UNKNOWN, None, recorder.clock()
        try:
            yield ((TRACEPARENT_KEY, context.traceparent),)
            code = grpc.StatusCode.OK
        except InferometerError as error:
            if isinstance(error.__cause__, grpc.RpcError):
                code = error.__cause__.code()
                status = getattr(error.__cause__, "http_status", None)
            raise
        finally:
            self._calls.append((code, status, span_id, began_ns, recorder.clock()))

    def record(self) -> None:
        """Adds the spans of the requests so far to the trace."""
        recorder, parent_id = self._scope.recorder, self._scope.parent_id
        for code, status, span_id, began_ns, ended_ns in self._calls:
            recorder.add(ended(self._kind, code, status), began_ns, ended_ns, parent_id, span_id=span_id)
        self._calls.clear()


class KServeSession(Session):
    """A model of a server; see ``agent.inference.session.Session``. Inputs are read and preprocessed here.

    Made by ``open_kserve``. For queries under load, the preprocessor prepares inputs that have only been
    read, and the postprocessor reads the outputs.
    """

    in_process = False

    def __init__(
        self,
        predictor: KServePredictor,
        pipeline: Pipeline,
        preprocessor: ModelPreprocessor,
        postprocessor: Postprocessor,
        description: SystemDescription,
    ) -> None:
        super().__init__(predictor, lambda _: pipeline, description)
        self.predictor = predictor
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor

    def load_target(self, inputs: LoadInputs) -> KServeTarget:
        """Returns a load target that sends each query to the server; see ``KServeTarget``."""
        return KServeTarget(self, inputs)

    def control(self) -> ModelControl:
        """Returns what changes how the server serves the model, while the session is open."""
        form = self.predictor.form
        return ModelControl(self.predictor.connection, form.model_name, form.model_version)

    def predict_tensor(
        self, batch: Tensors | NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a batch of preprocessed tensors, or of a single one; see ``Pipeline.predict_tensor``."""
        with self._propagating(trace):
            return super().predict_tensor(batch, trace, infer)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, and propagates the trace; see ``Pipeline.predict_batches``."""
        with self._propagating(trace):
            yield from super().predict_batches(batches, trace)

    def close(self) -> None:
        """Closes the connection; the model stays loaded on the server. Calling it again does nothing."""
        super().close()
        self.predictor.connection.close()

    @contextmanager
    def _sampled(self, trace: TraceScope) -> Iterator[None]:
        """Samples no hardware: the model does not run on this machine."""
        if trace.recorder.wants(TraceLevel.HARDWARE_TRACE):
            trace.recorder.note("no hardware samples: the model runs on a server")
        yield

    @contextmanager
    def _propagating(self, trace: TraceScope | None) -> Iterator[None]:
        """Sends the trace context with each request, and records the requests."""
        if trace is None:
            yield
            return
        calls = self.predictor.trace = CallRecorder(trace, self.predictor.connection.call)
        try:
            yield
        finally:
            self.predictor.trace = None
            calls.record()


class KServeTarget(CallTarget):
    """A model on a server under load; satisfies ``evaluators.load.target.LoadTarget``.

    Query n is a separate ``ModelInfer`` of input n modulo the number of inputs. Requests of prepared inputs
    are encoded when the target is made. Inputs that have only been read are preprocessed by threads here, as
    part of the latency. If the session has shared memory, inputs are in it: prepared ones from the start,
    others while they are in flight, as far as there are slots. A response is right if it is one prediction
    that matches the manifest; the latency does not include parsing it. The target does not close the session.

    Raises:
        ConfigurationError: The server does not accept a single input.
    """

    def __init__(self, session: KServeSession, inputs: LoadInputs) -> None:
        self._predictor = session.predictor
        self._postprocessor = session.postprocessor
        self._predictor.fit.check_batch(1, str(self._predictor))
        self._preprocessor = session.preprocessor
        self._payloads: tuple[Payload, ...] = ()
        self._pool: ThreadPoolExecutor | None = None
        self._slots: deque[int] = deque()
        """The places in shared memory that no query in flight uses."""
        self._slot_tensors: list[dict[str, NDArray[Any]]] = []
        self._shared: SharedBytes | None = None
        if isinstance(inputs, PreparedInputs):
            inputs = replace(inputs, rows=tuple(map(self._preprocessor.checked, inputs.rows)))
        self._requests = self._shared_requests(inputs)
        if not isinstance(inputs, PreparedInputs):
            self._payloads = inputs.payloads
            self._slots.extend(range(len(self._requests)))
            threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess-query")
        elif not self._requests:
            self._requests = list(map(self._predictor.form.encode, inputs.rows))
        size = self._preprocessor.tensor_bytes
        connection = self._predictor.connection
        super().__init__(session.description, size, connection.hold, connection.end_infer)
        self.served_name = self._predictor.form.model_name
        self._begin = partial(connection.begin_infer, timeout_s=self._predictor.timeout_s)

    def call_of(self, query: int) -> SpanKind:
        """Returns the span of a query's call; see ``CallTarget``."""
        return self._predictor.connection.call

    def statistics_sources(self) -> Mapping[str, ReadStatistics]:
        """Returns what reads the model's statistics; see ``ReportingTarget``."""
        form = self._predictor.form
        return {"V2": partial(self._predictor.connection.statistics, form.model_name, form.model_version)}

    def _begin_of(self, query: int) -> BeginCall:
        metadata = self.traced_metadata(query)
        return partial(self._begin, metadata=metadata) if metadata else self._begin

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query, or has it preprocessed and sent; see ``CallTarget``."""
        if self._pool is None:
            begin = self._begin if self.sample is None else self._begin_of(query)
            run.send(query, self._requests[query % len(self._requests)], begin)
            return
        run.announce(query)
        self._pool.submit(self._preprocess_and_send, query, run)

    def answered(self, reply: bytes) -> Outcome:
        """Reads a reply; see ``CallTarget``."""
        answer = self._predictor.read(reply)
        _, usable = self._postprocessor(answer.outputs, 1)
        if not usable.all():
            return Outcome(0, "the model's output is not a finite number")
        return Outcome(1, "", answer.times)

    def close(self) -> None:
        """Cancels the calls in flight, and releases the shared memory; calling it again does nothing."""
        super().close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._shared is not None:
            self._shared.close()

    def _shared_requests(self, inputs: LoadInputs) -> list[bytes]:
        """Puts prepared inputs into shared memory, or makes slots for others, and returns their requests.

        Returns none without shared memory, and none for inputs with dynamic axes, whose size is unknown
        before preprocessing.
        """
        memory = self._predictor.memory
        if memory is None:
            return []
        if isinstance(inputs, PreparedInputs):
            batches = list(inputs.rows)
        elif self._preprocessor.splits or any(each.is_dynamic for each in self._preprocessor.tensors):
            return []
        else:
            count = max(1, min(_MAX_SLOTS, _MAX_SLOTS_BYTES // self._preprocessor.tensor_bytes))
            batches = [self._preprocessor.new_batch(1)] * count
        placed, end = [], 0
        for batch in batches:
            places, end = laid_out(batch, end)
            placed.append(places)
        shared = self._shared = memory.take(end)
        if shared is None:
            return []
        for batch, places in zip(batches, placed, strict=True):
            if isinstance(inputs, PreparedInputs):
                shared.write(places, batch)
            else:
                self._slot_tensors.append(shared.tensors(places, batch) or {})
        return [self._predictor.form.encode_placed(places, shared.region) for places in placed]

    def _preprocess_and_send(self, query: int, run: CallFlight) -> None:
        if not run.wants(query):
            return
        payload, request, begin = self._payloads[query % len(self._payloads)], b"", self._begin_of(query)
        try:
            slot = self._slots.popleft()
        except IndexError:
            slot = None
        try:
            if slot is None:
                batch = self._preprocessor.new_batch(1)
                found = self._preprocessor.prepare(payload, batch, 0)
                request = self._predictor.form.encode(self._preprocessor.assembled(batch, None, [found]))
            else:
                self._preprocessor.prepare(payload, self._slot_tensors[slot], 0)
                request, begin = self._requests[slot], partial(self._begin_placed, slot, begin)
        except InputError as error:
            run.fail(query, str(error))
        if request and run.wants(query):
            run.send(query, request, begin)
        elif slot is not None:
            self._slots.append(slot)

    def _begin_placed(self, slot: int, begin: BeginCall, request: bytes) -> grpc.Future[bytes]:
        """Begins a call that holds a slot until it ends."""
        try:
            call = begin(request)
        except SessionError:
            self._slots.append(slot)
            raise
        call.add_done_callback(lambda _: self._slots.append(slot))
        return call


def outputs_in_order(found: Tensors, wanted: Sequence[str]) -> Tensors:
    """Returns the requested outputs in the order of the request; all of them if none is requested.

    Raises:
        PredictionError: A requested output is missing.
    """
    if not wanted:
        return found
    for name in wanted:
        if name not in found:
            have = ", ".join(f'"{other}"' for other in found) or "none"
            raise PredictionError(
                f'the server did not return the requested output "{name}"; it returned: {have}'
            )
    return {name: found[name] for name in wanted}
