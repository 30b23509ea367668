"""The HTTP server's ASGI application: finds the route of a request and calls the service's method.

Request bodies are received with a size limit and inflated; response bodies are compressed.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from inferometer.agent.open_inference.http_codec import (
    LONG_BYTES,
    InferRequest,
    Reply,
    Signatures,
    json_bytes,
    json_reply,
)
from inferometer.agent.protocol.status import NOT_ADMITTED as NOT_ADMITTED_STATUS
from inferometer.agent.protocol.status import RETRY_KEY, HttpRequestError, http_status
from inferometer.agent.server.admission import HostNames
from inferometer.agent.server.calls import (
    NOT_ADMITTED,
    TIMEOUT_HEADER,
    UNKNOWN,
    CallContext,
    Calls,
    HttpCall,
    Method,
)
from inferometer.agent.server.rest.openai import PREFIX, EventStream, error_object, event
from inferometer.agent.server.rest.routes import (
    INFER,
    OPEN_API,
    Received,
    Route,
    described_routes,
    find_route,
    head_length,
)
from inferometer.manifests.errors import AgentError, InputError, RequestCancelledError, one_line

_Result = TypeVar("_Result")
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's receive callable."""
_ALIGNMENT_BYTES = 16
_GZIP, _DEFLATE, _IDENTITY = "gzip", "deflate", "identity"
_WINDOW_BITS = {_GZIP: 31, "x-gzip": 31, _DEFLATE: 15}
_SMALLEST_BYTES = 1024  # of a body that is compressed
_SAMPLE_BYTES = 16 * 1024
_MOST_RATIO = 0.8
_FAST_LEVEL = 1


async def receive_body(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, head_bytes: int
) -> memoryview:
    """Returns the read-only body of a request; the part after ``head_bytes`` is aligned in memory.

    Raises:
        HttpRequestError: The body is larger than ``most_bytes``.
        RequestCancelledError: The client has disconnected.
    """
    length = int(headers.get("content-length", 0))  # which the HTTP parser has checked
    if length > most_bytes:
        raise too_large(most_bytes)
    event = await _next_part(receive)
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
            event = await _next_part(receive)
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
        event = await _next_part(receive)
        content = event["body"]
        buffer[end : end + len(content)] = content
        end += len(content)
    return buffer[start:end].toreadonly()


async def _next_part(receive: Receive) -> MutableMapping[str, Any]:
    event = await receive()
    if event["type"] != "http.request":
        raise RequestCancelledError("the client has closed the connection")
    return event


def too_large(most_bytes: int) -> HttpRequestError:
    """Returns the error for a body that is too large."""
    return HttpRequestError(
        413, f"the request has more than {most_bytes} bytes, the maximum that the agent accepts"
    )


def inflated(body: memoryview, encoding: str, most_bytes: int) -> memoryview:
    """Returns the inflated content of a compressed body.

    Raises:
        HttpRequestError: The inflated body is larger than ``most_bytes``, or the encoding is unknown.
        InputError: The body is corrupt or truncated.
    """
    window_bits = _WINDOW_BITS.get(encoding)
    if window_bits is None:
        known = f"{_GZIP}, {_DEFLATE}"
        raise HttpRequestError(
            415,
            f"content-encoding {encoding[:40]} is not supported; allowed: {known}",
            (("accept-encoding", known),),
        )
    found = zlib.decompressobj(window_bits)
    try:
        content = found.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise InputError(f"the body is not {encoding}: {error}") from error
    if len(content) > most_bytes:
        raise too_large(most_bytes)
    if not found.eof or found.unused_data:
        raise InputError(f"the body is not {encoding}: it is cut off, or something follows it")
    return memoryview(content)


@lru_cache(maxsize=64)
def accepted_encoding(header: str) -> str | None:
    """Returns a response encoding that the client's ``accept-encoding`` allows, or None."""
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


def deflated(parts: Sequence[bytes | memoryview], encoding: str) -> bytes | None:
    """Returns the compressed body; None if compression hardly reduces it, as with most tensor elements.

    Compresses the start of a large body first, to spend little time on incompressible data.
    """
    content = b"".join(parts)
    sample = memoryview(content)[len(content) // 2 :][:_SAMPLE_BYTES]
    if len(zlib.compress(sample, _FAST_LEVEL)) > _MOST_RATIO * len(sample):
        return None
    found = zlib.compressobj(_FAST_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    smaller = found.compress(content) + found.flush()
    return smaller if len(smaller) < len(content) else None


Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
"""ASGI's send callable."""
JOINED_BYTES = 64 * 1024  # parts up to this size are joined into one write
_SMALL_BYTES = 1024
"""Compressed bodies below this size are inflated at once, as they grow at most a thousandfold."""
_CHALLENGE = ("www-authenticate", "Bearer")


class Client(Protocol):
    """The connection of a request; ``call`` is the call in progress on it."""

    peer: str
    call: HttpCall | None
    is_refused: bool

    def who(self) -> str:
        """The identity of the client; see ``client_of``."""


class RestApp:
    """Answers HTTP requests with the methods of the service that gRPC clients call. For one event loop.

    ``signature`` returns the inputs of a model by its name and version. ``max_bytes`` limits the size of a
    request before and after inflation. ``names`` are the host names that the agent answers to.
    """

    def __init__(
        self, calls: Calls, methods: Iterable[Method], signature: Signatures, max_bytes: int, names: HostNames
    ) -> None:
        self._calls = calls
        self._names = names
        self._methods = {method.path.rpartition("/")[2]: method for method in methods}
        self._methods[OPEN_API] = Method(OPEN_API, _describe, bytes, bytes, aside=True)
        self._is_async = {
            name: inspect.iscoroutinefunction(each.behaviour) for name, each in self._methods.items()
        }
        self._signature = signature
        self._max_bytes = max_bytes

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request; see the ASGI specification."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        client: Client = scope["state"]["connection"]
        found: tuple[Route, Mapping[str, str]] | HttpRequestError
        try:
            found = route, _ = find_route(scope["method"], scope["raw_path"].decode("latin-1"))
            title, method = route.title, route.method
        except HttpRequestError as error:
            found, title, method = error, UNKNOWN, OPEN_API
        reply = None
        with self._calls.observed(
            title, headers, client.peer, HttpCall, aside=self._methods[method].aside, name=method
        ) as call:
            client.call = call
            call.scheme, call.path, call.port = scope["scheme"], scope["path"], scope["server"][1]
            try:
                await self._calls.turn()
                reply = await self._answer(found, dict(headers), client, receive, call)
                if isinstance(reply, EventStream):
                    await _stream(send, reply, call)
            except asyncio.CancelledError as error:
                raise call.reason or AgentError("the agent has stopped") from error
            finally:
                client.call = None
        if isinstance(reply, EventStream):
            await send({"type": "http.response.body", "body": event(_error(call)) if call.failure else b""})
            return
        if reply is None:
            reply = _failure(call)
        try:
            await _send(send, reply, call.trailing)
        except asyncio.CancelledError:
            if call.reason is None:  # otherwise the response comes too late
                raise

    async def _answer(
        self,
        found: tuple[Route, Mapping[str, str]] | HttpRequestError,
        headers: Mapping[str, str],
        client: Client,
        receive: Receive,
        call: HttpCall,
    ) -> Reply | EventStream | None:
        is_open = not isinstance(found, HttpRequestError) and found[0].is_open
        if not is_open:
            if self._calls.secret is not None and not self._calls.secret.admits("", call.metadata):
                call.fail(NOT_ADMITTED)
                return None
            self._check_site(headers)
        if client.is_refused:
            raise AgentError("the agent has reached its limit of connections; try again later")
        if isinstance(found, HttpRequestError):
            raise found
        route, names = found
        method = self._methods[route.method]
        if not is_open:
            self._calls.admit(call, client.who, aside=method.aside)
        if TIMEOUT_HEADER in headers:
            call.limit_time(headers[TIMEOUT_HEADER])
        received = await self._receive(route, names, headers, receive, call)
        request = await _ran(call, route.read, received, is_long=received.head_bytes > LONG_BYTES)
        given = request.call if isinstance(request, InferRequest) else request
        if self._is_async[route.method]:
            answer = await method.behaviour(given, call)
        else:
            answer = await call.in_thread(method.behaviour, given, call)
        is_long = isinstance(request, InferRequest) and json_bytes(answer, request) > LONG_BYTES
        reply = await _ran(call, route.write, answer, request, is_long=is_long)
        if isinstance(reply, EventStream):
            return reply
        return await self._compressed(reply, headers, call)

    def _check_site(self, headers: Mapping[str, str]) -> None:
        """Raises HttpRequestError for a request that a browser sends from a page of another site."""
        host = headers.get("host")
        if not self._names.admits(host):
            raise HttpRequestError(
                421,
                f'the agent does not answer to the name "{one_line(host, 80)}"; use its IP address, or serve '
                "it with --allowed_hosts",
            )
        if not self._names.admits_origin(headers.get("origin"), host):
            raise HttpRequestError(403, "the agent does not answer requests from pages of other hosts")

    async def _receive(
        self,
        route: Route,
        names: Mapping[str, str],
        headers: Mapping[str, str],
        receive: Receive,
        call: HttpCall,
    ) -> Received:
        head_bytes = head_length(headers) if route.method == INFER else None
        encoding = headers.get("content-encoding", "").strip().lower()
        body = await receive_body(receive, headers, self._max_bytes, head_bytes or 0)
        if encoding not in {"", _IDENTITY}:
            is_long = len(body) >= _SMALL_BYTES
            body = await _ran(call, inflated, body, encoding, self._max_bytes, is_long=is_long)
        return Received(names, body, len(body) if head_bytes is None else head_bytes, self._signature)

    async def _compressed(self, reply: Reply, headers: Mapping[str, str], call: HttpCall) -> Reply:
        accepted = headers.get("accept-encoding")
        encoding = accepted_encoding(accepted) if accepted else None
        size = sum(map(len, reply.parts))
        if encoding is None or size < _SMALLEST_BYTES:
            return reply
        content = await _ran(call, deflated, reply.parts, encoding, is_long=size >= LONG_BYTES)
        if content is None:
            return reply
        more = ("content-encoding", encoding), ("vary", "accept-encoding")
        return replace(reply, parts=(content,), headers=(*reply.headers, *more))


async def _ran(call: HttpCall, work: Callable[..., _Result], *arguments: Any, is_long: bool) -> _Result:
    """Runs ``work`` in a thread if it takes long."""
    return await call.in_thread(work, *arguments) if is_long else work(*arguments)


async def _describe(_: object, __: CallContext) -> dict[str, Any]:
    return described_routes()


def _error(call: HttpCall, status: int = 500) -> dict[str, Any]:
    """Returns the error of a failed call in the form of the protocol that the client speaks."""
    assert call.failure is not None  # noqa: S101 - as the caller has it
    if call.path.startswith(PREFIX):
        return error_object(status, call.failure.message, call.error)
    return {"error": call.failure.message}


def _failure(call: HttpCall) -> Reply:
    assert call.failure is not None  # noqa: S101 - a call without an answer has failed
    headers: tuple[tuple[str, str], ...] = (_CHALLENGE,)
    status = NOT_ADMITTED_STATUS
    if call.error is not None:
        status = http_status(call.error)
        headers = call.error.headers if isinstance(call.error, HttpRequestError) else ()
    reply = json_reply(_error(call, status), status)
    waits_ms = [int(value) for key, value in call.trailing if key == RETRY_KEY]
    retry = tuple(("retry-after", str(math.ceil(wait_ms / 1000))) for wait_ms in waits_ms)
    return Reply(reply.parts, status, reply.content_type, (*headers, *retry))


async def _stream(send: Send, stream: EventStream, call: HttpCall) -> None:
    """Sends the events of a stream, each at once, without ending the response."""
    headers = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-store")]
    headers += call.trailing
    encoded = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
    with stream.under_way:
        call.sent_status = 200
        await send({"type": "http.response.start", "status": call.sent_status, "headers": encoded})
        async for each in stream.events:
            await send({"type": "http.response.body", "body": each, "more_body": True})


async def _send(send: Send, reply: Reply, trailing: Iterable[tuple[str, str]]) -> None:
    size = sum(map(len, reply.parts))
    headers = [(b"content-length", b"%d" % size)]
    if size:
        headers.append((b"content-type", reply.content_type.encode("latin-1")))
    headers += [
        (key.encode("latin-1"), value.encode("latin-1")) for key, value in (*reply.headers, *trailing)
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    parts = reply.parts if size > JOINED_BYTES else [b"".join(reply.parts)]
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1] if parts else b""})
