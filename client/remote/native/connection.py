"""A connection to an agent: its calls, also those that need no open model.

Without an open model, an agent tells its health, description, status, frameworks and models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferometer.agent.hardware.conditions import ConditionCounters
from inferometer.agent.inference.stages import BatchResult
from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.agent.protocol.conversion import TracePart, read_conditions
from inferometer.agent.protocol.messages import decode_answer
from inferometer.agent.protocol.status import RETRY_KEY, bearer
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import (
    CONNECT_TIMEOUT_S,
    ClientTls,
    Metadata,
    ServerConnection,
    open_channel,
    statistics_method,
    statistics_of,
    with_tls,
)
from inferometer.client.remote.native.calls import (
    ClockOffset,
    RemoteTrace,
    busy_with,
    retried,
    translate_errors,
)
from inferometer.manifests.errors import AgentError
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from inferometer.protos.inferometer.v1.registry_pb2_grpc import RegistryServiceStub

_SERVICE = f"/{predict_pb2.DESCRIPTOR.services_by_name['PredictService'].full_name}"
_PREDICT_TRIES = 2
_TIMEOUT_S = 5.0
_SHORTEST_HOLD_S = 1.0
_TRIES = 1_000
"""The most connections until one leads to the worker of the session, of which there are at most 128."""
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # finds within 40 s that an agent's machine has vanished
    # Between attempts that fail, calls fail at once, and the pauses grow up to this.
    ("grpc.max_reconnect_backoff_ms", 30_000),
)


class Connection(ServerConnection):
    """A connection to an agent; see ``ServerConnection``.

    Its calls raise the errors of ``translate_errors``, and SessionError if the connection is closed.
    """

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

    def _connect(self) -> grpc.Channel:
        """Returns a further channel to the worker that has the session, if the agent has several."""
        request = predict_pb2.ConditionsRequest(session_id=self._session_id)
        for _ in range(_TRIES):
            channel = self._open()
            try:
                PredictServiceStub(channel).Conditions(
                    request, timeout=CONNECT_TIMEOUT_S, metadata=self.metadata, wait_for_ready=True
                )
            except grpc.RpcError as error:
                # the former after too many calls of this search, with the time to wait
                if error.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND}:
                    channel.close()
                    trailing = error.trailing_metadata() or ()
                    time.sleep(sum(int(each.value) for each in trailing if each.key == RETRY_KEY) / 1000)
                    continue
            return channel
        return self._open()  # whose calls say why

    def predict(self, request: bytes, timeout_s: float | None) -> BatchResult:
        """Sends one encoded ``PredictRequest`` and waits for the result.

        It is retried once if the connection was lost, as predicting changes nothing.
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
        """
        given = (*self.metadata, *metadata) if metadata else self.metadata
        return self.begin(self._loaded.future, request, metadata=given)

    def end_predict(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the encoded answer to a call, for ``read``, and waits for it if necessary."""
        with translate_errors(self.address, opened=True):
            return self.reply(call)

    def stream(self, requests: Iterator[bytes], trace: RemoteTrace | None) -> grpc._CallIterator[bytes]:
        """Begins a stream of encoded ``PredictStreamRequest`` messages, with the metadata of a trace."""
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

    def conditions(self, session_id: str) -> ConditionCounters | None:
        """Reads the counters of the agent's host; None if the agent, such as an older version, reports none.

        It takes the agent about a millisecond.
        """
        request = predict_pb2.ConditionsRequest(session_id=session_id)
        with suppress(grpc.RpcError):
            found = self.methods.Conditions(request, timeout=_TIMEOUT_S, metadata=self.metadata)
            return read_conditions(found)
        return None

    def statistics(self, names: Sequence[str], version: str, timeout_s: float) -> Mapping[str, float]:
        """Returns the statistics of a model, by any of its names; raises as ``translate_errors`` does."""
        with translate_errors(self.address, opened=True):
            answer = self._statistics(timeout=timeout_s, metadata=self.metadata)
        return statistics_of(answer, f"agent {self.address}", *names, version=version)

    def status(self, model: tuple[str, str], timeout_s: float) -> Mapping[str, float]:
        """Returns the agent's memory and CPU time, and a model's queue, as statistics.

        ``model`` is the name and the framework. Raises as ``translate_errors`` does.
        """
        request = registry_pb2.StatusRequest()
        with translate_errors(self.address, opened=True):
            found = self.registry.Status(request, timeout=timeout_s, metadata=self.metadata)
        waiting = [m.waiting_requests for m in found.models if (m.name, m.framework_name) == model]
        figures = {"queue_length": float(sum(waiting)), "memory_bytes": float(found.resident_memory_bytes)}
        return figures | ({"cpu_ns": float(found.cpu_ns)} if found.cpu_ns else {})  # older agents tell none

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


def _ask(method: Callable[..., _Answer], request: object, connection: Connection, due_s: float) -> _Answer:
    """Calls a method of the registry service, and retries until a time if the connection was lost."""
    left_s = max(0.001, due_s - time.monotonic())
    return retried(lambda left_s: method(request, timeout=left_s, metadata=connection.metadata), left_s)


def _read_unix_ms(unix_ms: int) -> datetime | None:
    """Returns milliseconds since 1970 as a time in UTC; None for 0 and for an invalid time."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, timezone.utc) if unix_ms else None
    except (OverflowError, ValueError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """The answers of a serving agent.

    What is unknown because the agent was too busy to answer is None. ``problem`` is empty if it answered.
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
    health = ask_health(address, timeout_s, tls)
    if health != "SERVING":
        raise AgentError(f"agent {address}: accepts no work at the moment ({health})")
    with (
        Connection(AgentAddress.parse(address), secret, tls) as connection,
        translate_errors(connection.address),
    ):
        try:
            agent = connection.registry
            described = _ask(agent.Describe, registry_pb2.DescribeRequest(), connection, due_s)
            listed = _ask(agent.ListFrameworks, registry_pb2.ListFrameworksRequest(), connection, due_s)
            models = _ask(agent.ListModels, registry_pb2.ListModelsRequest(), connection, due_s).models
        except grpc.RpcError as error:
            if (reason := busy_with(error, connection.address)) is None:
                raise
            return Probe(None, None, reason)
    agent_info = AgentInfo(
        hostname=described.hostname,
        architecture=described.architecture,
        cpu_model=described.cpu_model,
        gpus=tuple(described.gpus),
        frameworks={f.name: f.version for f in listed.frameworks if f.version},
        models=tuple(RunnableModel(m.name, m.version, m.framework_name) for m in models if m.runnable),
        inferometer_version=described.inferometer_version,
        started_at=_read_unix_ms(described.started_unix_ms),
        http_port=described.http_port or None,
    )
    return Probe(agent_info, described.open_sessions)


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent's health and status.

    Attributes:
        health: ``SERVING``, ``NOT_SERVING``, or another status of the protocol.
        details: The fields of its ``StatusResponse``, with times in seconds, as the command prints them; None
            if they are unknown. ``started_at`` may be None.
        problem: Why it is unknown.
        refused: Whether the agent refused the call for a wrong or missing secret.
    """

    health: str
    details: Mapping[str, Any] | None
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
        try:
            answer = _ask(connection.registry.Status, registry_pb2.StatusRequest(), connection, due_s)
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
    details = {
        "version": answer.inferometer_version,
        "started_at": _read_unix_ms(answer.started_unix_ms),
        "uptime_s": answer.uptime_ns / 1e9,
        "open_sessions": answer.open_sessions,
        "resident_memory_bytes": answer.resident_memory_bytes,
        "gpus": [*answer.gpus],
        "troubles": [*answer.troubles],
        "models": [
            {
                "name": model.name,
                "version": model.version,
                "framework": model.framework_name,
                "device": model.device,
                "waiting_requests": model.waiting_requests,
                "busy_s": model.busy_ns / 1e9,
                "predicted_inputs": model.predicted_inputs,
                "instances": model.instances or None,  # an earlier version tells neither
                "instances_alive": model.instances_alive if model.instances else None,
            }
            for model in answer.models
        ],
    }
    return AgentStatus(health, details)
