"""Calls to an agent without an open model: its health, description, status, frameworks and models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.agent.protocol.status import bearer
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import ClientTls, open_channel, with_tls
from inferometer.client.remote.native.calls import busy_with, retried, translate_errors
from inferometer.client.remote.native.connection import Connection
from inferometer.manifests.errors import AgentError
from inferometer.protos.inferometer.v1 import registry_pb2

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
