"""Threads apart from those that predict, for methods that answer at once however busy the agent is."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc

from agent.closeable import Closeable
from agent.server.marks import THREADS

_Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"


class SideThreads(Closeable):
    """A pool of threads for methods of one request and one answer that take little time.

    Args:
        threads: How many calls are answered at once.
        name: What the threads are called.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def taking(self, handlers: _Handlers, names: Collection[str] | None) -> _Handlers:
        """Returns a service's methods, of which some are answered here from now on, or all."""
        for name in handlers if names is None else names:
            setattr(handlers[name].unary_unary, THREADS, self._pool)
        return handlers

    def close(self) -> None:
        """Ends the threads, once nothing is answered any more; calling it again does nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)
