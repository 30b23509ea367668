"""The address that an agent listens on, and what gRPC is told of its port."""

from __future__ import annotations

import errno
import socket

from agent.server.limits import Limits
from manifests.errors import ConfigurationError

_CLIENTS_KEEPALIVE_MS = 10_000
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_MAX_PENDING_CALLS = 20_000


def server_options(max_message_bytes: int, limits: Limits) -> tuple[tuple[str, int], ...]:
    """Returns gRPC's options of a server that accepts messages of that size."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Calls that come faster than a thread takes them wait; gRPC would cancel most beyond 1,000.
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        # Otherwise two agents could listen on one port, and calls would reach either.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _CLIENTS_KEEPALIVE_MS // 2),
        # A client that has vanished says nothing: pings find that out, and its calls end.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # What gRPC really waits for an answer (seen in grpcio 1.85), and by itself for 60 s.
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        *limits.channel_options(),
    )


def join_address(host: str, port: int) -> str:
    """Returns ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(host: str, port: int) -> None:
    """Binds and lets go: gRPC does not say why it cannot.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port {port}: a port is 0…65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the second of a name that is none, as one too long
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = "another program listens there; choose another --port, or 0 for a free one"
        raise ConfigurationError(f"cannot listen on {join_address(host, port)}: {reason}") from error
