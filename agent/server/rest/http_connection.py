"""An HTTP connection with limits for all clients, used by the agent's HTTP server and the web page.

All limits apply before the client is identified: nothing here reads a secret.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from http import HTTPStatus
from typing import NoReturn

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_LINE_BYTES = 8 * 1024
"""The maximum size of a line: the URL, a header, a trailer, or the size of a chunk with its extension."""
MAX_HEADERS = 100
"""The maximum number of headers of a request, including its trailers."""
MAX_HEAD_BYTES = 64 * 1024
"""The maximum size of all headers and trailers together."""
HEAD_S = 20.0
"""How long a client may take to send a head, or to complete a request that is already answered."""
_LAST_HEAD_S = 2.0  # seconds until the connection closes
_CHECKS = 4  # checks within the time for a head
_PIECE_BYTES = 4 * 1024  # how far an unfinished line may exceed its limit
_SEPARATORS_BYTES = 4  # bytes of a header besides name and value: colon, space and line end
_ONCE = frozenset(
    {
        *(b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding"),
        *(b"content-type", b"content-encoding", b"grpc-timeout", b"inference-header-content-length"),
    }
)
_AUTHORITY = re.compile(rb"(\[[0-9a-z:.%_~-]+\]|[0-9a-z._~%-]*)(:[0-9]{0,5})?", re.IGNORECASE)
_REFUSAL = (
    "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}"
)
Headers = list[tuple[bytes, bytes]]


class _RefusedError(Exception):
    """Stops the parser from within a callback."""


class _Flow(FlowControl):
    """Keeps reading paused while bytes are held; uvicorn alone would resume it after each response."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """A connection that rejects heads over the limits above and closes when its client is too slow.

    uvicorn and llhttp have no limits of their own: llhttp accumulates a header until it ends, and appends
    trailers to the headers. Bytes are therefore passed to the parser in pieces, and not while a pipelined
    request waits. For use on the event loop.

    Up to ``most`` connections are answered; further ones are refused, and beyond twice as many they are
    closed at once. ``closes`` says whether the connection ends with its next response. A subclass sets both.
    """

    most: int | None = None
    closes = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts waiting for a request."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self.is_refused = self.most is not None and len(self.connections) > self.most
        self.closes = self.closes or self.is_refused
        self._owes_since_s: float | None = self.loop.time()  # what the client still has to complete
        self._is_received = True
        self._has_head = self._is_over = False
        self._refusal = (HTTPStatus.BAD_REQUEST, "the request is not HTTP/1.1")
        self._unread_bytes = 0
        self._held = b""
        self._line_bytes = self._head_bytes = self._header_count = self._body_left = 0
        if self.most is not None and len(self.connections) > 2 * self.most:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receives data from the client."""
        if self._owes_since_s is None and self._is_received:
            self._owes_since_s = self.loop.time()
        self._held += data
        self._parse()

    @property
    def _may_parse(self) -> bool:
        return not (self._is_over or self.pipeline or self.transport.is_closing())

    def _parse(self) -> None:
        """Passes the held bytes to the parser until a pipelined request has to wait."""
        held, self._held = memoryview(self._held), b""
        while held and self._may_parse:
            piece = held[: max(_PIECE_BYTES, self._body_left)]
            held = held[len(piece) :]
            self._line_bytes += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]
            if self._line_bytes > MAX_LINE_BYTES and self._may_parse:
                self._refusal = _too_large("a line", MAX_LINE_BYTES, "bytes")
                self.send_400_response("")
        if self._is_over or self.transport.is_closing():
            return
        self._held = bytes(held)
        self._flow.is_held = bool(held)
        if held:
            self._flow.pause_reading()
        elif not self.pipeline:
            self._flow.resume_reading()

    def on_message_begin(self) -> None:
        """Called when a request begins."""
        super().on_message_begin()
        self._owes_since_s = self.loop.time()
        self._is_received = self._has_head = False
        self._head_bytes = self._header_count = 0

    def on_url(self, url: bytes) -> None:
        """Receives the next part of the request's URL."""
        super().on_url(url)
        if len(self.url) > MAX_LINE_BYTES:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL has more than {MAX_LINE_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receives a header, or a trailer, which counts towards the limits and is otherwise ignored."""
        size = len(name) + len(value) + _SEPARATORS_BYTES
        self._line_bytes = 0
        self._head_bytes += size
        self._header_count += 1
        if size > MAX_LINE_BYTES:
            self._refuse(*_too_large("a header", MAX_LINE_BYTES, "bytes"))
        if self._header_count > MAX_HEADERS:
            self._refuse(*_too_large("the request", MAX_HEADERS, "headers"))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(*_too_large("the request", MAX_HEAD_BYTES, "bytes of headers"))
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called when a head is complete; the request is answered, or waits for those before it."""
        self._line_bytes = 0
        self._has_head = True
        self._owes_since_s = None
        if fault := _head_fault(self.parser.get_http_version(), self.url, self.headers):
            self._refuse(HTTPStatus.BAD_REQUEST, fault)
        self._body_left = int(dict(self.headers).get(b"content-length", b"0"))
        previous = self.cycle
        super().on_headers_complete()
        if self.closes or self.parser.should_upgrade():
            self.cycle.keep_alive = False
            if self.pipeline and not previous.response_started:
                previous.keep_alive = True  # another request follows, so it is no longer the last

    def on_chunk_header(self) -> None:
        """Called when the size of a chunk is complete."""
        self._line_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Receives the next part of a body."""
        self._line_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called when a request is complete."""
        self._line_bytes = self._body_left = 0
        self._is_received = True
        self._owes_since_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called when a response is complete; the next pipelined request is answered."""
        if not self._is_received:
            self._owes_since_s = self.loop.time()
        super().on_response_complete()
        self._parse()

    def _refuse(self, status: HTTPStatus, message: str) -> NoReturn:
        """Closes the connection from within a parser callback; see ``send_400_response``."""
        self._refusal = status, message
        raise _RefusedError(message)

    def send_400_response(self, msg: str) -> None:
        """Rejects bytes that are not HTTP or exceed a limit, and closes after answering earlier requests."""
        if self.is_answering and (self._is_received or not self._has_head):
            self._is_over = True
            self.cycle.keep_alive = False
            return
        status, message = self._refusal
        if not (self.is_answering and self.cycle.response_started):
            content = json.dumps({"error": message})
            refusal = _REFUSAL.format(int(status), status.phrase, len(content), content)
            self.transport.write(refusal.encode())
        self.transport.close()

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def announce_end(self) -> None:
        """Makes the next response, or the one to the request in progress, announce that it is the last."""
        self.closes = True
        if self.is_answering and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Closes the connection once the request that is in progress or arriving is answered."""
        self.announce_end()
        if self.is_answering:
            self.cycle.keep_alive = False
        elif self._is_received:
            self.transport.close()
        else:
            self.loop.call_later(_LAST_HEAD_S, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        if not self.is_answering:
            self.transport.close()

    def check(self, now_s: float) -> None:
        """Closes the connection of a client that is too slow to send a head or to read a response."""
        if self.is_answering:
            if self._owes_since_s is not None:
                self._owes_since_s = now_s  # the client waits for the agent
        elif self._owes_since_s is not None and now_s - self._owes_since_s > HEAD_S:
            self.transport.close()
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes and unread_bytes == self._unread_bytes:
            self.transport.abort()
        self._unread_bytes = unread_bytes


class CheckingServer(uvicorn.Server):
    """A server that closes the connections of slow clients."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until ``should_exit`` is set, then closes the connections; aborts those that outlast it."""
        checking = asyncio.create_task(self._check_clients())
        try:
            await super().serve(sockets)
        finally:
            checking.cancel()
            try:
                if self.server_state.tasks:  # cancelled ones still tell their clients
                    await asyncio.wait(self.server_state.tasks, timeout=_LAST_HEAD_S)
            finally:  # although this task is cancelled too
                for connection in self.connections:
                    connection.transport.abort()

    @property
    def connections(self) -> list[HttpConnection]:
        """Returns the open connections."""
        return [each for each in self.server_state.connections if isinstance(each, HttpConnection)]

    async def _check_clients(self) -> None:
        while True:
            await asyncio.sleep(HEAD_S / _CHECKS)
            now_s = asyncio.get_running_loop().time()
            for connection in self.connections:
                connection.check(now_s)


def _too_large(what: str, most: int, unit: str) -> tuple[HTTPStatus, str]:
    return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{what} has more than {most} {unit}"


def _head_fault(version: str, url: bytes, headers: Headers) -> str | None:
    """Returns why two parsers could interpret a head differently; None if they cannot.

    RFC 9112, 3.2 requires exactly one ``Host`` header, which must match the host of an absolute URL.
    """
    names = [name for name, _ in headers if name in _ONCE]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        return f"the request has the header {twice.decode()} more than once"
    found = dict(headers)
    coding = found.get(b"transfer-encoding")
    if coding is not None and (coding.strip().lower() != b"chunked" or version == "1.0"):
        return "the request has a transfer-encoding other than chunked in HTTP/1.1"
    host = found.get(b"host")
    if host is None and version != "1.0":
        return "the request has no Host header"
    if host is not None and not _AUTHORITY.fullmatch(host := host.strip()):
        return "the Host header is not a name or address with a port"
    if url.startswith(b"/"):
        return None
    scheme, _, rest = url.partition(b"://")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    if _origin(scheme, authority) != _origin(scheme, host or b""):
        return "the URL and the Host header name different hosts"
    return None


def _origin(scheme: bytes, authority: bytes) -> tuple[bytes, bytes]:
    name, port = authority, b""
    if found := re.fullmatch(rb"(.*?)(?::([0-9]*))?", authority):
        name, port = found[1], found[2] or b""
    return name.lower(), port or (b"443" if scheme.lower() == b"https" else b"80")
