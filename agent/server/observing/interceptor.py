"""The interceptor that knows every call: when it began, how it ended, and what it is called."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any

import grpc

from agent.server.kept_handlers import KeptHandlers
from agent.server.marks import AT_ANY_TIME, IN_STEPS, is_marked
from agent.server.observing.call import REQUEST_ID_KEY, Call, RequestIds, enter_call
from agent.server.observing.observers import CallObserver
from agent.server.steps import Steps
from agent.tracing.context import TraceContext
from manifests.errors import ConfigurationError

UNKNOWN = "unknown"
"""What every method is called that the agent does not have: names that clients make up are kept nowhere."""
_TRACEPARENT_KEY = "traceparent"
_log = logging.getLogger(__name__)


class CallInterceptor(grpc.ServerInterceptor):
    """Tells observers of every call of every service, refused ones among them.

    To be the first of the interceptors, so that it sees what the others refuse. Calls of methods that there
    are not, unless another interceptor refuses them, and messages that gRPC itself refuses, such as those
    over the limit of size, reach no method and are not seen.

    Args:
        observers: Are told.
        methods: The methods that there are, as ``package.Service/Method``; any other is called ``UNKNOWN``.
        clock: A monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        observers: Sequence[CallObserver],
        methods: Collection[str],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._observers = tuple(observers)
        self._methods = frozenset(methods)
        self._handlers = KeptHandlers(self._around)
        self._clock = clock
        self._ids = RequestIds()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the call's handler, within one that tells of it."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.removeprefix("/")
        return self._handlers.around(handler, method if method in self._methods else UNKNOWN)

    def _around(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        reading, writing = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            one = self._answering_one(handler.unary_unary, method)
            return grpc.unary_unary_rpc_method_handler(one, reading, writing)
        if handler.stream_unary is not None:
            one = self._answering_one(handler.stream_unary, method)
            return grpc.stream_unary_rpc_method_handler(one, reading, writing)
        behaviour = handler.unary_stream or handler.stream_stream
        if is_marked(behaviour, AT_ANY_TIME):  # it outlives the thread, as health's Watch
            return handler  # type: ignore[no-any-return]  # it came as Any
        many = self._answering_many(behaviour, method)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(many, reading, writing)
        return grpc.stream_stream_rpc_method_handler(many, reading, writing)

    def _answering_one(
        self, behaviour: Callable[[Any, grpc.ServicerContext], Any], method: str
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        if is_marked(behaviour, IN_STEPS):
            return self._answering_in_steps(behaviour, method)

        @wraps(behaviour)
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            call, began_ns = self._begin(method, context)
            try:
                with _fault_answered(method, context):
                    return behaviour(request, context)
            finally:
                self._end(call, context, began_ns)

        return answer

    def _answering_in_steps(
        self, behaviour: Callable[[Any, grpc.ServicerContext], Steps[Any]], method: str
    ) -> Callable[[Any, grpc.ServicerContext], Steps[Any]]:
        @wraps(behaviour)
        def answer(request: Any, context: grpc.ServicerContext) -> Steps[Any]:
            call, began_ns = self._begin(method, context)
            try:
                with _fault_answered(method, context):
                    return (yield from behaviour(request, context))
            finally:
                self._end(call, context, began_ns)

        return answer

    def _answering_many(
        self, behaviour: Callable[[Any, grpc.ServicerContext], Iterator[Any]], method: str
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        @wraps(behaviour)
        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            call, began_ns = self._begin(method, context)
            try:
                with _fault_answered(method, context):
                    yield from behaviour(request, context)
            finally:
                self._end(call, context, began_ns)

        return answer

    def _begin(self, method: str, context: grpc.ServicerContext) -> tuple[Call, int]:
        began_ns = self._clock()
        asked = trace_id = None
        for key, value in context.invocation_metadata() or ():
            if key == REQUEST_ID_KEY:
                asked = value
            elif key == _TRACEPARENT_KEY:
                trace_id = _trace_id(value)
        call = Call(method, self._ids.name(asked), trace_id, context.peer)
        enter_call(call)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
        for observer in self._observers:
            observer.call_began(call)
        return call, began_ns

    def _end(self, call: Call, context: Any, began_ns: int) -> None:
        duration_ns = self._clock() - began_ns
        code = _code(context)
        for observer in self._observers:
            observer.call_ended(call, code, duration_ns)


def _trace_id(header: str | bytes) -> str | None:
    try:
        return TraceContext.parse(str(header)).trace_id
    except ConfigurationError:
        return None


class _fault_answered:  # noqa: N801 - used as a function; a class, as this is entered for every call
    """Answers what a service that is not the agent's own raises: gRPC would tell the client all of it."""

    __slots__ = ("_context", "_method")

    def __init__(self, method: str, context: Any) -> None:
        self._method = method
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception) or self._context.code() is not None:
            return
        if not self._context.is_active():  # gRPC says so by an exception when the client has gone away
            return
        _log.error("%s failed: %s", self._method, type(error).__name__, exc_info=error)
        self._context.abort(
            grpc.StatusCode.INTERNAL,
            f"{self._method} failed in the agent ({type(error).__name__}); the agent's log says more",
        )


def _code(context: Any) -> grpc.StatusCode:
    """How a call ends: it has a code if it was aborted, and else a client, who may have gone away."""
    code = context.code()
    if code is None:
        return grpc.StatusCode.OK if context.is_active() else grpc.StatusCode.CANCELLED
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN
