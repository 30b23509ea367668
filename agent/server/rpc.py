"""The agent's methods: how a call reaches one, what the method sees of its call, and what surrounds it.

A method takes a request and its ``CallContext``, and returns a response or raises an error of the program. An
``async def`` method runs on the event loop and must not block it, a plain ``def`` runs in a thread, and an
async generator yields the responses of a stream. A method that takes a stream is given an async iterator.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from inferometer.agent.protocol.metadata import TRACEPARENT_KEY
from inferometer.agent.protocol.status import ERROR_CLASS_KEY, status_of
from inferometer.agent.server.security.client_limits import ClientLimits, client_of
from inferometer.agent.server.security.secret import SecretCheck
from inferometer.agent.serving.observers import REQUEST_ID_KEY, Call, RequestIds, enter_call
from inferometer.agent.tracing.recorder import TraceContext
from inferometer.manifests.errors import AgentError, ConfigurationError, InputError

UNKNOWN = "unknown"
"""The name in metrics and logs of every method that the agent does not have: clients can make names up."""

_NS_PER_S = 1_000_000_000
_NO_DEADLINE_S = 10 * 365 * 24 * 3600.0
"""gRPC gives a call without a deadline one that is farther away."""
_Result = TypeVar("_Result")
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


class CallContext:
    """What a method sees of its call. ``is_active`` is thread-safe, the rest is for the event loop."""

    __slots__ = ("_active", "_context", "_message", "_threads", "code", "metadata", "record", "trailing")

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        record: Call,
        metadata: Iterable[tuple[str, str | bytes]],
        threads: Executor,
    ) -> None:
        self._context = context
        self._threads = threads
        self._active = True
        self._message: str | None = None
        self.code = grpc.StatusCode.OK
        self.record = record
        self.metadata = metadata
        self.trailing = [(REQUEST_ID_KEY, record.request_id)]
        """What goes to the client with the status."""

    def is_active(self) -> bool:
        """Whether the call is neither answered nor cancelled."""
        return self._active

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        if self.code is grpc.StatusCode.OK and not self._active:
            self.code = grpc.StatusCode.CANCELLED
        self._active = False
        self._context.set_trailing_metadata(tuple(self.trailing))

    def fail(self, code: grpc.StatusCode, message: str) -> None:
        """Sets the status of a call that has no answer; see ``send_status``."""
        self.code, self._message = code, message

    async def send_status(self) -> None:
        """Sends the status of a call that has failed; gRPC sends that of any other by itself."""
        if self._message is None:
            return
        try:
            await self._context.abort(self.code, self._message, tuple(self.trailing))
        except grpc.aio.AbortError as error:  # gRPC keeps it with the call, and raises it again by itself
            error.with_traceback(None)
        except grpc.aio.BaseError as error:
            raise asyncio.CancelledError from error

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline on a clock in nanoseconds; None where it has none."""
        remaining_s: float | None = self._context.time_remaining()  # None too, whatever grpc's types say
        if remaining_s is None or remaining_s > _NO_DEADLINE_S:
            return None
        return clock() + round(remaining_s * _NS_PER_S)

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Does work in a thread, in this task's context.

        When the call is cancelled, work that has not begun is dropped. Work that has begun cannot be
        interrupted: this waits for it and returns its result, so that what it opened can be closed, and the
        next ``await`` raises CancelledError.
        """
        job = self._threads.submit(contextvars.copy_context().run, _run, work, *arguments)
        future = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._active = False
            if job.cancel():
                raise
            await finished(future)
            if future.exception() is not None:
                raise
            if task := asyncio.current_task():
                task.cancel()
            return future.result()
        finally:
            del job, future  # they have the error whose traceback has this frame

    async def write(self, content: bytes) -> None:
        """Sends a response of a stream."""
        try:
            await self._context.write(content)
        except grpc.aio.BaseError as error:  # the client has gone away, which gRPC reports a moment later
            raise asyncio.CancelledError from error


async def finished(future: asyncio.Future[Any]) -> None:
    """Waits for a future, although this task is cancelled; its error need not be retrieved."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


def _run(work: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return work(*arguments)
    except StopIteration as error:  # no future can have it
        raise RuntimeError("the work raised StopIteration") from error


class CallObserver(Protocol):
    """Observes every call, on the event loop."""

    def call_began(self, call: Call) -> None:
        """A call has begun."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """The call was answered or cancelled, so long after it began; a stream at its end."""


class Dispatcher(grpc.GenericRpcHandler):
    """Finds the method of a call, and calls it within the limits, the errors and the observers of all.

    Messages that gRPC itself refuses, such as those over the limit of size, and calls of methods that do not
    exist reach no method and no observer. A plain ``def`` method runs in one of the ``threads``, or if it is
    ``aside`` in one of the ``side_threads``. The secret is also checked of calls of methods that do not
    exist.
    """

    def __init__(
        self,
        methods: Iterable[Method],
        threads: Executor,
        side_threads: Executor,
        *,
        observers: Sequence[CallObserver] = (),
        secret: SecretCheck | None = None,
        limits: ClientLimits | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._threads = threads
        self._side_threads = side_threads
        self._observers = tuple(observers)
        self._secret = secret
        self._limits = limits
        self._clock = clock
        self._ids = RequestIds()
        methods = list(methods)
        self._stopping = False
        self._under_way = 0
        self._latest_ns: int | None = None
        self._handlers: dict[str, _Handler] = {f"/{method.path}": self._handler(method) for method in methods}
        self._refusals: dict[str, _Handler] = {
            f"/{method.path}": self._refusal(method.path) for method in methods
        }
        self._unknown_refusal = self._refusal(UNKNOWN)

    def stop(self) -> None:
        """Refuses calls from now on with UNAVAILABLE, which clients may retry; not those ``aside``."""
        self._stopping = True

    def used_within(self, period_s: float) -> bool:
        """Whether a call is in progress that is not ``aside``, or began in the last seconds."""
        latest_ns = self._latest_ns
        return latest_ns is not None and (
            self._under_way > 0 or self._clock() - latest_ns < period_s * _NS_PER_S
        )

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
                call.fail(grpc.StatusCode.UNAUTHENTICATED, "the agent requires a secret, and this is not it")
            await call.send_status()

        return grpc.stream_unary_rpc_method_handler(refuse)

    async def _answer(
        self, method: Method, is_async: bool, content: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes | None:
        response = None
        with self._observed(method.path, context, aside=method.aside) as call:
            self._admit(method, call, context)
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
            self._admit(method, call, context)
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

    def _admit(self, method: Method, call: CallContext, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Raises AgentError where the agent stops, and RateLimitError where the client is over its limit."""
        if self._stopping and not method.aside:
            raise AgentError("the agent is stopping; try another one, or again later")
        if self._limits is not None:
            self._limits.admit(call.record.method, client_of(context), call.trailing)

    @contextmanager
    def _observed(
        self, path: str, context: grpc.aio.ServicerContext[Any, Any], *, aside: bool
    ) -> Iterator[CallContext]:
        """Begins a call, and ends it: with OK, or with the status of the error that was raised."""
        began_ns = self._clock()
        metadata: Any = context.invocation_metadata() or ()
        given_id = trace_id = None
        for key, value in metadata:
            if key == REQUEST_ID_KEY:
                given_id = value
            elif key == TRACEPARENT_KEY:
                trace_id = _trace_id(value)
        # its address is read now: gRPC frees the call before it is logged, and has none of one that left
        record = Call(path, self._ids.name(given_id), trace_id, context.peer() or "unknown")
        enter_call(record)
        call = CallContext(context, record, metadata, self._side_threads if aside else self._threads)
        if not aside:
            self._under_way += 1
            self._latest_ns = began_ns
        for observer in self._observers:
            observer.call_began(record)
        try:
            yield call
        except Exception as error:  # noqa: BLE001 - the servicers' boundary
            status = status_of(error, path.rpartition("/")[2])
            if status.error_class is not None:
                call.trailing.append((ERROR_CLASS_KEY, status.error_class))
            call.fail(status.code, status.message)
        except BaseException:  # cancelled
            call.code = grpc.StatusCode.CANCELLED
            raise
        finally:
            if not aside:
                self._under_way -= 1
            call.end()
            duration_ns = self._clock() - began_ns
            for observer in self._observers:
                observer.call_ended(record, call.code, duration_ns)


def _trace_id(header: str | bytes) -> str | None:
    try:
        return TraceContext.parse(str(header)).trace_id
    except ConfigurationError:
        return None
