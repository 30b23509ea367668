"""Asking an agent what it is, with a short deadline, before anything is opened on it."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from agent.facts import AgentFacts, RunnableModel
from client.remote.address import AgentAddress
from client.remote.connection import Connection
from client.remote.failures import told
from client.remote.health import ask_health
from client.remote.tls import ClientTls
from manifests.errors import AgentError
from protos.inferscope.v1 import registry_pb2

PROBE_TIMEOUT_S = 3.0
_SERVING = "SERVING"


def probe_agent(
    address: str,
    secret: str | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
    tls: ClientTls | None = None,
) -> tuple[AgentFacts, int]:
    """Asks an agent for its health, and what it is.

    Args:
        address: The agent, as ``host:port``.
        secret: What it asks for, if it does.
        timeout_s: How long all of it may take, in seconds.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.

    Returns:
        What it is, and how many models it has open.

    Raises:
        ConfigurationError: The address is no ``host:port``, or the secret cannot be sent.
        AgentError: It cannot be reached within that time, or takes no work at the moment.
    """
    due_s = time.monotonic() + timeout_s

    def left_s() -> float:
        return max(0.001, due_s - time.monotonic())

    health = ask_health(address, left_s(), tls)
    if health != _SERVING:
        raise AgentError(f"agent {address}: takes no work at the moment ({health})")
    with Connection(AgentAddress.parse(address), secret, tls) as connection, told(connection.address):
        registry, metadata = connection.registry, connection.metadata
        described = registry.Describe(registry_pb2.DescribeRequest(), timeout=left_s(), metadata=metadata)
        frameworks = registry.ListFrameworks(
            registry_pb2.ListFrameworksRequest(), timeout=left_s(), metadata=metadata
        ).frameworks
        models = registry.ListModels(
            registry_pb2.ListModelsRequest(), timeout=left_s(), metadata=metadata
        ).models
    facts = AgentFacts(
        hostname=described.hostname,
        architecture=described.architecture,
        cpu_model=described.cpu_model,
        gpus=tuple(described.gpus),
        frameworks={f.name: f.version for f in frameworks if f.installed},
        models=tuple(RunnableModel(m.name, m.version, m.framework_name) for m in models if m.runnable),
        inferscope_version=described.inferscope_version,
        started_at=datetime.fromtimestamp(described.started_unix_ms / 1000, timezone.utc),
    )
    return facts, described.open_sessions
