"""The HTTP server: uvicorn with httptools, on gRPC's event loop.

A connection holds the client's identity and limits how slowly the client may send and read.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from contextlib import suppress
from typing import Any, cast

import uvicorn

from inferometer.agent.protocol.status import HttpRequestError
from inferometer.agent.server.admission import Limits, bound, client_named, join_address
from inferometer.agent.server.calls import HttpCall
from inferometer.agent.server.rest.app import JOINED_BYTES, RestApp
from inferometer.agent.server.rest.http_connection import CheckingServer, HttpConnection
from inferometer.agent.server.tls import ServerTls, tls_context
from inferometer.manifests.errors import RequestCancelledError

SILENCE_S = 20.0
"""The longest pause that a client may make within the body of a request."""
LEAST_BYTES_PER_S = 64 * 1024
"""The minimum average rate at which a client may send a request, over ``SILENCE_S`` or longer."""
_CONTINUE = b"HTTP/1.1 100 "


class Connection(HttpConnection):
    """A connection; ``call`` is the call in progress. For use on the event loop.

    ``longest_s`` is the time within which the body of a request must arrive; a subclass sets it.
    """

    longest_s: float = SILENCE_S
    longest_life_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Stores the client's address and certificate names."""
        super().connection_made(transport)
        self.call: HttpCall | None = None
        self.peer = _peer(transport)
        self._joined = _JoinedHead(transport)
        self.transport = cast("asyncio.Transport", self._joined)
        self.app_state = {"connection": self}
        self._made_s = self._heard_s = self._receiving_since_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the call of a client that disconnected."""
        if self.call is not None:
            self.call.cancel(RequestCancelledError("the client has closed the connection"))
        self.app_state = {}
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receives data from the client."""
        self._heard_s = self.loop.time()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Called when the head of a request is complete."""
        self._receiving_since_s = self._heard_s
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Called when a response is complete."""
        self._joined.end()
        super().on_response_complete()

    def who(self) -> str:
        """The identity of the client; see ``client_of``."""
        secured = self.transport.get_extra_info("ssl_object")
        return client_named(_names(secured) if secured else (), self.peer)

    def check(self, now_s: float) -> None:
        """Closes the connection if a request does not arrive, or a response is not read, in time."""
        if self.flow.read_paused or self.call is None or not self.cycle.more_body:
            self._heard_s = now_s  # the client waits for the agent
        elif now_s - self._heard_s > SILENCE_S or now_s - self._receiving_since_s > self.longest_s:
            close = (("connection", "close"),)
            self.call.cancel(HttpRequestError(408, "the request did not arrive in time", close))
        if self.longest_life_s is not None and now_s - self._made_s > self.longest_life_s:
            self.shutdown()
        super().check(now_s)


class _JoinedHead:
    """A transport that writes the head of a response together with the start of its body.

    uvicorn writes them separately, so that a client would wake up twice for one small response.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._is_next = True

    def write(self, data: bytes | memoryview) -> None:
        if self._is_next and data[: len(_CONTINUE)] != _CONTINUE:
            self._is_next, self._head = False, bytes(data)
            return
        head, self._head = self._head, b""
        if head and len(data) <= JOINED_BYTES:
            data = b"".join((head, data))
        elif head:
            self._transport.write(head)
        self._transport.write(data)

    def end(self) -> None:
        """Marks the response as complete; the next write begins another one."""
        if self._head:
            self._transport.write(self._head)
        self._head, self._is_next = b"", True

    def close(self) -> None:
        """Closes the connection once all data is written."""
        self.end()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _peer(transport: asyncio.Transport) -> str:
    """Returns the client's address in gRPC's format."""
    address: Any = transport.get_extra_info("peername")
    if not address:
        return "unknown"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _names(secured: ssl.SSLObject) -> list[str]:
    """Returns the names in the client's certificate: the alternative names, or else the common name."""
    found: Any = secured.getpeercert() or {}
    names = [str(name) for _, name in found.get("subjectAltName", ())]
    common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    return names or common


Begin = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
"""Schedules work on the event loop from another thread."""
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_STARTING_S = 30.0


class HttpServer:
    """A server on an event loop, from ``start`` to ``stop``. Call its methods from other threads.

    ``max_bytes`` is the size of the largest accepted request. Port 0 selects a free port. ``shared`` is as in
    ``admission.bound``.

    Raises:
        ConfigurationError: The address cannot be bound, or a TLS file is unusable.
    """

    def __init__(
        self,
        app: RestApp,
        host: str,
        port: int,
        tls: ServerTls | None,
        limits: Limits,
        max_bytes: int,
        *,
        shared: bool = False,
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
        advice = "; choose another --http_port, or 0 for a free one"
        self._socket = bound(host, port, " for HTTP", advice, backlog=_BACKLOG, shared=shared)
        self._socket.setblocking(False)
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
        """Accepts no more connections, and closes each once its request is answered or the grace period ends.

        Returns at once; see ``wait``.
        """
        if self._is_serving:
            self._server.config.timeout_graceful_shutdown = max(1, math.ceil(grace_s))
            self._begin(self._server.stop_listening())

    @property
    def _is_serving(self) -> bool:
        return self._serving is not None and not self._serving.done()

    def wait(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` seconds until the server has stopped."""
        with suppress(FutureTimeoutError, CancelledError):  # the latter by the end of its event loop
            if self._serving is not None:
                self._serving.result(timeout_s)

    def close(self) -> None:
        """Frees the port; further calls have no effect."""
        self._socket.close()


class _Server(CheckingServer):
    """A server that signals when it has started, and stops listening before closing connections."""

    def __init__(self, config: uvicorn.Config, kind: type[Connection]) -> None:
        super().__init__(config)
        self._kind = kind  # of future connections
        self.ready: Future[None] = Future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set_result(None)

    async def announce_end(self) -> None:
        self._kind.closes = True
        for connection in self.connections:
            connection.announce_end()

    async def stop_listening(self) -> None:
        for listener in self.servers:
            for each in listener.sockets:
                asyncio.get_running_loop().remove_reader(each)
        await asyncio.sleep(0)  # in which accepted connections are set up; asyncio would drop them
        for listener in self.servers:
            listener.close()
        self.should_exit = True
