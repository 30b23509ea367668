"""The bodies of requests, received with a size limit and inflated, and of responses, compressed."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from inferometer.agent.server.rest.status import HttpRequestError
from inferometer.manifests.errors import InputError, RequestCancelledError

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's receive callable."""
_ALIGNMENT_BYTES = 16
_GZIP, _DEFLATE, _IDENTITY = "gzip", "deflate", "identity"
_WINDOW_BITS = {_GZIP: 31, "x-gzip": 31, _DEFLATE: 15}
_SMALLEST_BYTES = 1024
_SAMPLE_BYTES = 16 * 1024
_MOST_RATIO = 0.8
_FAST = 1


async def receive_body(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, head_bytes: int
) -> memoryview:
    """Returns the read-only body of a request; the part after ``head_bytes`` is aligned in memory.

    Raises:
        HttpRequestError: The body has more than ``most_bytes``.
        RequestCancelledError: The client has disconnected.
    """
    length = int(headers.get("content-length", 0))  # which the HTTP parser has checked
    if length > most_bytes:
        raise too_large(most_bytes)
    event = await _next(receive)
    content: bytes = event["body"]
    if not event.get("more_body"):
        if len(content) > most_bytes:
            raise too_large(most_bytes)
        if head_bytes % _ALIGNMENT_BYTES == 0 or head_bytes >= len(content):
            return memoryview(content)
    elif not length:  # in chunks
        pieces, length = [content], len(content)
        while event.get("more_body"):
            if length > most_bytes:
                raise too_large(most_bytes)
            event = await _next(receive)
            pieces.append(event["body"])
            length += len(event["body"])
        if length > most_bytes:
            raise too_large(most_bytes)
        content = b"".join(pieces)
    start = -head_bytes % _ALIGNMENT_BYTES
    buffer = memoryview(bytearray(start + max(length, len(content))))
    end = start + len(content)
    buffer[start:end] = content
    while event.get("more_body"):
        event = await _next(receive)
        content = event["body"]
        buffer[end : end + len(content)] = content
        end += len(content)
    return buffer[start:end].toreadonly()


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    event = await receive()
    if event["type"] != "http.request":
        raise RequestCancelledError("the client has closed the connection")
    return event


def too_large(most_bytes: int) -> HttpRequestError:
    """Returns the error for a body that is too large."""
    return HttpRequestError(
        413, f"the request has more than {most_bytes} bytes, the most that the agent accepts"
    )


def inflated(body: memoryview, encoding: str, most_bytes: int) -> memoryview:
    """Returns a compressed body, inflated.

    Raises:
        HttpRequestError: The body has more than ``most_bytes``, or the encoding is unknown.
        InputError: The body is corrupt or truncated.
    """
    window_bits = _WINDOW_BITS.get(encoding)
    if window_bits is None:
        known = f"{_GZIP}, {_DEFLATE}"
        raise HttpRequestError(
            415,
            f"content-encoding {encoding[:40]} is not offered; allowed: {known}",
            (("accept-encoding", known),),
        )
    found = zlib.decompressobj(window_bits)
    try:
        content = found.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise InputError(f"the body is no {encoding}: {error}") from error
    if len(content) > most_bytes:
        raise too_large(most_bytes)
    if not found.eof or found.unused_data:
        raise InputError(f"the body is no {encoding}: it is cut off, or something follows it")
    return memoryview(content)


def is_compressed(encoding: str) -> bool:
    """Returns whether a body with this ``content-encoding`` has to be inflated."""
    return encoding not in {"", _IDENTITY}


@lru_cache(maxsize=64)
def accepted_encoding(header: str) -> str | None:
    """Returns the encoding in which a client accepts a response, by its ``accept-encoding``, or None."""
    best, best_weight = None, 0.0
    for item in header.lower().split(","):
        name, _, parameter = item.strip().partition(";")
        name = _GZIP if name.strip() == "*" else name.strip()
        try:
            weight = float(parameter.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        if name in {_GZIP, _DEFLATE} and weight > best_weight:
            best, best_weight = name, weight
    return best


def worth_compressing(size_bytes: int) -> bool:
    """Returns whether a body is large enough to be compressed."""
    return size_bytes >= _SMALLEST_BYTES


def deflated(parts: Sequence[bytes | memoryview], encoding: str) -> bytes | None:
    """Returns a body compressed; None if compression hardly reduces it, as with most tensor elements.

    Of a large body, the start is tried first, so that little time is spent on incompressible data.
    """
    content = b"".join(parts)
    sample = memoryview(content)[len(content) // 2 :][:_SAMPLE_BYTES]
    if len(zlib.compress(sample, _FAST)) > _MOST_RATIO * len(sample):
        return None
    found = zlib.compressobj(_FAST, zlib.DEFLATED, _WINDOW_BITS[encoding])
    smaller = found.compress(content) + found.flush()
    return smaller if len(smaller) < len(content) else None
