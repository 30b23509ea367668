"""A gRPC server whose calls are answered by an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import grpc

from agent.closeable import Closeable
from agent.server.loop.handlers import Handlers

MAX_CALLS = 20_000
"""The most calls at once; one more is refused with RESOURCE_EXHAUSTED."""
_ENDING_S = 5.0


class LoopServer(Closeable):
    """Serves methods and interceptors that were written for gRPC's threaded server.

    There a call takes a thread until it is answered, and each message several changes of thread; here only
    what takes time takes a thread. A request that never comes takes none.

    Args:
        pool: Threads for what takes time.
        interceptors: The first is the outermost.
        options: gRPC's, as pairs.
    """

    def __init__(
        self,
        pool: Executor,
        interceptors: Sequence[grpc.ServerInterceptor],
        options: Sequence[tuple[str, Any]],
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc-loop", daemon=True)
        self._handlers = Handlers(interceptors, pool, self._loop)
        self._server = self._loop.run_until_complete(_made(options))
        self._server.add_generic_rpc_handlers((self._handlers,))

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds methods; see ``grpc.Server``."""
        self._handlers.add(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Does nothing: the methods are found among the generic ones, too; see ``grpc.Server``."""

    def add_insecure_port(self, address: str) -> int:
        """Binds an address in clear and returns its port; see ``grpc.Server``."""
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Binds an address with TLS and returns its port; see ``grpc.Server``."""
        return self._server.add_secure_port(address, server_credentials)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        self._begin(self._server.start()).result()

    def stop(self, grace_s: float, timeout_s: float) -> bool:
        """Takes no more calls, and waits for those that there are; after a time they are cancelled.

        Args:
            grace_s: That time, in seconds.
            timeout_s: How long to wait at the most for gRPC to end, in seconds.

        Returns:
            Whether it has ended.
        """
        if self._thread.ident is None or self._loop.is_closed():
            return True
        try:
            self._begin(self._server.stop(grace_s)).result(timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Ends the loop, once the server is stopped; calling it again does nothing."""
        if self._loop.is_closed():
            return
        if self._thread.ident is None:
            self._loop.run_until_complete(self._server.stop(None))
            self._loop.close()
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _made(options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    return grpc.aio.server(options=tuple(options), maximum_concurrent_rpcs=MAX_CALLS)
