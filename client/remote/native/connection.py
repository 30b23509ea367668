"""A connection to an agent: its calls and its streams, also those that need no open model.

Without an open model, an agent tells its health, description, status, frameworks and models.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferometer.agent.hardware.conditions import ConditionCounters
from inferometer.agent.inference.stages import BatchResult
from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.agent.protocol.conversion import TracePart, read_conditions
from inferometer.agent.protocol.messages import decode_answer, encode_inputs_request
from inferometer.agent.protocol.status import bearer
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import ClientTls, Metadata, ServerConnection, open_channel, with_tls
from inferometer.client.remote.kserve.server import statistics_method, statistics_of
from inferometer.client.remote.native.calls import (
    ClockOffset,
    LocalBatch,
    RemoteTrace,
    busy_with,
    retried,
    translate_errors,
)
from inferometer.manifests.errors import AgentError
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from inferometer.protos.inferometer.v1.registry_pb2_grpc import RegistryServiceStub


class AnswerWatch:
    """A context manager that cancels a call if its next response exceeds the timeout.

    Entering and leaving it sets a number and wakes no thread, because the wait may be within a timed region:
    a thread checks that number when an answer could be overdue, about once per ``timeout_s``.

    Args:
        timeout_s: The timeout of one answer, in seconds; None sets no limit.
        cancel: Ends the call; it is called once, in the watching thread.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


_SERVICE = f"/{predict_pb2.DESCRIPTOR.services_by_name['PredictService'].full_name}"
_PREDICT_TRIES = 2
_TIMEOUT_S = 5.0
_SHORTEST_HOLD_S = 1.0
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # finds within 40 s that an agent's machine has vanished
    # Between attempts that fail, calls fail at once, and the pauses grow up to this.
    ("grpc.max_reconnect_backoff_ms", 30_000),
)


class Connection(ServerConnection):
    """A connection to an agent; see ``ServerConnection``."""

    def __init__(
        self, address: AgentAddress, secret: str | None = None, tls: ClientTls | None = None
    ) -> None:
        self.address = with_tls(address, tls)
        super().__init__(self.address, f"agent {self.address}", _OPTIONS, secret, tls)
        self._offset: ClockOffset | None = None
        self._session_id = ""
        self.methods = PredictServiceStub(self._channel)
        self.registry = RegistryServiceStub(self._channel)
        self._statistics = statistics_method(self._channel)
        # Without serializers: tensors are written and read by inferometer.agent.protocol.messages.
        self._predict = self._unary(self._channel)
        self._predict_stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            f"{_SERVICE}/PredictStream"
        )

    def _unary(self, channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        return channel.unary_unary(f"{_SERVICE}/Predict")

    def _reaches_session(self, channel: grpc.Channel) -> bool:
        request = predict_pb2.ConditionsRequest(session_id=self._session_id)
        try:
            PredictServiceStub(channel).Conditions(request, timeout=_TIMEOUT_S, metadata=self.metadata)
        except grpc.RpcError as error:  # the calls say why, unless it is another worker
            return error.code() is not grpc.StatusCode.NOT_FOUND
        return True

    def predict(self, request: bytes, timeout_s: float | None) -> BatchResult:
        """Sends one encoded ``PredictRequest`` and waits for the result.

        It is retried once if the connection was lost, as predicting changes nothing.

        Raises:
            InferometerError: See ``translate_errors``.
        """
        with translate_errors(self.address, opened=True):
            answer = retried(
                lambda left_s: self._predict(request, timeout=left_s, metadata=self.metadata),
                timeout_s,
                tries=_PREDICT_TRIES,
            )
        return self.read(answer)

    def begin_predict(self, request: bytes, metadata: Metadata = ()) -> grpc.Future[bytes]:
        """Sends one encoded ``PredictRequest`` without waiting; ``end_predict`` returns the answer.

        It uses the connection that ``hold`` opened last.

        Raises:
            SessionError: The connection is closed.
        """
        given = (*self.metadata, *metadata) if metadata else self.metadata
        return self.begin(self._loaded.future, request, metadata=given)

    def end_predict(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded answer to a call, for ``read``, and waits for it if necessary.

        Raises:
            InferometerError: See ``translate_errors``.
        """
        with translate_errors(self.address, opened=True):
            return self.reply(call)

    def stream(self, requests: Iterator[bytes], trace: RemoteTrace | None) -> grpc._CallIterator[bytes]:
        """Begins a stream of encoded ``PredictStreamRequest`` messages, with the metadata of a trace.

        Raises:
            SessionError: The connection is closed.
        """
        metadata = (*self.metadata, *trace.metadata) if trace else self.metadata
        return self.begin(lambda: self._predict_stream(requests, metadata=metadata))

    def measure_clock(self, trace: RemoteTrace, *, anew: bool = True) -> None:
        """Measures the offset of the agent's clock in a few round trips, and applies it to the trace.

        Must be called outside of timed regions. A known offset is measured again only if ``anew``; that is
        useless if the connection was lost.
        """
        if self._offset is not None and not anew:
            trace.set_clock(self._offset)
            return
        self._offset = trace.measure_clock(
            lambda: (
                self.methods.Clock(
                    predict_pb2.ClockRequest(), timeout=_TIMEOUT_S, metadata=self.metadata
                ).unix_ns
            ),
            self._offset,
        )

    def conditions(self, session_id: str, timeout_s: float = _TIMEOUT_S) -> ConditionCounters | None:
        """Reads the counters of the agent's host; None if the agent, such as an older version, reports none.

        It takes the agent about a millisecond.
        """
        request = predict_pb2.ConditionsRequest(session_id=session_id)
        with suppress(grpc.RpcError):
            found = self.methods.Conditions(request, timeout=timeout_s, metadata=self.metadata)
            return read_conditions(found)
        return None

    def statistics(self, names: Sequence[str], version: str, timeout_s: float) -> Mapping[str, float]:
        """Returns the statistics of a model, by any of its names; raises as ``translate_errors`` does."""
        with translate_errors(self.address, opened=True):
            answer = self._statistics(timeout=timeout_s, metadata=self.metadata)
        return statistics_of(answer, f"agent {self.address}", *names, version=version)

    def status(self, session_id: str, model: tuple[str, str], timeout_s: float) -> Mapping[str, float]:
        """Returns the agent's memory and CPU time, and a model's queue, as statistics.

        ``model`` is the name and the framework. Raises as ``translate_errors`` does.
        """
        request = registry_pb2.StatusRequest()
        with translate_errors(self.address, opened=True):
            found = self.registry.Status(request, timeout=timeout_s, metadata=self.metadata)
        waiting = [m.waiting_requests for m in found.models if (m.name, m.framework_name) == model]
        figures = {"queue_length": float(sum(waiting)), "memory_bytes": float(found.resident_memory_bytes)}
        counters = self.conditions(session_id, timeout_s)
        return figures if counters is None else figures | {"cpu_ns": counters.own_cpu_s * 1e9}

    def read(self, answer: bytes) -> BatchResult:
        """Reads an encoded ``PredictResponse`` that holds a result.

        Raises:
            AgentError: The message is malformed, or holds spans instead of a result.
        """
        read = self.read_any(answer)
        if isinstance(read, TracePart):
            raise AgentError(f"agent {self.address}: answered with spans instead of a result")
        return read

    def read_any(self, answer: bytes) -> BatchResult | TracePart:
        """Reads an encoded ``PredictResponse`` or ``PredictStreamResponse``.

        Raises:
            AgentError: The message is malformed.
        """
        try:
            return decode_answer(answer)
        except DecodeError as error:
            raise AgentError(f"agent {self.address}: an answer is malformed: {error}") from error

    def hold_session(self, session_id: str) -> None:
        """Shows the agent that this client is alive, until the session or the connection is closed.

        If the process dies, the agent detects the closed connection, and closes the session. A lost
        connection is reopened; a call that fails immediately, such as at a proxy, is not retried.
        """
        began_s = time.monotonic()
        self._session_id = session_id
        call = self.methods.Hold.future(
            predict_pb2.HoldRequest(session_id=session_id), metadata=self.metadata, wait_for_ready=True
        )

        def hold_again(ended: grpc.Future[predict_pb2.HoldResponse]) -> None:
            lasted_s = time.monotonic() - began_s
            if call.code() is grpc.StatusCode.UNAVAILABLE and lasted_s >= _SHORTEST_HOLD_S:
                with suppress(ValueError):  # the channel is closed
                    self.hold_session(session_id)

        call.add_done_callback(hold_again)

    def close_session(self, session_id: str) -> None:
        """Closes a session, if the agent can be reached."""
        with suppress(grpc.RpcError):  # a session of a lost agent is closed
            self.methods.Close(
                predict_pb2.CloseRequest(session_id=session_id), timeout=_TIMEOUT_S, metadata=self.metadata
            )


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


PROBE_TIMEOUT_S = 3.0
_Answer = TypeVar("_Answer")
_HEALTH_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def ask_health(address: str, timeout_s: float, tls: ClientTls | None = None) -> str:
    """Checks an agent's health, which requires no secret; returns its status as the protocol names it.

    Without ``tls``, TLS is used only if the address requires it.

    Raises:
        ConfigurationError: The address is invalid.
        AgentError: The agent cannot be reached, or answers with an unknown status.
    """
    agent = with_tls(AgentAddress.parse(address), tls)
    with open_channel(agent, tls, _HEALTH_OPTIONS) as channel, translate_errors(agent):
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    statuses = health_pb2.HealthCheckResponse.ServingStatus
    if answer.status not in statuses.values():
        raise AgentError(f"agent {agent}: answered with the unknown health {answer.status}")
    return str(statuses.Name(answer.status))


def _ask(
    method: Callable[..., _Answer], request: object, connection: Connection, timeout_s: float
) -> _Answer:
    """Calls a method of the registry service, and retries if the connection was lost."""
    return retried(lambda left_s: method(request, timeout=left_s, metadata=connection.metadata), timeout_s)


def _read_unix_ms(unix_ms: int) -> datetime | None:
    """Returns milliseconds since 1970 as a time in UTC; None for 0 and for an invalid time."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, timezone.utc) if unix_ms else None
    except (OverflowError, ValueError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """The answers of a serving agent.

    Attributes:
        agent_info: The agent's description; None if it was too busy to answer.
        open_sessions: How many models it has open; None if it was too busy to answer.
        problem: Why the agent did not answer; empty if it did.
    """

    agent_info: AgentInfo | None
    open_sessions: int | None
    problem: str = ""


def check_access(secret: str | None, tls: ClientTls | None) -> None:
    """Checks the client's secret and TLS files, so that their faults are not attributed to each agent.

    Raises:
        ConfigurationError: The secret cannot be sent, or a TLS file cannot be used.
    """
    if secret is not None:
        bearer(secret)
    if tls is not None:
        tls.credentials()


def probe_agent(
    address: str, secret: str | None = None, timeout_s: float = PROBE_TIMEOUT_S, tls: ClientTls | None = None
) -> Probe:
    """Checks an agent's health and reads its description; three calls count against its rate limit.

    ``timeout_s`` is the timeout of all calls together. Without ``tls``, TLS is used only if the address
    requires it.

    Raises:
        ConfigurationError: The address is invalid, or the secret cannot be sent.
        AgentError: The agent cannot be reached in time, or does not serve.
        InferometerError: The agent refuses the calls.
    """
    due_s = time.monotonic() + timeout_s

    def left_s() -> float:
        return max(0.001, due_s - time.monotonic())

    health = ask_health(address, left_s(), tls)
    if health != "SERVING":
        raise AgentError(f"agent {address}: accepts no work at the moment ({health})")
    with (
        Connection(AgentAddress.parse(address), secret, tls) as connection,
        translate_errors(connection.address),
    ):
        try:
            agent = connection.registry
            described = _ask(agent.Describe, registry_pb2.DescribeRequest(), connection, left_s())
            frameworks = _ask(
                agent.ListFrameworks, registry_pb2.ListFrameworksRequest(), connection, left_s()
            ).frameworks
            models = _ask(agent.ListModels, registry_pb2.ListModelsRequest(), connection, left_s()).models
        except grpc.RpcError as error:
            if (reason := busy_with(error, connection.address)) is None:
                raise
            return Probe(None, None, reason)
    agent_info = AgentInfo(
        hostname=described.hostname,
        architecture=described.architecture,
        cpu_model=described.cpu_model,
        gpus=tuple(described.gpus),
        frameworks={f.name: f.version for f in frameworks if f.version},
        models=tuple(RunnableModel(m.name, m.version, m.framework_name) for m in models if m.runnable),
        inferometer_version=described.inferometer_version,
        started_at=_read_unix_ms(described.started_unix_ms),
        http_port=described.http_port or None,
    )
    return Probe(agent_info, described.open_sessions)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that an agent has loaded; see ``LoadedModel`` of the protocol."""

    name: str
    version: str
    framework: str
    device: str
    waiting_requests: int
    busy_s: float
    predicted_inputs: int


@dataclass(frozen=True, slots=True)
class AgentDetails:
    """An agent's status; see ``StatusResponse`` of the protocol. A time may be unknown."""

    version: str
    started_at: datetime | None
    uptime_s: float
    open_sessions: int
    resident_memory_bytes: int
    gpus: tuple[str, ...]
    troubles: tuple[str, ...]
    models: tuple[LoadedModel, ...]


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent's health and status.

    Attributes:
        health: ``SERVING``, ``NOT_SERVING``, or another status of the protocol.
        details: Its status; None if it is unknown.
        problem: Why it is unknown.
        refused: Whether the agent refused the call for a wrong or missing secret.
    """

    health: str
    details: AgentDetails | None
    problem: str | None = None
    refused: bool = False


def ask_status(
    address: str, timeout_s: float, secret: str | None = None, tls: ClientTls | None = None
) -> AgentStatus:
    """Returns an agent's health and status. An agent that answers only the health check is alive.

    ``timeout_s`` is the timeout of all calls together. Without ``tls``, TLS is used only if the address
    requires it.

    Raises:
        ConfigurationError: The address is invalid, or the secret cannot be sent.
        AgentError: The agent cannot be reached, or violates the protocol.
    """
    due_s = time.monotonic() + timeout_s
    health = ask_health(address, timeout_s, tls)
    with (
        Connection(AgentAddress.parse(address), secret, tls) as connection,
        translate_errors(connection.address),
    ):
        left_s = max(0.001, due_s - time.monotonic())
        try:
            answer = _ask(connection.registry.Status, registry_pb2.StatusRequest(), connection, left_s)
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            if refused:
                reason = "it requires its secret (--secret)" if secret is None else "this is not its secret"
            elif error.code() is grpc.StatusCode.UNIMPLEMENTED:
                reason = "it is of another version, or no inferometer agent"
            elif (busy := busy_with(error, connection.address)) is not None:
                reason = f"it may be too busy: {busy}"
            else:
                raise
            return AgentStatus(health, None, f"its status is unknown; {reason}", refused)
    details = AgentDetails(
        version=answer.inferometer_version,
        started_at=_read_unix_ms(answer.started_unix_ms),
        uptime_s=answer.uptime_ns / 1e9,
        open_sessions=answer.open_sessions,
        resident_memory_bytes=answer.resident_memory_bytes,
        gpus=tuple(answer.gpus),
        troubles=tuple(answer.troubles),
        models=tuple(
            LoadedModel(
                model.name,
                model.version,
                model.framework_name,
                model.device,
                model.waiting_requests,
                model.busy_ns / 1e9,
                model.predicted_inputs,
            )
            for model in answer.models
        ),
    )
    return AgentStatus(health, details)
