"""The agent's methods: how a call reaches one, what the method sees of its call, and what surrounds it.

A method takes a request and its ``CallContext``, and returns a response or raises an error of the program. An
``async def`` method runs on the event loop and must not block it, a plain ``def`` runs in a thread, and an
async generator yields the responses of a stream. A method that takes a stream is given an async iterator.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from inferometer.agent.server.calls import (
    NOT_ADMITTED,
    NS_PER_S,
    CallContext,
    CallObserver,
    Calls,
    Metadata,
    finished,
)
from inferometer.agent.server.security.client_limits import client_of
from inferometer.agent.serving.observers import Call
from inferometer.manifests.errors import InputError

__all__ = [
    "UNKNOWN",
    "CallContext",
    "CallObserver",
    "Codec",
    "Dispatcher",
    "GrpcCall",
    "Method",
    "finished",
    "methods_of",
]

UNKNOWN = "unknown"
"""The name in metrics and logs of every method that the agent does not have: clients can make names up."""

_NO_DEADLINE_S = 10 * 365 * 24 * 3600.0
"""gRPC gives a call without a deadline one that is farther away."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Codec: TypeAlias = "tuple[Callable[[bytes], Any], Callable[[Any], bytes]]"
"""What reads a method's request, and what writes its response."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that the agent offers, at a path ``package.Service/Method``.

    ``behaviour`` is what it does; see the module. ``decode`` raises DecodeError for what is no request. The
    thread of a method ``aside`` is apart from those that predict: it answers however busy they are, and while
    the agent stops.
    """

    path: str
    behaviour: Callable[[Any, CallContext], Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    streams_requests: bool = False
    aside: bool = False

    def read(self, content: bytes) -> Any:
        """Reads a request.

        Raises:
            InputError: It is malformed. A deserializer of gRPC would answer INTERNAL, and in a stream would
                leave the call open for ever (seen in grpcio 1.85).
        """
        try:
            return self.decode(content)
        except DecodeError as error:
            raise InputError(f"the request of {self.path} is no message of its type") from error


def methods_of(
    service: ServiceDescriptor,
    servicer: object,
    codecs: Mapping[str, Codec] | None = None,
    aside: Collection[str] = (),
) -> list[Method]:
    """Returns the methods of a service that a servicer has, each under its name in snake case.

    ``codecs``, by a method's name, read and write messages in place of the protobuf library. The methods
    ``aside`` answer however busy the agent is, and while it stops.
    """
    found = []
    for method in service.methods:
        behaviour = getattr(servicer, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower(), None)
        if behaviour is None:
            continue
        decode, encode = (codecs or {}).get(method.name) or (
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
        path = f"{service.full_name}/{method.name}"
        found.append(Method(path, behaviour, decode, encode, method.client_streaming, method.name in aside))
    return found


class GrpcCall(CallContext):
    """A call of a gRPC client."""

    __slots__ = ("_context",)

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        record: Call,
        metadata: Metadata,
        threads: Executor,
    ) -> None:
        super().__init__(record, metadata, threads)
        self._context = context

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        super().end()
        self._context.set_trailing_metadata(tuple(self.trailing))

    async def send_status(self) -> None:
        """Sends the status of a call that has failed; gRPC sends that of any other by itself."""
        if self.failure is None:
            return
        try:
            await self._context.abort(self.failure.code, self.failure.message, tuple(self.trailing))
        except grpc.aio.AbortError as error:  # gRPC keeps it with the call, and raises it again by itself
            error.with_traceback(None)
        except grpc.aio.BaseError as error:
            raise asyncio.CancelledError from error

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline on a clock in nanoseconds; None where it has none."""
        remaining_s: float | None = self._context.time_remaining()  # None too, whatever grpc's types say
        if remaining_s is None or remaining_s > _NO_DEADLINE_S:
            return None
        return clock() + round(remaining_s * NS_PER_S)

    async def write(self, content: bytes) -> None:
        """Sends a response of a stream."""
        try:
            await self._context.write(content)
        except grpc.aio.BaseError as error:  # the client has gone away, which gRPC reports a moment later
            raise asyncio.CancelledError from error


class Dispatcher(grpc.GenericRpcHandler):
    """Finds the method of a call, and calls it within the limits, the errors and the observers of all.

    Messages that gRPC itself refuses, such as those over the limit of size, and calls of methods that do not
    exist reach no method and no observer. The secret is also checked of calls of methods that do not exist.

    ``calls`` is what surrounds the calls, also those of another door.
    """

    def __init__(self, methods: Iterable[Method], calls: Calls) -> None:
        self.calls = calls
        self._secret = calls.secret
        self._limits = calls.limits
        methods = list(methods)
        self._handlers: dict[str, _Handler] = {f"/{method.path}": self._handler(method) for method in methods}
        self._refusals: dict[str, _Handler] = {
            f"/{method.path}": self._refusal(method.path) for method in methods
        }
        self._unknown_refusal = self._refusal(UNKNOWN)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """Returns what answers a call; None where there is no such method. gRPC calls it."""
        path: str = handler_call_details.method
        if self._secret is not None and not self._secret.admits(
            path, handler_call_details.invocation_metadata
        ):
            return self._refusals.get(path, self._unknown_refusal)
        return self._handlers.get(path)

    def _handler(self, method: Method) -> _Handler:
        if inspect.isasyncgenfunction(method.behaviour):
            answer = partial(self._answer_stream, method)
            if method.streams_requests:
                return grpc.stream_stream_rpc_method_handler(answer)
            return grpc.unary_stream_rpc_method_handler(answer)
        is_async = inspect.iscoroutinefunction(method.behaviour)
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, method, is_async))

    def _refusal(self, path: str) -> _Handler:
        """Refuses a call without the secret; as that of a stream, it does not wait for a request."""

        async def refuse(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
            with self._observed(path, context, aside=True) as call:
                await self.calls.turn()
                call.fail(NOT_ADMITTED)
            await call.send_status()

        return grpc.stream_unary_rpc_method_handler(refuse)

    async def _answer(
        self, method: Method, is_async: bool, content: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes | None:
        response = None
        with self._observed(method.path, context, aside=method.aside) as call:
            await self.calls.turn()
            self.calls.admit(call, partial(client_of, context), aside=method.aside)
            request = method.read(content)
            if is_async:
                response = method.encode(await method.behaviour(request, call))
            else:
                response = method.encode(await call.in_thread(method.behaviour, request, call))
        await call.send_status()
        return response

    async def _answer_stream(
        self,
        method: Method,
        request: bytes | AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        with self._observed(method.path, context, aside=method.aside) as call:
            await self.calls.turn()
            self.calls.admit(call, partial(client_of, context), aside=method.aside)
            with self._limits.stream(client_of(context)) if self._limits else nullcontext():
                given: Any
                closing: AbstractAsyncContextManager[object] = nullcontext()
                if isinstance(request, bytes):
                    given = method.read(request)
                else:
                    given = self._requests(method, request, context)
                    closing = aclosing(given)
                async with closing, aclosing(method.behaviour(given, call)) as responses:
                    async for response in responses:
                        await call.write(method.encode(response))
        await call.send_status()

    async def _requests(
        self, method: Method, contents: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[Any, None]:
        """The requests of a stream, no faster than the client may send; the call counted as the first."""
        is_first = True
        # gRPC's generator has the latest message, and would be collected late: it is part of a cycle
        async with aclosing(cast("AsyncGenerator[bytes, None]", aiter(contents))) as received:
            async for content in received:
                if self._limits is not None and not is_first:
                    await self._limits.wait_for_turn(client_of(context))
                is_first = False
                yield method.read(content)

    def _observed(
        self, path: str, context: grpc.aio.ServicerContext[Any, Any], *, aside: bool
    ) -> AbstractContextManager[GrpcCall]:
        # its address is read now: gRPC frees the call before it is logged, and has none of one that left
        peer = context.peer() or "unknown"
        metadata: Any = context.invocation_metadata() or ()
        return self.calls.observed(path, metadata, peer, partial(GrpcCall, context), aside=aside)
