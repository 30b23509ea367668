"""A model that is open on a remote agent: the system under test, its load target, and its stream."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.conditions import ConditionCounters
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.inference.stages import BatchResult, SystemDescription, round_size
from inferometer.agent.preprocessing.inputs import Input, Tensors
from inferometer.agent.preprocessing.preprocessor import bytes_ahead
from inferometer.agent.protocol.conversion import open_request, read_description
from inferometer.agent.protocol.messages import encode_batch_request, encode_inputs_request
from inferometer.agent.tracing.recorder import SpanKind, TraceScope
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.call_target import BeginCall, CallFlight, CallTarget, Outcome
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.control import ModelControl
from inferometer.client.remote.native.calls import (
    LocalBatch,
    RemoteTrace,
    call_to,
    sendable,
    sendable_payload,
    translate_errors,
)
from inferometer.client.remote.native.connection import Connection
from inferometer.evaluators.load.server_statistics import ReadStatistics
from inferometer.evaluators.load.target import LoadInputs, PreparedInputs
from inferometer.manifests.errors import AgentError, DeadlineError, SessionError
from inferometer.protos.inferometer.v1 import predict_pb2

_ID = "0"
"""The id of the single input of a query under load."""
BATCHES_IN_FLIGHT = 4
"""How many batches are sent before the first answer if the agent overlaps stages; limits memory use."""
_READ_THREADS = 4


def open_remote_agent(
    address: str,
    model_name: str,
    model_version: str | None = None,
    framework_name: str | None = None,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - frozen
    remote: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
    trace: TraceScope | None = None,
) -> RemoteAgent:
    """Opens a model on the agent at ``address``, a ``host:port``.

    ``model_version`` may be a constraint; None means the highest. Without a framework, it is the agent's
    first installed one that has the model. ``trace`` is the parent of the agent's spans for loading the
    model.

    Raises:
        ConfigurationError: The address is invalid.
        AgentError: The agent cannot be reached.
        DeadlineError: The agent did not open the model in time.
        InferometerError: The agent cannot open the model.
    """
    connection = Connection(AgentAddress.parse(address), remote.secret, remote.tls)
    try:
        request = open_request(model_name, model_version, framework_name, options)
        at = connection.address
        asked = RemoteTrace(trace, str(at), call_to(at, "Open")) if trace else None
        response = _open(connection, request, remote.open_timeout_s, asked)
        try:
            description = read_description(response, str(connection.address), options)
            if asked:
                asked.add_message(response.trace)
                connection.measure_clock(asked)
                asked.end()
        except BaseException:
            connection.close_session(response.session_id)
            raise
    except BaseException:
        connection.close()
        raise
    connection.hold_session(response.session_id)
    return RemoteAgent(connection, response.session_id, description, remote)


def _open(
    connection: Connection, request: predict_pb2.OpenRequest, timeout_s: float, trace: RemoteTrace | None
) -> predict_pb2.OpenResponse:
    metadata = (*connection.metadata, *trace.metadata) if trace else connection.metadata
    with translate_errors(connection.address):
        try:
            response = connection.methods.Open(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            if trace:
                trace.call_ended(error.code())
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise DeadlineError(
                f"agent {connection.address}: did not open the model within {timeout_s:g} s; "
                "give it longer with --open_timeout"
            ) from error
        if trace:
            trace.call_ended()
        return response


class RemoteAgent(Closeable):
    """A model that is open on an agent. Thread-safe; satisfies ``evaluators.evaluation.SystemUnderTest``.

    Inputs are read here, and their read time is measured here; the agent fetches URLs. Made by
    ``open_remote_agent``.
    """

    in_process = False

    def __init__(
        self, connection: Connection, session_id: str, description: SystemDescription, remote: RemoteOptions
    ) -> None:
        self.connection = connection
        self.session_id = session_id
        """The agent's identifier of the open model."""
        self.description = description
        """The model and the system that it runs on."""
        self._remote = remote
        self._pool = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read-inputs")
        self._tensors = description.manifest.tensors
        self._bytes_ahead = bytes_ahead(self._tensors)
        self._closed = False

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch and waits for it. The result's failures list inputs that failed.

        Raises:
            InputError: The batch is empty.
            AgentError: The connection to the agent was lost, or the agent did not answer in time.
        """
        self._check_open()
        batch = LocalBatch(inputs, self._pool, self._tensors)
        readable = batch.readable()
        if not readable:
            return batch.merge(None)
        request = encode_inputs_request(self.session_id, readable)
        return batch.merge(self.connection.predict(request, self._remote.call_timeout_s))

    def predict_tensor(self, batch: Tensors | NDArray[Any]) -> BatchResult:
        """Predicts a batch of preprocessed tensors by name, each with the batch as its first axis.

        A plain array is the tensor of a model with one input. The inputs' ids are ``"0"``, ``"1"``, ….

        Raises:
            InputError: The batch is empty, or its names, shapes or element types do not match the model.
            AgentError: The connection to the agent was lost, or the agent did not answer in time.
        """
        self._check_open()
        request = encode_batch_request(self.session_id, sendable(batch, self._tensors))
        return self.connection.predict(request, self._remote.call_timeout_s)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, in order.

        If the agent predicts in rounds, a round is read and sent, and the next one waits for its results:
        nothing is read or sent while the agent times its predictions. If the agent overlaps, a bounded number
        of batches is always in flight. Closing the iterator stops the work, here and at the agent. The
        agent's spans come with the answers, and are part of the trace at the end.

        Raises:
            InputError: A batch is empty.
            AgentError: The connection to the agent was lost.
        """
        flight = self.begin_flight(trace)
        source, numbers = iter(batches), itertools.count()
        try:
            for first in source:
                others = itertools.islice(source, self.round_size(len(first)) - 1)
                round_ = [self.begin_batch(inputs) for inputs in (first, *others)]
                flight.add(round_, list(itertools.islice(numbers, len(round_))))
                while len(flight) >= self.batches_in_flight:
                    yield flight.next()
            flight.end()
            while len(flight):
                yield flight.next()
            flight.finish()
        finally:
            flight.close()

    def load_target(self, inputs: LoadInputs) -> RemoteTarget:
        """Returns a load target that sends each query to the agent; see ``RemoteTarget``."""
        return RemoteTarget(self, inputs)

    def control(self) -> ModelControl:
        """Returns what changes how the agent serves the model to those who open it later."""
        manifest = self.description.manifest
        return ModelControl.of_agent(
            self.connection.address, manifest.name, manifest.framework.name, self._remote
        )

    def begin_flight(self, trace: TraceScope | None = None) -> Flight:
        """Begins a stream of batches, for a caller that assigns batches itself and closes the flight."""
        self._check_open()
        at = self.connection.address
        asked = RemoteTrace(trace, str(at), call_to(at, "PredictStream")) if trace else None
        return Flight(self.connection, self.session_id, asked, self._remote.call_timeout_s)

    def begin_batch(self, inputs: Sequence[Input]) -> LocalBatch:
        """Starts reading a batch for a flight of this agent.

        Raises:
            InputError: The batch is empty.
            SessionError: The model is closed.
        """
        self._check_open()
        try:
            return LocalBatch(inputs, self._pool, self._tensors)
        except RuntimeError:
            self._check_open()
            raise

    def condition_counters(self) -> Sequence[ConditionCounters]:
        """Reads the counters of the agent's host; empty if the agent does not report them."""
        counters = None if self._closed else self.connection.conditions(self.session_id)
        return () if counters is None else (counters,)

    @property
    def batches_in_flight(self) -> int:
        """The number of batches to keep in flight: 1 in rounds, where each batch is waited for."""
        return BATCHES_IN_FLIGHT if self.description.overlap else 1

    def round_size(self, batch_size: int) -> int:
        """Returns the number of batches sent together, which the agent also prepares together."""
        if self.description.overlap or not self.description.preprocess_threads:
            return 1
        return round_size(self._bytes_ahead, batch_size)

    def close(self) -> None:
        """Closes the model at the agent and the connection; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.connection.close_session(self.session_id)
        self.connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError(f"the session at agent {self.connection.address} is closed; open another")


class RemoteTarget(CallTarget):
    """A remote agent under load; satisfies ``evaluators.load.target.LoadTarget``.

    Query n is a separate call with input n modulo the number of inputs. The requests are encoded when the
    target is made; the agent preprocesses inputs that have only been read. An answer reports how long the
    query waited at the agent for its batch, and the size of the batch: 1 unless the agent batches requests.
    The target does not close the agent.

    Raises:
        InputError: An input's element type cannot be sent.
    """

    def __init__(self, agent: RemoteAgent, inputs: LoadInputs) -> None:
        id_, tensors = agent.session_id, agent.description.manifest.tensors
        if isinstance(inputs, PreparedInputs):
            self._requests = [encode_batch_request(id_, sendable(row, tensors)) for row in inputs.rows]
        else:
            payloads = [sendable_payload(payload, tensors) for payload in inputs.payloads]
            self._requests = [encode_inputs_request(id_, [(_ID, payload)]) for payload in payloads]
        self._connection, self._session_id = agent.connection, id_
        size, connection = max(map(len, self._requests)), self._connection
        super().__init__(agent.description, size, connection.hold, connection.end_predict)

    def call_of(self, query: int) -> SpanKind:
        """Returns the span of a query's call; see ``CallTarget``."""
        return call_to(self._connection.address, "Predict")

    def statistics_sources(self) -> Mapping[str, ReadStatistics]:
        """Returns what reads the model's statistics and the agent's status; see ``ReportingTarget``."""
        connection, model = self._connection, self.description.manifest
        names = (model.name, f"{model.name}@{model.framework.name}")
        return {
            "V2": partial(connection.statistics, names, model.version),
            "status": partial(connection.status, (model.name, model.framework.name)),
        }

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query; see ``CallTarget``."""
        begin: BeginCall = self._connection.begin_predict
        if metadata := self.traced_metadata(query):
            begin = partial(self._connection.begin_predict, metadata=metadata)
        run.send(query, self._requests[query % len(self._requests)], begin)

    def answered(self, reply: bytes) -> Outcome:
        """Reads a reply; see ``CallTarget``."""
        result = self._connection.read(reply)
        if result.failures:
            return Outcome(0, result.failures[0].message)
        answers = result.input_ids.count(_ID)
        reason = "" if answers else "the agent gave no answer for the query"
        times = {"predict_ns": result.times.predict_ns, "batch_size": 1}
        if queue := result.queue:
            times |= {name: getattr(queue, name) for name in ("queue_ns", "batch_ns", "batch_size")}
        return Outcome(answers, reason, times)


class AnswerWatch:
    """A context manager that cancels a call if its next response exceeds the timeout.

    Entering and leaving it sets a number and wakes no thread, because the wait may be within a timed region:
    a thread checks that number when an answer could be overdue, about once per ``timeout_s``. ``cancel`` is
    called once, in that thread. ``timeout_s`` of None sets no limit.
    """

    def __init__(self, timeout_s: float | None, cancel: Callable[[], object]) -> None:
        self.timeout_s = timeout_s
        self.expired = False
        """Whether the call was cancelled because an answer was overdue."""
        self._cancel = cancel
        self._due_s: float | None = None
        self._owed = 1
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def owing(self, answers: int) -> AnswerWatch:
        """Returns itself, to be entered while waiting for the first of several answers."""
        self._owed = answers
        return self

    @property
    def limit_s(self) -> float:
        """The timeout of the awaited answer, in seconds."""
        return (self.timeout_s or 0.0) * self._owed

    def __enter__(self) -> None:
        if self.timeout_s is None:
            return
        self._due_s = time.monotonic() + self.limit_s
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._look, name="answer-watch", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._due_s = None

    def close(self) -> None:
        """Ends the watch; calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _look(self) -> None:
        timeout_s = self.timeout_s or 0.0
        with self._changed:
            while not self._closed:
                due_s = self._due_s
                left_s = timeout_s if due_s is None else due_s - time.monotonic()
                if left_s <= 0:
                    self.expired = True
                    break
                # No longer than the shortest limit: the next one may be shorter than this.
                self._changed.wait(min(left_s, timeout_s))
        if self.expired:
            self._cancel()


_MOST_OWED = 4
"""The maximum factor by which the timeout grows: an agent sends the answers of a round together."""


class Flight:
    """A stream that sends rounds of batches and returns their results in the same order.

    gRPC fetches the requests in its own thread, which waits until their inputs are read. One thread uses a
    flight; any thread may call ``cancel``.

    Made by ``RemoteAgent.begin_flight``. The timeout is that of the answer to one batch; None sets no limit.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        trace: RemoteTrace | None,
        answer_timeout_s: float | None,
    ) -> None:
        self._answered: list[int] = []
        self._finished = False
        self._connection = connection
        self._session_id = session_id
        self._trace = trace
        self._waiting: deque[tuple[int, LocalBatch]] = deque()
        self._outbox: queue.SimpleQueue[Sequence[LocalBatch] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._call = connection.stream(self._requests(), trace)
        self._watch = AnswerWatch(answer_timeout_s, self._call.cancel)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, batches: Sequence[LocalBatch], numbers: Sequence[int]) -> None:
        """Sends the batches of one round; a trace identifies them by their numbers."""
        self._waiting.extend(zip(numbers, batches, strict=True))
        self._outbox.put(batches)

    def end(self) -> None:
        """Ends the stream of requests."""
        self._outbox.put(None)

    def next(self) -> BatchResult:
        """Waits for the result of the oldest batch.

        Raises:
            AgentError: The connection to the agent was lost, or the agent did not answer in time.
        """
        number, batch = self._waiting.popleft()
        if self._trace is not None:
            batch.record(self._trace.scope, number)
        if not batch.readable():
            return batch.merge(None)
        try:
            answer = self._next_result(min(len(self._waiting) + 1, _MOST_OWED))
        except AgentError as error:
            if self._failure is None:
                raise
            raise self._failure from error
        if answer is None:
            address = self._connection.address
            raise self._failure or AgentError(f"agent {address}: ended the stream before the last answer")
        self._answered.append(number)
        return batch.merge(answer)

    def finish(self) -> None:
        """Waits for the end of the stream, after the last result.

        Raises:
            AgentError: The connection to the agent was lost, or it sent more answers than requested.
        """
        if self._next_result() is not None:
            raise AgentError(f"agent {self._connection.address}: answered more than was requested")
        self._finished = True

    def cancel(self) -> None:
        """Cancels the reading of inputs, and the stream if it has not ended."""
        for _, batch in tuple(self._waiting):
            batch.cancel()
        self._watch.close()
        self._call.cancel()
        self._outbox.put(None)

    def close(self) -> None:
        """Cancels the batches in flight, and adds the agent's spans to the trace."""
        begun = bool(self._answered or self._waiting)
        trace, self._trace = self._trace, None
        if trace is not None:
            code = grpc.StatusCode.OK
            if not self._finished:  # a stream that has not ended is about to be cancelled
                code = grpc.StatusCode.CANCELLED if self._call.is_active() else self._call.code()
            trace.call_ended(code)
        self.cancel()
        if trace is not None and begun:
            self._connection.measure_clock(trace, anew=self._finished)
            trace.end(self._answered, complete=self._finished)

    def _requests(self) -> Generator[bytes, None, None]:
        while (batches := self._outbox.get()) is not None:
            try:
                # A batch without a readable input is not sent, and so cannot be the last of its round.
                round_ = [readable for batch in batches if (readable := batch.readable())]
                for number, readable in enumerate(round_, start=1):
                    yield encode_inputs_request(self._session_id, readable, more=number < len(round_))
            except CancelledError:
                return
            except Exception as error:  # noqa: BLE001 - raised again where the result is taken
                self._failure = error
                return

    def _next_result(self, owed: int = 1) -> BatchResult | None:
        """Returns the next result, or None at the end; spans before it are added to the trace."""
        while (answer := self._next_answer(owed)) is not None:
            read = self._connection.read_any(answer)
            if isinstance(read, BatchResult):
                return read
            if self._trace is not None:
                self._trace.parts.append(read)
        return None

    def _next_answer(self, owed: int) -> bytes | None:
        """Returns the next answer; ``owed`` results may be prepared before the agent sends it."""
        with translate_errors(self._connection.address, opened=True):
            try:
                with self._watch.owing(owed):
                    return next(self._call, None)
            except grpc.RpcError as error:
                if not self._watch.expired:
                    raise
                raise AgentError(
                    f"agent {self._connection.address}: did not answer within {self._watch.limit_s:g} s; "
                    "it hangs, or a batch takes longer: see --agent_timeout"
                ) from error
