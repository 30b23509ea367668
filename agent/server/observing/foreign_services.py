"""The services that gRPC brings along: a request that cannot be read is answered as it is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import grpc
from google.protobuf.message import DecodeError

FOREIGN = "grpc."
"""What the names of their methods begin with."""


class _Malformed:
    """Stands for a request that could not be read."""


def tolerant(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns a handler that refuses what is no message of its type with INVALID_ARGUMENT.

    gRPC calls it INTERNAL. In a stream it then answers twice, and waits for ever for the second answer to
    leave: such a call keeps its memory, and the server from stopping (seen in grpcio 1.85).

    Args:
        handler: One of a service that gRPC brings along.
        method: As ``package.Service/Method``.
    """
    if handler.request_deserializer is None:
        return handler  # type: ignore[no-any-return]  # it came as Any
    reading = _tolerant(handler.request_deserializer)
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(
            _checking_one(handler.unary_unary, method), reading, handler.response_serializer
        )
    if handler.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(
            _checking_each(handler.stream_stream, method), reading, handler.response_serializer
        )
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(
            _checking_one(handler.unary_stream, method), reading, handler.response_serializer
        )
    return handler  # type: ignore[no-any-return]  # gRPC brings none of this kind


def _tolerant(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        try:
            return decode(content)
        except DecodeError:
            return _Malformed()

    return read


def _checking_one(behaviour: Callable[..., Any], method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
    @wraps(behaviour)  # gRPC finds in its attributes how it is to be called, as that of Watch
    def answer(request: Any, context: grpc.ServicerContext, *more: Any, **named: Any) -> Any:
        return behaviour(_checked(request, method, context), context, *more, **named)

    return answer


def _checking_each(
    behaviour: Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]], method: str
) -> Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]:
    def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        return behaviour((_checked(request, method, context) for request in requests), context)

    return answer


def _checked(request: Any, method: str, context: grpc.ServicerContext) -> Any:
    if isinstance(request, _Malformed):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request of {method} is no message of its type")
    return request
