"""The HTTP server: uvicorn with httptools, on gRPC's event loop."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from typing import Any

import uvicorn

from inferometer.agent.closeable import Closeable
from inferometer.agent.server.rest.app import RestApp
from inferometer.agent.server.rest.connection import LEAST_BYTES_PER_S, SILENCE_S, Connection
from inferometer.agent.server.rest.http_connection import CheckingServer
from inferometer.agent.server.rest.tls import tls_context
from inferometer.agent.server.security.binding import join_address
from inferometer.agent.server.security.credentials import ServerTls
from inferometer.agent.server.security.limits import Limits
from inferometer.manifests.errors import ConfigurationError

Begin = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
"""Schedules work on the event loop from another thread."""
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_STARTING_S = 30.0


class HttpServer(Closeable):
    """A server on an event loop, from ``start`` to ``stop``. Call its methods from other threads.

    ``max_bytes`` is the size of the largest request. Port 0 selects a free port.

    Raises:
        ConfigurationError: The address cannot be bound, or a TLS file is unusable.
    """

    def __init__(
        self, app: RestApp, host: str, port: int, tls: ServerTls | None, limits: Limits, max_bytes: int
    ) -> None:
        context = tls_context(tls) if tls else None
        idle_s = limits.max_connection_idle_s

        class Limited(Connection):
            most = limits.max_connections
            longest_s = SILENCE_S + max_bytes / LEAST_BYTES_PER_S
            longest_life_s = limits.max_connection_age_s

        config = uvicorn.Config(
            app,
            http=Limited,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S if idle_s is None else math.ceil(idle_s),
        )
        config.load()
        config.ssl = context
        self._server = _Server(config, Limited)
        self._serving: Future[Any] | None = None
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        """The port that the server listens on."""
        address = join_address(host, self.port)
        self.url = f"{'https' if tls else 'http'}://{address}"
        """The address that the server listens on."""

    def start(self, begin: Begin) -> None:
        """Starts answering requests."""
        self._begin = begin
        self._serving = begin(self._server.serve([self._socket]))
        self._server.ready.result(_STARTING_S)

    def announce_end(self) -> None:
        """Makes each further response announce the end of its connection."""
        if self._is_serving:
            self._begin(self._server.announce_end())

    def stop(self, grace_s: float) -> None:
        """Accepts no more connections, and closes each once its request is answered or the grace is over.

        Returns at once; see ``wait``.
        """
        if self._is_serving:
            self._server.config.timeout_graceful_shutdown = max(1, math.ceil(grace_s))
            self._begin(self._server.stop_listening())
            self._server.should_exit = True

    @property
    def _is_serving(self) -> bool:
        return self._serving is not None and not self._serving.done()

    def wait(self, timeout_s: float) -> bool:
        """Waits until the server has stopped; returns whether it has."""
        try:
            if self._serving is not None:
                self._serving.result(timeout_s)
        except FutureTimeoutError:
            return False
        return True

    def close(self) -> None:
        """Frees the port; further calls have no effect."""
        self._socket.close()


class _Server(CheckingServer):
    """Signals when it has started, and stops listening before it closes its connections."""

    def __init__(self, config: uvicorn.Config, kind: type[Connection]) -> None:
        super().__init__(config)
        self._kind = kind  # of future connections
        self.ready: Future[None] = Future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set_result(None)

    async def announce_end(self) -> None:
        """Makes each further response announce the end of its connection."""
        self._kind.closes = True
        for connection in self.connections:
            connection.announce_end()

    async def stop_listening(self) -> None:
        """Stops accepting connections."""
        for listener in self.servers:
            listener.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the second of a name that is none, as one too long
        raise _cannot_listen(host, port, error) from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise _cannot_listen(host, port, error) from error
    return found


def _cannot_listen(host: str, port: int, error: Exception) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigurationError(
        f"cannot listen on {join_address(host, port)} for HTTP: {reason}; "
        "choose another --http_port, or 0 for a free one"
    )
