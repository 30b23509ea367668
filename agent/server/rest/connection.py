"""One connection of a client over HTTP: who it is, and whether it sends and reads in time."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inferometer.agent.server.rest.call import HttpCall
from inferometer.agent.server.rest.status import HttpRequestError
from inferometer.agent.server.security.client_limits import client_named
from inferometer.manifests.errors import RequestCancelledError

SILENCE_S = 20.0
"""How long a client may send nothing within a request, or before its first, or read nothing of a response."""
LEAST_BYTES_PER_S = 64 * 1024
"""How fast a client sends a request, on average over ``SILENCE_S`` or longer."""
_JOINED_BYTES = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 "
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
)


class Connection(HttpToolsProtocol):
    """A connection; ``call`` is the one that its client waits for. For the event loop.

    ``most`` is how many connections the server has at the most, ``longest_s`` how long a request may be on
    its way; both are set in a subclass.
    """

    most: int | None = None
    longest_s: float = SILENCE_S
    longest_life_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remembers who the client is."""
        super().connection_made(transport)
        self.call: HttpCall | None = None
        self.is_refused = self.most is not None and len(self.connections) > self.most
        self.peer = _peer(transport)
        self._joined = _JoinedHead(transport)
        self.transport = cast("asyncio.Transport", self._joined)
        self.app_state = {"connection": self}
        self._made_s = self._heard_s = self.loop.time()
        self._receiving_since_s: float | None = self._made_s
        self._unread_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the call of a client that has gone away."""
        if self.call is not None:
            self.call.cancel(RequestCancelledError("the client has closed the connection"))
        self.app_state = {}
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes what the client has sent."""
        self._heard_s = self.loop.time()
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._receiving_since_s = self._heard_s
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """A request has been received."""
        self._receiving_since_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A response has been written."""
        self._joined.end()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP."""
        content = json.dumps({"error": "the request is no HTTP/1.1"}).encode()
        self.transport.write(_BAD_REQUEST % (len(content), content))
        self.transport.close()

    def who(self) -> str:
        """Who the client is; see ``client_of``."""
        secured = self.transport.get_extra_info("ssl_object")
        return client_named(_names(secured) if secured else (), self.peer)

    def check(self, now_s: float) -> None:
        """Ends what takes too long: a request that does not arrive, a response that is not read.

        To be called every ``SILENCE_S`` or so.
        """
        if self.flow.read_paused or (self.call is not None and not self.cycle.more_body):
            self._heard_s = now_s  # it is the agent that lets the client wait
        elif self._is_late(now_s):
            if self.call is None:
                self.transport.close()
            else:
                close = (("connection", "close"),)
                self.call.cancel(HttpRequestError(408, "the request did not arrive in time", close))
            return
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes and unread_bytes == self._unread_bytes:
            self.transport.abort()
        self._unread_bytes = unread_bytes
        if self.longest_life_s is not None and now_s - self._made_s > self.longest_life_s:
            self.shutdown()

    def _is_late(self, now_s: float) -> bool:
        since_s = self._receiving_since_s
        return since_s is not None and (now_s - self._heard_s > SILENCE_S or now_s - since_s > self.longest_s)


class _JoinedHead:
    """A transport that writes the head of a response together with the beginning of its body.

    uvicorn writes them one after the other, and a client would wake up twice for one small response.
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
        """The response is complete; the next write begins another."""
        if self._head:
            self._transport.write(self._head)
        self._head, self._is_next = b"", True

    def close(self) -> None:
        """Closes the connection once everything is written."""
        self.end()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _peer(transport: asyncio.Transport) -> str:
    """The client's address, in gRPC's form."""
    address: Any = transport.get_extra_info("peername")
    if not address:
        return "unknown"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _names(secured: ssl.SSLObject) -> list[str]:
    """The names in the certificate that a client has shown: the alternative ones, or else the common one."""
    found: Any = secured.getpeercert() or {}
    names = [str(name) for _, name in found.get("subjectAltName", ())]
    common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    return names or common
