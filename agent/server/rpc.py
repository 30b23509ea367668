"""The gRPC server and the dispatch of its calls to the agent's methods.

The server is grpc.aio on an event loop in a separate thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, TypeAlias, cast

import grpc

from inferometer.agent.server.admission import client_of
from inferometer.agent.server.calls import (
    NOT_ADMITTED,
    NS_PER_S,
    UNKNOWN,
    CallContext,
    Calls,
    Metadata,
    Method,
)
from inferometer.agent.serving.observers import Call

_NO_DEADLINE_S = 10 * 365 * 24 * 3600.0
"""Deadlines beyond this mean that there is none: gRPC gives every call a deadline."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class GrpcCall(CallContext):
    """A call from a gRPC client."""

    __slots__ = ("_context",)

    def __init__(
        self, context: grpc.aio.ServicerContext[Any, Any], record: Call, metadata: Metadata, threads: Executor
    ) -> None:
        super().__init__(record, metadata, threads)
        self._context = context

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        super().end()
        self._context.set_trailing_metadata(tuple(self.trailing))

    async def send_status(self) -> None:
        """Sends the status of a failed call; gRPC sends the status of any other call itself."""
        if self.failure is None:
            return
        try:
            await self._context.abort(self.failure.code, self.failure.message, tuple(self.trailing))
        except grpc.aio.AbortError as error:  # gRPC keeps it with the call, and raises it again by itself
            error.with_traceback(None)
        except grpc.aio.BaseError as error:
            raise asyncio.CancelledError from error

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline in nanoseconds on ``clock``; None if it has no deadline."""
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
    """Finds the method of a call, and calls it with the limits, errors and observers that all calls share.

    Messages that gRPC itself refuses, such as those over the size limit, and calls to methods that do not
    exist reach no method and no observer. The secret is also checked for calls to methods that do not exist.

    ``calls`` is the processing of all calls, including those over HTTP.
    """

    def __init__(self, methods: Iterable[Method], calls: Calls) -> None:
        self.calls = calls
        self._secret = calls.secret
        self._limits = calls.limits
        self._handlers: dict[str, _Handler] = {f"/{method.path}": self._handler(method) for method in methods}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """Returns the handler of a call; None if there is no such method. Called by gRPC."""
        path: str = handler_call_details.method
        if self._secret is not None and not self._secret.admits(
            path, handler_call_details.invocation_metadata
        ):
            return self._refusal(path[1:] if path in self._handlers else UNKNOWN)
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
        """Returns a handler of refused calls; as it handles streams, it does not wait for a request."""

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
        """Yields the requests of a stream at the client's allowed rate; the call counts as the first."""
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


MAX_CALLS = 20_000
"""The maximum number of concurrent calls; further calls are refused with RESOURCE_EXHAUSTED."""
_CLEANUP_S = 1.0
_ENDING_S = 5.0


class GrpcServer:
    """A gRPC server on its own event loop. Call its methods from other threads."""

    def __init__(self, handler: grpc.GenericRpcHandler, options: Sequence[tuple[str, Any]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc-loop", daemon=True)
        self._server = self._loop.run_until_complete(_make(options))
        self._server.add_generic_rpc_handlers((handler,))

    def add_insecure_port(self, address: str) -> int:
        """Binds an address without TLS and returns the port; see ``grpc.Server``."""
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Binds an address with TLS and returns the port; see ``grpc.Server``."""
        return self._server.add_secure_port(address, server_credentials)

    def start(self) -> None:
        """Starts answering calls."""
        self._thread.start()
        self.begin(self._server.start()).result()

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Schedules work on the event loop, which the HTTP server may share."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def is_running(self) -> bool:
        """Whether the server has started and is not closed."""
        return self._thread.ident is not None and not self._loop.is_closed()

    def stop(
        self, grace_s: float, timeout_s: float, closed: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Stops accepting calls, and cancels the calls in progress after the grace period.

        ``closed`` is awaited on the event loop once clients have been told to reconnect elsewhere (GOAWAY).
        gRPC may take ``timeout_s`` seconds to stop; returns whether it stopped in time.
        """
        return not self.is_running or self.complete(self._stop(grace_s, closed), timeout_s)

    def complete(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> bool:
        """Runs work on the event loop.

        Returns False if it did not finish in time because the loop hangs.
        """
        try:
            self.begin(work).result(timeout_s)
        except FutureTimeoutError:
            return False
        return True

    async def _stop(self, grace_s: float, closed: Callable[[], Awaitable[None]] | None) -> None:
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        await asyncio.sleep(0)  # in which it has begun
        if closed is not None:
            await closed()
        await stopping

    def close(self) -> None:
        """Ends the event loop after the server has stopped; further calls have no effect."""
        if self._loop.is_closed():
            return
        if self._thread.ident is None:
            self._loop.run_until_complete(self._server.stop(None))
            self._loop.close()
            return
        if not self.complete(_end_of_tasks(), 2 * _CLEANUP_S + _ENDING_S):
            return  # the loop hangs; its thread is a daemon thread, which does not keep the process alive
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _end_of_tasks() -> None:
    """Waits briefly until every call has ended, including cancelled calls that are still cleaning up.

    What has not ended by then, such as a connection that the client does not read, is cancelled.
    """
    for _ in range(2):
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            _, left = await asyncio.wait(tasks, timeout=_CLEANUP_S)
            for task in left:
                task.cancel()
    for _ in range(2):  # in which the cancelled ones end, and then the connections that they abort
        await asyncio.sleep(0)


async def _make(options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    return grpc.aio.server(options=tuple(options), maximum_concurrent_rpcs=MAX_CALLS)
