"""Where a server listens: gRPC's options of its port, its exposure there, and the names that it answers to.

The names keep a browser's requests for pages of other sites from the server.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable

from typing_extensions import Self

from inferometer.agent.server.admission import Limits
from inferometer.manifests.errors import ConfigurationError, one_line

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - what gRPC takes an empty host for
_CLIENTS_KEEPALIVE_MS = 10_000
_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MAX_PENDING_CALLS = 20_000
MAX_METADATA_BYTES = 16 * 1024
"""The most metadata of a call over gRPC."""


def server_options(max_message_bytes: int, limits: Limits) -> tuple[tuple[str, int], ...]:
    """Returns gRPC's options of a server that accepts messages of that size."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Calls that come faster than a thread takes them wait; gRPC would cancel most beyond 1,000.
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        # Both alike: between the two gRPC refuses by chance.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Otherwise two agents could listen on one port, and calls would reach either.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENTS_KEEPALIVE_MS // 2),
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
    """Binds the address once, as gRPC does not report why it cannot; raises ConfigurationError."""
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


def is_loopback(host: str) -> bool:
    """Returns whether a host, by its name or address, is this machine as only itself can reach it.

    A name is looked up, and counts if all of its addresses do; one that is not known raises
    ConfigurationError.
    """
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or _EVERYWHERE, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on host {host}: {reason}") from error
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def metrics_warning(host: str, port: int) -> str | None:
    """Returns the warning about metrics at an address; None for none. Raises ConfigurationError."""
    if is_loopback(host):
        return None
    return (
        f"INSECURE: others can read the metrics at {host or '*'}:{port}, which have no TLS and no secret: "
        "names of models, and how much they are used"
    )


def check_exposure(host: str, *, tls: bool, secret: bool, insecure: bool, what: str = "agent") -> str | None:
    """Checks that nobody exposes an agent unknowingly, or ``what``; returns the warning to log, or None.

    Raises:
        ConfigurationError: Others can reach it, TLS or a secret is missing, and the user has not accepted
            that with ``insecure``. Or the host is not known.
    """
    missing = " and no ".join(name for name, there in (("TLS", tls), ("secret", secret)) if not there)
    if not missing or is_loopback(host):
        return None
    if not insecure:
        raise ConfigurationError(
            f"host {host or '*'} can be reached by others, and the {what} has no {missing}; give --tls_cert, "
            "--tls_key and --secret or --secret_file, or accept it with --insecure"
        )
    risks = [
        *(["anybody can use it"] if not secret else []),
        *(["everything travels in clear" + (", the secret too" if secret else "")] if not tls else []),
    ]
    return f"INSECURE: others can reach this {what}, which has no {missing}: {', and '.join(risks)}"


EVERY_HOST = "*"
_LOCAL = "localhost"
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII)


class HostNames:
    """Compares the headers ``Host`` and ``Origin`` of requests with the names of a server.

    A site can make its own name lead to this machine (DNS rebinding), and then the browsers of its visitors
    treat the server as part of the site. The name in ``Host`` tells: a server answers to every IP address,
    which nobody else can give out, to ``localhost`` and names below it, and to the ``names``. Requests
    without the header come from no browser.

    ``names`` are further names, without a port; None answers to any name. ``proxies`` are those that a proxy
    has for the server, whose pages are its own.
    """

    def __init__(self, names: Iterable[str] | None, proxies: Iterable[str] = ()) -> None:
        self._names = None if names is None else frozenset(map(_bare_name, names))
        self._proxies = frozenset(map(_bare_name, proxies))

    @classmethod
    def of(cls, allowed: Iterable[str] | None, host: str, *, secret: bool) -> Self:
        """Returns the names of a server that listens on ``host``.

        Args:
            allowed: What the user has allowed, ``*`` for every name. None allows every name to a server that
                requires a ``secret``, which no site knows, or that others can reach too; the rest answer to
                their own only.
            host: Where the server listens.
            secret: Whether it requires one.

        Raises:
            ConfigurationError: One of ``allowed`` is no name, or the host is not known.
        """
        if allowed is None:
            return cls(None if secret or not is_loopback(host) else (host,))
        allowed = tuple(allowed)
        for name in allowed:
            if (
                name != EVERY_HOST
                and not _is_address(_bare_name(name))
                and not _HOST_NAME.fullmatch(_bare_name(name))
            ):
                raise ConfigurationError(
                    f'allowed_hosts has "{one_line(name, 80)}", which is no name; give names without a port, '
                    f"such as models.example.org, or {EVERY_HOST} for every name"
                )
        return cls(None if EVERY_HOST in allowed else (host, *allowed), allowed)

    def admits(self, host: str | None) -> bool:
        """Returns whether a request with this ``Host`` is meant for the server."""
        if self._names is None or not host:
            return True
        name = _without_port(host)
        return _is_address(name) or name == _LOCAL or name.endswith(f".{_LOCAL}") or name in self._names

    def admits_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a request with this ``Origin`` comes from a page of the server and not of another site."""
        if origin is None:
            return True
        place = origin.partition("://")[2]
        return place == (host or "") or _without_port(place) in self._proxies


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return _bare_name(name if name and port.isdigit() else host)


def _bare_name(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
