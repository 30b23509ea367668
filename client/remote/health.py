"""Whether an agent, or any other server with ``grpc.health.v1``, answers."""

from __future__ import annotations

from dataclasses import replace

from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.remote.address import AgentAddress
from client.remote.failures import told
from client.remote.tls import ClientTls, is_secure, open_channel
from manifests.errors import AgentError

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def ask_health(address: str, timeout_s: float, tls: ClientTls | None = None) -> str:
    """Asks an agent as a whole for its health; no secret is needed for that.

    Args:
        address: The agent, as ``host:port``.
        timeout_s: How long to wait for the answer, in seconds.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.

    Returns:
        ``SERVING``, ``NOT_SERVING``, or what else the protocol has.

    Raises:
        ConfigurationError: The address is no ``host:port``.
        AgentError: The agent cannot be reached, or answers with a status that the protocol does not have.
    """
    agent = AgentAddress.parse(address)
    agent = replace(agent, secure=True) if is_secure(agent, tls) else agent
    with open_channel(agent, tls, _OPTIONS) as channel, told(agent):
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    statuses = health_pb2.HealthCheckResponse.ServingStatus
    if answer.status not in statuses.values():
        raise AgentError(f"agent {agent}: answered with the unknown health {answer.status}")
    return str(statuses.Name(answer.status))
