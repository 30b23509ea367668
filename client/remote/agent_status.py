"""How a served agent is: its health, and what it tells of itself to who shows its secret."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

import grpc

from client.remote.address import AgentAddress
from client.remote.connection import Connection
from client.remote.failures import busy_with, told
from client.remote.health import ask_health
from client.remote.queries import ask_load
from client.remote.times import read_unix_ms
from client.remote.tls import ClientTls
from protos.inferscope.v1 import registry_pb2

_NS_PER_S = 1e9


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
    """What an agent tells of itself; see ``StatusResponse`` of the protocol. A time may be unknown."""

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
    """How an agent is.

    Attributes:
        health: ``SERVING``, ``NOT_SERVING``, or what else the protocol has.
        details: What it tells of itself; None where it does not.
        untold: Why it does not.
        refused: Whether it does not because it was shown no secret, or not the right one.
    """

    health: str
    details: AgentDetails | None
    untold: str | None = None
    refused: bool = False


def ask_status(
    address: str, timeout_s: float, secret: str | None = None, tls: ClientTls | None = None
) -> AgentStatus:
    """Asks an agent how it is. One that has told its health and is too busy for more is alive.

    Args:
        address: The agent, as ``host:port``.
        timeout_s: How long to wait for all answers, in seconds.
        secret: What it asks for, if it does.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.

    Raises:
        ConfigurationError: The address is no ``host:port``, or the secret cannot be sent.
        AgentError: The agent cannot be reached, or answers outside the protocol.
    """
    due_s = time.monotonic() + timeout_s
    health = ask_health(address, timeout_s, tls)
    with Connection(AgentAddress.parse(address), secret, tls) as connection, told(connection.address):
        left_s = max(0.001, due_s - time.monotonic())
        try:
            answer = ask_load(connection, left_s)
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            if refused:
                reason = "it asks for its secret (--secret)" if secret is None else "this is not its secret"
            elif error.code() is grpc.StatusCode.UNIMPLEMENTED:
                reason = "it is of another version, or no inferscope agent"
            elif (busy := busy_with(error, connection.address)) is not None:
                reason = f"it may be too busy: {busy}"
            else:
                raise
            return AgentStatus(health, None, f"it tells no more; {reason}", refused)
    return AgentStatus(health, _details(answer))


def _details(answer: registry_pb2.StatusResponse) -> AgentDetails:
    return AgentDetails(
        version=answer.inferscope_version,
        started_at=read_unix_ms(answer.started_unix_ms),
        uptime_s=answer.uptime_ns / _NS_PER_S,
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
                model.busy_ns / _NS_PER_S,
                model.predicted_inputs,
            )
            for model in answer.models
        ),
    )
