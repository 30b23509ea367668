"""Limits that keep one client from taking all of an agent: its requests a second, and its streams."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc

from inferometer.agent.server.security.limits import Limits
from inferometer.agent.server.security.secret import HEALTH_SERVICE
from inferometer.manifests.errors import RateLimitError, SessionLimitError

_IPV6_NETWORK_BITS = 64


def client_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Returns who a call comes from: whom its certificate names, or else the address of its host.

    Of an IPv6 address it is the network, within which a host takes any address that it likes.
    """
    named = context.peer_identities() or ()
    return client_named([name.decode("utf-8", "replace") for name in named], unquote(context.peer()))


def client_named(names: Collection[str], peer: str) -> str:
    """Returns who a call comes from by the names in its certificate and its ``peer``; see ``client_of``."""
    if names:
        return "certificate " + ", ".join(sorted(names))
    return "host " + _host(peer)


def _host(peer: str) -> str:
    """The host of gRPC's ``ipv4:1.2.3.4:5`` or ``ipv6:[::1]:5``; anything else stays as it is."""
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
"""Clients that are remembered; one more replaces the one that was idle for the longest."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """A bucket of ``burst`` tokens for each client, to which ``rate`` are added a second. Thread-safe."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """The number of clients that are remembered."""
        with self._lock:
            return len(self._buckets)

    def take(self, client: str) -> float:
        """Takes a token, and returns 0; or takes nothing, and returns the seconds until there is one."""
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


RETRY_KEY = "grpc-retry-pushback-ms"
"""The trailing metadata that gRPC has for "not before so many milliseconds"."""
_MS_PER_S = 1000
_CHECK = f"{HEALTH_SERVICE}/Check"


class ClientLimits:
    """Refuses calls of a client over its limits. For one event loop.

    Health checks are not limited. A stream counts as one request, and so does each message that the client
    sends over it after the first; those are not refused, but read later.
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
        """Counts a call of a method, ``package.Service/Method``, from a client; see ``client_of``.

        Raises RateLimitError if the client sends requests too fast; ``trailing``, the metadata that goes with
        the status, gets when to try again.
        """
        wait_s = self._buckets.take(client) if self._buckets is not None and method != _CHECK else 0.0
        if wait_s:
            wait_ms = math.ceil(wait_s * _MS_PER_S)
            trailing.append((RETRY_KEY, str(wait_ms)))
            raise RateLimitError(
                f"the agent takes no more requests of this client now; try again in {wait_ms} ms"
            )

    async def wait_for_turn(self, client: str) -> None:
        """Waits until a further message of a stream may be read."""
        if self._buckets is not None:
            await asyncio.sleep(self._buckets.reserve(client))

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Counts a stream while it is open; raises SessionLimitError if the client has as many as it may."""
        if self._max_streams is not None and self._streams[client] >= self._max_streams:
            raise SessionLimitError(
                f"the agent serves this client its limit of {self._max_streams} streams; try again later"
            )
        self._streams[client] += 1
        try:
            yield
        finally:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]
