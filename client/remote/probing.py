"""Asking an agent what it is, with a short deadline, before anything is opened on it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import grpc

from agent.facts import AgentFacts, RunnableModel
from agent.server.secret import bearer
from client.remote.address import AgentAddress
from client.remote.connection import Connection
from client.remote.failures import busy_with, told
from client.remote.health import ask_health
from client.remote.queries import describe, list_frameworks, list_models
from client.remote.times import read_unix_ms
from client.remote.tls import ClientTls
from manifests.errors import AgentError

PROBE_TIMEOUT_S = 3.0
_SERVING = "SERVING"


@dataclass(frozen=True, slots=True)
class Probe:
    """What an agent that serves has answered.

    Attributes:
        facts: What it is; None where it was too busy to say so.
        open_sessions: How many models it has open; None with the facts.
        untold: Why it did not say what it is; empty where it did.
    """

    facts: AgentFacts | None
    open_sessions: int | None
    untold: str = ""


def check_access(secret: str | None, tls: ClientTls | None) -> None:
    """Checks what agents are to be shown, so that a mistake there is not taken for one of each agent.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """
    if secret is not None:
        bearer(secret)
    if tls is not None:
        tls.credentials()


def probe_agent(
    address: str,
    secret: str | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
    tls: ClientTls | None = None,
) -> Probe:
    """Asks an agent for its health, and what it is: three calls that count against its limit of requests.

    Args:
        address: The agent, as ``host:port``.
        secret: What it asks for, if it does.
        timeout_s: How long all of it may take, in seconds.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.

    Returns:
        What it is; without that if it serves and is too busy to say so.

    Raises:
        ConfigurationError: The address is no ``host:port``, or the secret cannot be sent.
        AgentError: It cannot be reached within that time, or takes no work at the moment.
        InferscopeError: It refuses to say what it is.
    """
    due_s = time.monotonic() + timeout_s

    def left_s() -> float:
        return max(0.001, due_s - time.monotonic())

    health = ask_health(address, left_s(), tls)
    if health != _SERVING:
        raise AgentError(f"agent {address}: takes no work at the moment ({health})")
    with Connection(AgentAddress.parse(address), secret, tls) as connection, told(connection.address):
        try:
            described = describe(connection, left_s())
            frameworks = list_frameworks(connection, left_s())
            models = list_models(connection, left_s())
        except grpc.RpcError as error:
            if (reason := busy_with(error, connection.address)) is None:
                raise
            return Probe(None, None, reason)
    facts = AgentFacts(
        hostname=described.hostname,
        architecture=described.architecture,
        cpu_model=described.cpu_model,
        gpus=tuple(described.gpus),
        frameworks={f.name: f.version for f in frameworks if f.version},
        models=tuple(RunnableModel(m.name, m.version, m.framework_name) for m in models if m.runnable),
        inferscope_version=described.inferscope_version,
        started_at=read_unix_ms(described.started_unix_ms),
    )
    return Probe(facts, described.open_sessions)
