"""An HTTP connection of a client: the client's identity, and the limits on how slowly it sends and reads."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from inferometer.agent.server.rest.call import HttpCall
from inferometer.agent.server.rest.http_connection import HttpConnection
from inferometer.agent.server.rest.status import HttpRequestError
from inferometer.agent.server.security.client_limits import client_named
from inferometer.manifests.errors import RequestCancelledError

SILENCE_S = 20.0
"""The longest time for which a client may send nothing within the body of a request."""
LEAST_BYTES_PER_S = 64 * 1024
"""The lowest average rate at which a client may send a request, over ``SILENCE_S`` or longer."""
_JOINED_BYTES = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 "


class Connection(HttpConnection):
    """A connection; ``call`` is the call in progress. For use on the event loop.

    ``longest_s`` limits the time in which the body of a request must arrive; a subclass sets it.
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
        """Ends what takes too long: a request that does not arrive, a response that is not read."""
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
        """Writes the next part of a response."""
        if self._is_next and data[: len(_CONTINUE)] != _CONTINUE:
            self._is_next, self._head = False, bytes(data)
            return
        head, self._head = self._head, b""
        if head and len(data) <= _JOINED_BYTES:
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
