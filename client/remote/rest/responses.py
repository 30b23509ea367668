"""HTTP/1.1 responses: detects the end of a response as bytes arrive, and parses the content later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
        super().__init__(f"no response of HTTP/1.1: {one_line(content[:40], 100)}")
        self.content = content


class Incoming:
    """One response, while it arrives. Not thread-safe.

    It only detects the end, so that the time of a response does not depend on its content.
    """

    __slots__ = ("_chunks", "_head", "_left", "_parts", "_pending", "keeps_open")

    def __init__(self) -> None:
        self._pending = b""
        self._parts: list[bytes] = []
        self._head = b""
        self._left: int | None = None
        self._chunks: bytearray | None = None
        self.keeps_open = True
        """Whether the connection can be used again, once the response is complete."""

    @property
    def has_begun(self) -> bool:
        """Whether any part of the response has arrived."""
        return bool(self._pending or self._parts or self._head)

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
        if self._left is None:  # until the connection is closed
            return False
        return self._is_over(len(data))

    def end(self) -> bool:
        """Handles a connection closed by the server; returns whether that completes the response."""
        self.keeps_open = False
        return bool(self._head) and self._chunks is None and self._left is None

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
            return self._feed_chunks(data[start:])
        self._parts.append(data)
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
                return False
            self._parts.append(bytes(chunks[start : start + size]))
            del chunks[:after]
        return False


@dataclass(frozen=True, slots=True)
class Response:
    """A response; names of headers are lower case."""

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
