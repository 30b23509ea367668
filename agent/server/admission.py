"""Access to a server: the address it listens on, its host names, the secret, and the limits.

Checking host names keeps out requests that browsers send for pages of other sites. Limits apply to requests,
images, streams and connections. Limits on the requests per second and the streams of each client keep one
client from monopolizing an agent.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import math
import re
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import grpc
from typing_extensions import Self

from inferometer.agent.preprocessing.inputs import MAX_PIXELS
from inferometer.agent.protocol.status import AUTHORIZATION_KEY, RETRY_KEY, bearer
from inferometer.manifests.errors import (
    ConfigurationError,
    InputError,
    RateLimitError,
    SessionLimitError,
    one_line,
)

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - what gRPC takes an empty host for
_CLIENTS_KEEPALIVE_MS = 10_000
_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MAX_PENDING_CALLS = 20_000
MAX_METADATA_BYTES = 16 * 1024
"""The maximum size of a gRPC call's metadata."""


def server_options(
    max_message_bytes: int, limits: Limits, *, shared: bool = False
) -> tuple[tuple[str, int], ...]:
    """Returns the gRPC options of a server that accepts messages up to this size; see ``bound``."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Calls that come faster than a thread takes them wait; gRPC would cancel most beyond 1,000.
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        # Both alike: between the two gRPC refuses by chance.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Unless it is wanted, two agents could listen on one port, and calls would reach either.
        ("grpc.so_reuseport", int(shared)),
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


def bound(
    host: str, port: int, purpose: str = "", advice: str = "", *, backlog: int = 0, shared: bool = False
) -> socket.socket:
    """Returns a socket that is bound to the address, and listens if there is a ``backlog``.

    Processes of one user can listen on a ``shared`` port together (SO_REUSEPORT).

    Raises ConfigurationError with the reason.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would take the lowest 16 bits
        raise ConfigurationError(f"port {port}{purpose}: a port is 0…65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(address)
            if backlog:
                probe.listen(backlog)
            return probe.dup()
    except (OSError, UnicodeError) as error:  # the second of a name that is none, as one too long
        reason = getattr(error, "strerror", None) or str(error)
        if not advice and getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = "another program listens there; choose another --port, or 0 for a free one"
        where = join_address(host, port) + purpose
        raise ConfigurationError(f"cannot listen on {where}: {reason}{advice}") from error


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is one that only this machine can reach.

    A name is looked up, and qualifies only if all of its addresses do. Raises ConfigurationError if the name
    is unknown.
    """
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or _EVERYWHERE, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on host {host}: {reason}") from error
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def metrics_warning(host: str, port: int) -> str | None:
    """Returns the warning about exposed metrics, or None. Raises ConfigurationError for an unknown host."""
    if is_loopback(host):
        return None
    return (
        f"INSECURE: others can read the metrics at {host or '*'}:{port}, which have no TLS and no secret: "
        "names of models, and how much they are used"
    )


def check_exposure(host: str, *, tls: bool, secret: bool, insecure: bool, what: str = "agent") -> str | None:
    """Checks that an agent, or ``what``, is not exposed unknowingly; returns the warning to log, or None.

    Raises:
        ConfigurationError: The host is unknown, or others can reach it without TLS or without a secret, and
            the user has not accepted that with ``insecure``.
    """
    missing = " and no ".join(name for name, there in (("TLS", tls), ("secret", secret)) if not there)
    if not missing or is_loopback(host):
        return None
    if not insecure:
        raise ConfigurationError(
            f"host {host or '*'} can be reached by others, but the {what} has no {missing}; give --tls_cert, "
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

    A site can make its own name resolve to this machine (DNS rebinding), and its visitors' browsers then
    treat the server as part of the site. ``Host`` reveals this: a server answers to any IP address, which
    nobody else can assign, to ``localhost`` and its subdomains, and to ``names``. Requests without the header
    do not come from a browser.

    ``names`` are further names, without a port; None accepts any name. ``proxies`` are the names that a proxy
    uses for the server; pages under them are treated as the server's own.
    """

    def __init__(self, names: Iterable[str] | None, proxies: Iterable[str] = ()) -> None:
        self._names = None if names is None else frozenset(map(_bare_name, names))
        self._proxies = frozenset(map(_bare_name, proxies))

    @classmethod
    def of(cls, allowed: Iterable[str] | None, host: str, *, secret: bool) -> Self:
        """Returns the names of a server that listens on ``host``.

        Args:
            allowed: The names that the user has allowed; ``*`` allows every name. With None, a server that
                requires a ``secret``, which no site knows, or that others can reach answers to every name;
                any other server answers only to its own names.
            host: The host that the server listens on.
            secret: Whether the server requires a secret.

        Raises:
            ConfigurationError: One of ``allowed`` is not a host name, or the host is unknown.
        """
        if allowed is None:
            return cls(None if secret or not is_loopback(host) else (host,))
        allowed = tuple(allowed)
        for name in allowed:
            bare = _bare_name(name)
            if name != EVERY_HOST and not _is_address(bare) and not _HOST_NAME.fullmatch(bare):
                raise ConfigurationError(
                    f'allowed_hosts has "{one_line(name, 80)}", which is not a name; give names without a '
                    f"port, such as models.example.org, or {EVERY_HOST} for every name"
                )
        return cls(None if EVERY_HOST in allowed else (host, *allowed), allowed)

    def admits(self, host: str | None) -> bool:
        """Returns whether a request with this ``Host`` is meant for the server."""
        if self._names is None or not host:
            return True
        name = _without_port(host)
        return _is_address(name) or name == _LOCAL or name.endswith(f".{_LOCAL}") or name in self._names

    def admits_origin(self, origin: str | None, host: str | None) -> bool:
        """Returns whether a request with this ``Origin`` comes from one of the server's own pages."""
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


HEALTH_SERVICE = "grpc.health.v1.Health"


class SecretCheck:
    """Admits calls that present the secret, and calls to the health service.

    Calls to methods that do not exist are checked too, so that nobody without the secret learns which exist.
    The secret is sent unencrypted: on a network that others can listen to, only TLS protects it. Raises
    ConfigurationError if the secret cannot be sent.
    """

    def __init__(self, secret: str) -> None:
        self._expected = _secret_digest(bearer(secret))

    def admits(self, path: str, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Returns whether a call to a method, such as ``/package.Service/Method``, is allowed."""
        if path.startswith(f"/{HEALTH_SERVICE}/"):
            return True
        sent = [value for key, value in metadata if key == AUTHORIZATION_KEY]
        # every value is compared, as a digest: the time reveals neither the first difference nor the length
        return sum(hmac.compare_digest(_secret_digest(value), self._expected) for value in sent) > 0


def _secret_digest(value: str | bytes) -> bytes:
    return sha256(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")).digest()


MAX_INPUTS = 10_000
_HANDSHAKE_MS = 20_000
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an agent enforces. None means no limit, unless stated otherwise.

    Attributes:
        max_inputs: The maximum number of inputs in one request, and the largest batch of a dataset.
        max_pixels: The maximum number of pixels of a decoded image; a small file can declare many.
        max_streams: The maximum number of concurrent streams; each occupies a thread. None means half of the
            threads.
        max_client_streams: The maximum number of concurrent streams of one client.
        max_client_rps: The average number of requests per second that one client may send. A call that comes
            sooner is refused; the messages of a stream wait.
        client_burst: The number of requests that one client may send at once after a pause. None means as
            many as it may send per second.
        max_connections: The maximum number of open connections.
        max_connection_age_s: How long a connection lives, in seconds, before its client has to reconnect;
            calls in progress are finished.
        max_connection_idle_s: How long a connection may be unused, in seconds.

    Raises:
        ConfigurationError: A limit is invalid.
    """

    max_inputs: int = MAX_INPUTS
    max_pixels: int = MAX_PIXELS
    max_streams: int | None = None
    max_client_streams: int | None = None
    max_client_rps: float | None = None
    client_burst: int | None = None
    max_connections: int | None = None
    max_connection_age_s: float | None = None
    max_connection_idle_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigurationError(f"{field.name} is {value}; it must be above 0")
        if self.max_pixels > MAX_PIXELS:
            raise ConfigurationError(f"max_pixels is {self.max_pixels}; at most {MAX_PIXELS} are decoded")
        if self.client_burst is not None and self.max_client_rps is None:
            raise ConfigurationError("client_burst requires max_client_rps")

    def check_inputs(self, count: int) -> None:
        """Raises InputError if a request has too many inputs."""
        if count > self.max_inputs:
            raise InputError(
                f"the batch has {count} inputs, but the agent takes at most {self.max_inputs}; "
                "use a smaller --batch_size here, or serve it with a larger --max_inputs"
            )

    def streams_of(self, workers: int) -> int:
        """Returns how many of the threads for calls may be occupied by streams.

        Raises ConfigurationError if none would be left for other calls.
        """
        if self.max_streams is None:
            return max(1, workers // 2)
        if self.max_streams >= workers:
            raise ConfigurationError(
                f"max_streams is {self.max_streams}; it must be below {workers}, the threads for all calls"
            )
        return self.max_streams

    def channel_options(self) -> tuple[tuple[str, int], ...]:
        """Returns the limits that gRPC itself enforces."""
        found = (
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS, 1),
            ("grpc.max_allowed_incoming_connections", self.max_connections, 1),
            ("grpc.max_connection_age_ms", self.max_connection_age_s, _MS_PER_S),
            ("grpc.max_connection_idle_ms", self.max_connection_idle_s, _MS_PER_S),
        )
        return tuple((name, int(value * factor)) for name, value, factor in found if value is not None)


class StreamLimit:
    """Admits a limited number of streams across all services. Thread-safe.

    A stream of predictions occupies a thread for its whole duration.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._free = threading.Semaphore(streams)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts a stream during a ``with`` block; raises SessionLimitError if the limit is reached."""
        if not self._free.acquire(blocking=False):
            raise SessionLimitError(f"the agent is at its limit of {self._streams} streams; try again later")
        try:
            yield
        finally:
            self._free.release()


_IPV6_NETWORK_BITS = 64


def client_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Returns the identity of a call's client: the names in its certificate, or else its host's address.

    For IPv6, the network takes the place of the address, because a host can choose any address within it.
    """
    named = context.peer_identities() or ()
    return client_named([name.decode("utf-8", "replace") for name in named], unquote(context.peer()))


def client_named(names: Collection[str], peer: str) -> str:
    """Identifies a call's client by the names in its certificate and its ``peer``; see ``client_of``."""
    if names:
        return "certificate " + ", ".join(sorted(names))
    return "host " + _host(peer)


def _host(peer: str) -> str:
    """Returns the host in gRPC's ``ipv4:1.2.3.4:5`` or ``ipv6:[::1]:5``; other text is unchanged."""
    kind, _, address = peer.partition(":")
    host = address.rpartition(":")[0].strip("[]").partition("%")[0]
    if kind == "ipv4":
        return host
    if kind != "ipv6":
        return peer
    ip = ipaddress.IPv6Address(host)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((ip, _IPV6_NETWORK_BITS), strict=False))


MAX_CLIENTS = 10_000
"""The number of clients to remember; a further one replaces the client that has been idle the longest."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """A bucket of ``burst`` tokens per client, refilled with ``rate`` tokens per second. Thread-safe."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._buckets)

    def take(self, client: str) -> float:
        """Takes a token and returns 0; if there is none, returns the seconds until there is one."""
        with self._lock:
            bucket = self._filled(client)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0.0
            return (1 - bucket.tokens) / self._rate

    def reserve(self, client: str) -> float:
        """Takes a token in advance; returns the seconds that the caller has to wait for it."""
        with self._lock:
            bucket = self._filled(client)
            bucket.tokens -= 1
            return max(0.0, -bucket.tokens / self._rate)

    def _filled(self, client: str) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.get(client)
        if bucket is None:
            if len(self._buckets) >= MAX_CLIENTS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[client] = _Bucket(self._burst, now_s)
        self._buckets.move_to_end(client)
        bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.at_s) * self._rate)
        bucket.at_s = now_s
        return bucket


_CHECK = f"{HEALTH_SERVICE}/Check"


class ClientLimits:
    """Refuses calls from a client that exceeds its limits. For one event loop.

    Health checks are not limited. A stream counts as one request, and so does each message after its first;
    these messages are not refused but read later.
    """

    def __init__(self, limits: Limits) -> None:
        rate = limits.max_client_rps
        self._buckets = TokenBuckets(rate, limits.client_burst or rate) if rate is not None else None
        self._max_streams = limits.max_client_streams
        self._streams: Counter[str] = Counter()

    @staticmethod
    def wanted(limits: Limits) -> bool:
        """Returns whether any of these limits is set."""
        return limits.max_client_rps is not None or limits.max_client_streams is not None

    def admit(self, method: str, client: str, trailing: list[tuple[str, str]]) -> None:
        """Counts a client's call to a method, ``package.Service/Method``; see ``client_of``.

        Raises RateLimitError if the client sends requests too fast; ``trailing``, the metadata sent with the
        status, then says when to retry.
        """
        wait_s = self._buckets.take(client) if self._buckets is not None and method != _CHECK else 0.0
        if wait_s:
            wait_ms = math.ceil(wait_s * _MS_PER_S)
            trailing.append((RETRY_KEY, str(wait_ms)))
            raise RateLimitError(
                f"the agent accepts no more requests from this client now; try again in {wait_ms} ms"
            )

    async def wait_for_turn(self, client: str) -> None:
        """Waits until a further message of a stream may be read."""
        if self._buckets is not None:
            await asyncio.sleep(self._buckets.reserve(client))

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Counts a stream while it is open; raises SessionLimitError if the client has reached its limit."""
        if self._max_streams is not None and self._streams[client] >= self._max_streams:
            raise SessionLimitError(
                f"this client is at its limit of {self._max_streams} streams; try again later"
            )
        self._streams[client] += 1
        try:
            yield
        finally:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]
