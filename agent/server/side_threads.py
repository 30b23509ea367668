"""Threads apart from those that predict, for methods that answer at once however busy the agent is."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import grpc

from agent.closeable import Closeable

THREAD_POOL = "experimental_thread_pool"
"""The attribute of a behaviour by which gRPC is told to run it in other threads than the server's."""
ONE_REQUEST = "takes_one_request"
"""The attribute of a behaviour that gRPC gives a stream, of which it takes the first request only."""
PATIENCE_S = 5.0
_CHECKS = 5  # in that time
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class SideThreads(Closeable):
    """A pool of threads for methods of one request that take no time. Thread-safe.

    A call takes a thread from its beginning, and its request may never come: it is given up after a time,
    so that nobody holds the threads for long by sending none.

    Args:
        threads: How many calls are answered at once.
        name: What the threads are called.
        patience_s: How long a request may take to come, in seconds.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        threads: int,
        name: str,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._patience_s = patience_s
        self._clock = clock
        self._numbers = itertools.count()
        # Written without a lock: one item is put or taken at a time, which the interpreter does at once.
        self._waiting: dict[int, tuple[float, grpc.ServicerContext]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"{name}-patience", daemon=True)

    def start(self) -> None:
        """Begins to give up calls whose request does not come."""
        self._thread.start()

    def close(self) -> None:
        """Ends the threads, once nothing is answered any more; calling it again does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def running(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what does the same in these threads."""

        @functools.wraps(behaviour)
        def answer(*arguments: Any, **named: Any) -> Any:
            return behaviour(*arguments, **named)

        setattr(answer, THREAD_POOL, self._pool)
        return answer

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        """Has something done in these threads; nothing, once they have ended."""
        with suppress(RuntimeError):
            self._pool.submit(function, *arguments)

    @contextmanager
    def bounded(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Gives up a call if what is done within takes too long."""
        number = next(self._numbers)
        self._waiting[number] = (self._clock() + self._patience_s, context)
        try:
            yield
        finally:
            del self._waiting[number]

    def taking(
        self, service: str, handlers: Mapping[str, _Handler], only: Collection[str] | None = None
    ) -> dict[str, _Handler]:
        """Returns a service's methods by name, to be answered here.

        Args:
            service: Its full name.
            handlers: Its methods by name.
            only: Those that are answered here, each of one request; None for all.
        """
        taken = handlers if only is None else only
        return {
            name: self._here(f"{service}/{name}", handler) if name in taken else handler
            for name, handler in handlers.items()
        }

    def _here(self, method: str, handler: _Handler) -> _Handler:
        """The same for gRPC as a stream of requests, which begins without one."""
        behaviour: Any = handler.unary_stream or handler.unary_unary

        @functools.wraps(behaviour)  # gRPC finds in its attributes how it is to be called, as that of Watch
        def answer(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
            return behaviour(self._first(requests, context, method), context, *more)

        setattr(answer, THREAD_POOL, self._pool)
        setattr(answer, ONE_REQUEST, True)
        kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return kind(answer, handler.request_deserializer, handler.response_serializer)

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext, method: str) -> Any:
        with self.bounded(context):
            for request in requests:
                return request
        if not context.is_active():
            context.abort(grpc.StatusCode.CANCELLED, "cancelled")
        return context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} takes one request, and none came")

    def _look(self) -> None:
        while not self._stopping.wait(self._patience_s / _CHECKS):
            now_s = self._clock()
            for until_s, context in list(self._waiting.values()):
                if until_s <= now_s:
                    context.cancel()
