"""Detects the end of HTTP/1.1 responses as bytes arrive, parses their content, and classifies failures.

Failed requests are mapped to gRPC status codes, which the rest of the client handles.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import grpc

from inferometer.agent.protocol.status import ERROR_CLASS_KEY, code_of
from inferometer.agent.protocol.status import one_line as status_message
from inferometer.manifests.errors import one_line

_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_MAX_HEAD_BYTES = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*(?:\r|$)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*(?:\r|$)")
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*(?:\r|$)")
_CHUNK_SIZE = re.compile(rb"([0-9a-f]{1,15})[ \t]*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_EMPTY = {204, 304}


class NoHttpError(Exception):
    """The received data is not an HTTP/1.1 response; ``content`` is its beginning."""

    def __init__(self, content: bytes) -> None:
        super().__init__(f"not an HTTP/1.1 response: {one_line(content[:40], 100)}")
        self.content = content


class Incoming:
    """One response, while it arrives. Not thread-safe.

    It only detects the end, so that the time of a response does not depend on its content.
    """

    __slots__ = ("_chunks", "_head", "_left", "_parts", "_pending", "_whole", "arrived", "keeps_open")

    def __init__(self) -> None:
        self._pending = b""
        self._parts: list[bytes] = []
        self._head = b""
        self._left: int | None = None
        self._chunks: bytearray | None = None
        self._whole = 0
        self.arrived = 0
        """How many bytes of ``content`` have arrived, with those of a chunk that is not complete yet."""
        self.keeps_open = True
        """Whether the connection can be used again, once the response is complete."""

    def feed(self, data: bytes) -> bool:
        """Receives data; returns whether the response is complete.

        Raises:
            NoHttpError: The data is not an HTTP/1.1 response.
        """
        if not self._head:
            return self._feed_head(self._pending + data if self._pending else data)
        if self._chunks is not None:
            return self._feed_chunks(data)
        self._parts.append(data)
        self.arrived += len(data)
        if self._left is None:  # until the connection is closed
            return False
        return self._is_over(len(data))

    def end(self) -> bool:
        """Handles a connection closed by the server; returns whether that completes the response."""
        self.keeps_open = False
        return bool(self._head) and self._chunks is None and self._left is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has arrived, not even a part of the head."""
        return not (self._pending or self.arrived)

    @property
    def content(self) -> bytes:
        """The head and the body, in the form that ``Response.parse`` reads."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _feed_head(self, data: bytes) -> bool:
        end = data.find(_HEAD_END)
        if end < 0:
            if len(data) > _MAX_HEAD_BYTES or not (
                data.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(data)
            ):
                raise NoHttpError(data)
            self._pending = data
            return False
        self._pending = b""
        head = data[:end].lower()
        found = _STATUS.match(data)
        if found is None:
            raise NoHttpError(data)
        status, start = int(found[1]), end + len(_HEAD_END)
        if 100 <= status < 200:  # the response itself follows
            return len(data) > start and self._feed_head(data[start:])
        self._head = data[:start]
        self.keeps_open = _CLOSES.search(head) is None and data.startswith(b"HTTP/1.1")
        if _CHUNKED.search(head) is not None:
            self._parts.append(self._head)
            self._chunks = bytearray()
            self.arrived = self._whole = start
            return self._feed_chunks(data[start:])
        self._parts.append(data)
        self.arrived = len(data)
        length = _LENGTH.search(head)
        if length is None and status not in _EMPTY:
            return False
        self._left = int(length[1]) if length is not None else 0
        return self._is_over(len(data) - start)

    def _is_over(self, arrived: int) -> bool:
        assert self._left is not None  # noqa: S101 - the length is known
        self._left -= arrived
        if self._left < 0:  # something that was not asked for
            self.keeps_open = False
        return self._left <= 0

    def _feed_chunks(self, data: bytes) -> bool:
        chunks = self._chunks
        assert chunks is not None  # noqa: S101 - it comes in chunks
        chunks += data
        while (line_end := chunks.find(_LINE_END)) >= 0:
            size_of = _CHUNK_SIZE.fullmatch(chunks, 0, line_end)
            if size_of is None:
                raise NoHttpError(bytes(chunks))
            size, start = int(size_of[1], 16), line_end + len(_LINE_END)
            if not size:
                return chunks.find(_HEAD_END, line_end) >= 0  # after what trails the body
            after = start + size + len(_LINE_END)
            if len(chunks) < after:
                self.arrived = self._whole + min(len(chunks) - start, size)
                return False
            self._parts.append(bytes(chunks[start : start + size]))
            del chunks[:after]
            self.arrived = self._whole = self._whole + size
        return False


@dataclass(frozen=True, slots=True)
class Response:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview

    @classmethod
    def parse(cls, content: bytes) -> Response:
        """Parses the content of an ``Incoming``."""
        end = content.index(_HEAD_END)
        status, *lines = content[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return cls(int(status[9:12]), headers, memoryview(content)[end + len(_HEAD_END) :])


_Code = grpc.StatusCode
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_TLS_ALERT = b"\x15\x03"
_CLOSED_AT_ONCE = "failed to connect: the connection was closed"
_LOST = "the connection was closed"
_MAX_TEXT_BYTES = 4096


class HttpFailure(grpc.RpcError):
    """A failed request; ``http_status`` is the status of the response, None if there was none."""

    def __init__(self, code: grpc.StatusCode, details: str, http_status: int | None = None) -> None:
        super().__init__(details)
        self._code = code
        self._details = details
        self.http_status = http_status

    def code(self) -> grpc.StatusCode:
        """Returns the closest gRPC status code."""
        return self._code

    def details(self) -> str:
        """Returns the message of the server or of the operating system."""
        return self._details


def of_response(response: Response) -> HttpFailure:
    """Returns the failure for an unsuccessful response."""
    code = code_of(response.status, response.headers.get(ERROR_CLASS_KEY, ""))
    return HttpFailure(code, status_message(_text_of(response)), response.status)


def _text_of(response: Response) -> str:
    """Returns the message in the body: ``error``, or its ``message``; FastAPI's ``detail``; or plain text."""
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "refused"
    content = bytes(response.body[:_MAX_TEXT_BYTES]).decode("utf-8", "replace").strip()
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        is_page = "html" in response.headers.get("content-type", "")
        return f"{response.status} {reason}" if is_page or not content else content
    said = found.get("error", found.get("detail")) if isinstance(found, dict) else None
    said = said.get("message", said) if isinstance(said, dict) else said
    return str(said) if said else f"{response.status} {reason}"


def late() -> HttpFailure:
    """Returns the failure of a request that was not answered in time."""
    return HttpFailure(_Code.DEADLINE_EXCEEDED, "not answered in time")


def of_connecting(error: OSError | UnicodeError) -> HttpFailure:
    """Returns the failure of a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        details = f"CERTIFICATE_VERIFY_FAILED: {error.verify_message}"
        if "mismatch" in error.verify_message:
            details = "Hostname Verification Check failed"
    elif isinstance(error, ssl.SSLError):
        details = _of_tls(error)
    elif isinstance(error, ConnectionRefusedError):
        details = "connection refused"
    elif isinstance(error, socket.gaierror | UnicodeError):
        details = "name resolution failed"
    elif isinstance(error, TimeoutError):
        details = "timed out"
    elif isinstance(error, ConnectionError):
        details = _CLOSED_AT_ONCE
    else:
        details = error.strerror or str(error)
    return HttpFailure(_Code.UNAVAILABLE, details)


def of_exchange(error: Exception, *, is_first: bool) -> HttpFailure:
    """Returns the failure of a request; ``is_first`` says whether it was the first on its connection."""
    if isinstance(error, TimeoutError):
        return late()
    if isinstance(error, NoHttpError):
        is_tls = error.content.startswith(_TLS_ALERT)
        return HttpFailure(_Code.UNAVAILABLE, _CLOSED_AT_ONCE if is_tls else f"no http1: {error}")
    if isinstance(error, ssl.SSLError):
        return HttpFailure(_Code.UNAVAILABLE, _of_tls(error))
    return HttpFailure(_Code.UNAVAILABLE, _CLOSED_AT_ONCE if is_first else _LOST)


def lost() -> HttpFailure:
    """Returns the failure of a request whose connection was closed."""
    return HttpFailure(_Code.UNAVAILABLE, _LOST)


def _of_tls(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "WRONG_VERSION_NUMBER"
    # after a handshake in TLS 1.3, that is how a server asks for a certificate
    return _CLOSED_AT_ONCE if "ALERT" in reason or "EOF" in reason else f"handshake failed: {reason}"
