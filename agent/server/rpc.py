"""What stands around every method of the agent's own services: reading the request, and answering errors.

A servicer's method takes a request, returns an answer or yields answers, and raises the program's errors. The
answer is written to bytes here rather than by gRPC, which would give an error in that no message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from agent.server.marks import in_steps
from agent.server.status import answered
from agent.server.steps import Steps
from manifests.errors import InputError

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class _Malformed:
    """Stands for a request that could not be read; gRPC itself would answer it as a fault of the agent."""


@dataclass(frozen=True, slots=True)
class Methods:
    """Makes the handlers of one service.

    Attributes:
        service: Its full name.
    """

    service: str

    def unary(
        self,
        name: str,
        behaviour: Callable[[_Request, grpc.ServicerContext], _Response],
        decode: Callable[[bytes], _Request],
        encode: Callable[[_Response], bytes],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method of one request and one answer."""

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            if not context.is_active():  # the client has gone while the call waited for a thread
                context.abort(grpc.StatusCode.CANCELLED, "cancelled")
            with answered(context, name):
                return encode(behaviour(self._checked(name, request), context))

        return grpc.unary_unary_rpc_method_handler(answer, _tolerant(decode))

    def in_steps(
        self,
        name: str,
        behaviour: Callable[[_Request, grpc.ServicerContext], Steps[_Response]],
        decode: Callable[[bytes], _Request],
        encode: Callable[[_Response], bytes],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method of one request and one answer whose behaviour is in steps."""

        @in_steps
        def answer(request: Any, context: grpc.ServicerContext) -> Steps[bytes]:
            with answered(context, name):
                return encode((yield from behaviour(self._checked(name, request), context)))

        return grpc.unary_unary_rpc_method_handler(answer, _tolerant(decode))

    def server_stream(
        self,
        name: str,
        behaviour: Callable[[_Request, grpc.ServicerContext], Generator[_Response, None, None]],
        decode: Callable[[bytes], _Request],
        encode: Callable[[_Response], bytes],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method of one request and many answers."""

        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with (
                answered(context, name),
                closing(behaviour(self._checked(name, request), context)) as responses,
            ):
                yield from map(encode, responses)

        return grpc.unary_stream_rpc_method_handler(answer, _tolerant(decode))

    def both_stream(
        self,
        name: str,
        behaviour: Callable[[Iterator[_Request], grpc.ServicerContext], Generator[_Response, None, None]],
        decode: Callable[[bytes], _Request],
        encode: Callable[[_Response], bytes],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method of many requests and many answers."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            checked = (self._checked(name, request) for request in requests)
            with answered(context, name), closing(behaviour(checked, context)) as responses:
                yield from map(encode, responses)

        return grpc.stream_stream_rpc_method_handler(answer, _tolerant(decode))

    def _checked(self, name: str, request: Any) -> Any:
        if isinstance(request, _Malformed):
            raise InputError(f"the request of {self.service}/{name} is no message of its type")
        return request


def _tolerant(decode: Callable[[bytes], _Request]) -> Callable[[bytes], _Request | _Malformed]:
    def read(content: bytes) -> _Request | _Malformed:
        try:
            return decode(content)
        except DecodeError:
            return _Malformed()

    return read
