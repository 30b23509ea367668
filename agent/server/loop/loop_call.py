"""A call as the agent's methods know it, on top of gRPC's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import grpc

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


class CallAborted(Exception):  # noqa: N818 - raised where gRPC's own contexts raise Exception
    """A method has ended its call with a status."""


class LoopCall:
    """What a method is told of its call, and tells about it. Thread-safe.

    It has those methods of ``grpc.ServicerContext`` that the agent uses, and is given as one.

    Args:
        context: The call as the event loop knows it.
        task: What answers it.
        loop: The event loop.
    """

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        task: asyncio.Task[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        self._task = task
        self._loop = loop
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] | None = []
        self._trailing: Metadata = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""

    def invocation_metadata(self) -> Any:
        """What the client sent along."""
        return self._context.invocation_metadata()

    def peer(self) -> str:
        """Where the call comes from, as gRPC names it."""
        return self._context.peer()

    def peer_identities(self) -> Any:
        """The names in the client's certificate; None without one."""
        return self._context.peer_identities()

    def time_remaining(self) -> float | None:
        """How long the client waits still, in seconds; None for any time."""
        return self._context.time_remaining()

    def trailing_metadata(self) -> Metadata:
        """What goes along with the status."""
        return self._trailing

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Says what goes along with the status."""
        self._trailing = tuple(metadata)

    def code(self) -> grpc.StatusCode | None:
        """What the call was ended with; None while it was not."""
        return self._code

    def is_active(self) -> bool:
        """Whether the call is neither over nor given up by the client."""
        return self._callbacks is not None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Has something called when the call is over; says False where it is already."""
        with self._lock:
            if self._callbacks is None:
                return False
            self._callbacks.append(callback)
            return True

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with a status.

        Raises:
            CallAborted: Always.
        """
        self._code, self._details = code, details
        raise CallAborted(details)

    def cancel(self) -> None:
        """Ends the call as if the client had."""
        self._loop.call_soon_threadsafe(self._task.cancel)

    def end(self) -> None:
        """Is told that the call is over."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()

    async def read(self) -> Any:
        """Waits for the next request of a stream; ``grpc.aio.EOF`` behind the last one. On the loop only."""
        return await self._context.read()

    async def write(self, response: Any) -> None:
        """Sends a response of a stream. On the loop only."""
        await self._context.write(response)

    async def tell_status(self) -> None:
        """Gives gRPC what goes along with the status, and the status unless all went well."""
        if self._code is not None:
            await self._context.abort(self._code, self._details, tuple(self._trailing))
        elif self._trailing:
            self._context.set_trailing_metadata(tuple(self._trailing))
