"""The gRPC server: grpc.aio on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another class in Python 3.10
from typing import Any

import grpc

from inferometer.agent.closeable import Closeable

MAX_CALLS = 20_000
"""The most calls at once; further calls are refused with RESOURCE_EXHAUSTED."""
_CLEANUP_S = 1.0
_ENDING_S = 5.0


class GrpcServer(Closeable):
    """A gRPC server on an event loop of its own. Call its methods from other threads."""

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

    def stop(self, grace_s: float, timeout_s: float, closed: Callable[[], None] = lambda: None) -> bool:
        """Stops accepting calls, and cancels the calls in progress after the grace period.

        ``closed`` is called on the event loop once clients have been told to reconnect elsewhere (GOAWAY).
        gRPC may take ``timeout_s`` seconds to stop; returns whether it did.
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

    async def _stop(self, grace_s: float, closed: Callable[[], None]) -> None:
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        await asyncio.sleep(0)  # in which it has begun
        closed()
        await stopping

    def close(self) -> None:
        """Ends the event loop after the server has stopped; further calls have no effect."""
        if self._loop.is_closed():
            return
        if self._thread.ident is None:
            self._loop.run_until_complete(self._server.stop(None))
            self._loop.close()
            return
        if not self.complete(_end_of_tasks(), _CLEANUP_S + _ENDING_S):
            return  # the loop hangs; its thread is a daemon thread, which does not keep the process alive
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _end_of_tasks() -> None:
    """Waits briefly until every call has ended, including cancelled calls that still clean up."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=_CLEANUP_S)


async def _make(options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    return grpc.aio.server(options=tuple(options), maximum_concurrent_rpcs=MAX_CALLS)
