"""Keeping one client from taking all of an agent: its requests in a second, and its streams."""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from agent.server.client_identity import client_of
from agent.server.kept_handlers import KeptHandlers
from agent.server.limits import Limits
from agent.server.secret import HEALTH_SERVICE
from agent.server.status import ERROR_CLASS_KEY
from agent.server.token_bucket import TokenBuckets
from manifests.errors import RateLimitError, SessionLimitError

RETRY_KEY = "grpc-retry-pushback-ms"
"""The trailing metadata that gRPC has for "not before so many milliseconds"."""
_MS_PER_S = 1000
_CHECK = f"/{HEALTH_SERVICE}/Check"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ClientLimits(grpc.ServerInterceptor):
    """Refuses calls of a client that asks for more than its share. Thread-safe.

    Whether the agent is healthy can be asked at any rate. A stream counts as one request, and so does each
    message that the client sends over it after the first; those are not refused, but taken later.

    Args:
        limits: What a client may ask for.
    """

    def __init__(self, limits: Limits) -> None:
        rate = limits.max_client_rps
        self._buckets = TokenBuckets(rate, limits.client_burst or rate) if rate is not None else None
        self._max_streams = limits.max_client_streams
        self._lock = threading.Lock()
        self._streams: Counter[str] = Counter()
        self._handlers = KeptHandlers(lambda handler, _: self._limited(handler))

    @staticmethod
    def wanted(limits: Limits) -> bool:
        """Whether there is anything to keep."""
        return limits.max_client_rps is not None or limits.max_client_streams is not None

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], _Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Returns the call's handler, within the limits."""
        handler = continuation(handler_call_details)
        if handler is None or handler_call_details.method == _CHECK:
            return handler
        return self._handlers.around(handler, handler_call_details.method)

    def _limited(self, handler: _Handler) -> _Handler:
        kind, behaviour = _parts(handler)
        streams = handler.request_streaming or handler.response_streaming

        @functools.wraps(behaviour)  # with what tells gRPC in which thread it is to run
        def limited(request: Any, context: grpc.ServicerContext, *more: Any, **named: Any) -> Any:
            client = client_of(context)
            self._take_token(client, context)
            if streams:
                self._take_stream(client, context)
            if handler.request_streaming and self._buckets is not None:
                request = self._paced(request, client, context)
            return behaviour(request, context, *more, **named)

        return kind(limited, handler.request_deserializer, handler.response_serializer)

    def _take_token(self, client: str, context: grpc.ServicerContext) -> None:
        wait_s = self._buckets.take(client) if self._buckets is not None else 0.0
        if wait_s:
            wait_ms = math.ceil(wait_s * _MS_PER_S)
            context.set_trailing_metadata(
                (
                    *(context.trailing_metadata() or ()),
                    (ERROR_CLASS_KEY, RateLimitError.__name__),
                    (RETRY_KEY, str(wait_ms)),
                )
            )
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the agent takes no more requests of this client now; try again in {wait_ms} ms",
            )

    def _take_stream(self, client: str, context: grpc.ServicerContext) -> None:
        if self._max_streams is None:
            return
        with self._lock:
            full = self._streams[client] >= self._max_streams
            if not full:
                self._streams[client] += 1
        if full:
            context.set_trailing_metadata(
                (*(context.trailing_metadata() or ()), (ERROR_CLASS_KEY, SessionLimitError.__name__))
            )
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the agent serves this client its limit of {self._max_streams} streams; try again later",
            )
        if not context.add_callback(lambda: self._free_stream(client)):  # it is over already
            self._free_stream(client)

    def _free_stream(self, client: str) -> None:
        with self._lock:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]

    def _paced(self, requests: Iterator[Any], client: str, context: grpc.ServicerContext) -> Iterator[Any]:
        """The messages of a stream, no faster than the rate; the first one is paid for."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return
        for number, request in enumerate(requests):
            if number and self._buckets is not None and ended.wait(self._buckets.reserve(client)):
                return
            yield request


def _parts(handler: _Handler) -> tuple[Callable[..., _Handler], Callable[..., Any]]:
    """What makes a handler of the same kind, and what it does."""
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream  # type: ignore[return-value]  # one of four is there
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary  # type: ignore[return-value]  # as above
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream  # type: ignore[return-value]  # as above
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary  # type: ignore[return-value]  # as above
