"""The agent's methods as those of gRPC's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from typing import Any, TypeAlias

import grpc

from agent.server.loop.loop_call import CallAborted, LoopCall
from agent.server.loop.streaming import answering_at_any_time, answering_streams
from agent.server.loop.unary import Answering, answering_in_steps, answering_in_thread
from agent.server.loop.waking import Waker
from agent.server.marks import AT_ANY_TIME, IN_STEPS, THREADS, is_marked

_REMEMBERED = 256
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Find: TypeAlias = "Callable[[grpc.HandlerCallDetails], Handler | None]"


class Handlers(grpc.GenericRpcHandler):
    """Finds the method of a call, within the interceptors, and makes it one of the event loop.

    Methods and interceptors are those of gRPC's threaded server. A behaviour in steps is answered on the
    loop, one that is given what sends its responses begins there, and any other runs in a thread.

    Args:
        interceptors: The first is the outermost.
        pool: The threads.
        loop: The event loop.
    """

    def __init__(
        self,
        interceptors: Sequence[grpc.ServerInterceptor],
        pool: Executor,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._waker = Waker(loop)
        self._services: list[grpc.GenericRpcHandler] = []
        self._find: _Find = self._of_services
        for interceptor in reversed(interceptors):
            self._find = partial(interceptor.intercept_service, self._find)
        self._on_loop = lru_cache(_REMEMBERED)(self._adapted)

    def add(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds the methods of services."""
        self._services.extend(services)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Returns the method of a call; None where there is none."""
        handler = self._find(handler_call_details)
        return None if handler is None else self._on_loop(handler)

    def _of_services(self, details: grpc.HandlerCallDetails) -> Handler | None:
        for service in self._services:
            if (handler := service.service(details)) is not None:
                return handler
        return None

    def _adapted(self, handler: Handler) -> Handler:
        behaviour = _behaviour(handler)
        pool = getattr(behaviour, THREADS, self._pool)
        if is_marked(behaviour, IN_STEPS):
            answering = answering_in_steps(behaviour, pool, self._waker)
        elif is_marked(behaviour, AT_ANY_TIME):
            answering = answering_at_any_time(behaviour)
        elif handler.request_streaming or handler.response_streaming:
            answering = answering_streams(handler, behaviour, pool)
        else:
            answering = answering_in_thread(behaviour, pool)

        async def answered(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            return await self._answered(answering, request, context)

        return _kind(handler)(answered, handler.request_deserializer, handler.response_serializer)

    async def _answered(
        self, answering: Answering, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        call = self._call(context)
        response = None
        try:
            response = await answering(request, call)
        except CallAborted:
            pass
        finally:
            call.end()
        await call.tell_status()
        return response

    def _call(self, context: grpc.aio.ServicerContext[Any, Any]) -> LoopCall:
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a call is answered outside of a task")
        return LoopCall(context, task, self._loop)


def _behaviour(handler: Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(behaviour for behaviour in kinds if behaviour is not None)


def _kind(handler: Handler) -> Callable[..., Handler]:
    """What makes a handler of the same kind."""
    kinds: dict[tuple[bool, bool], Callable[..., Handler]] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
