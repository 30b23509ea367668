"""Methods with streams on the event loop: a thread takes the requests and gives the responses."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import grpc

from agent.server.loop.loop_call import LoopCall
from agent.server.loop.unary import Answering, in_thread

_AHEAD = 2
"""Messages on their way between the loop and the thread, in each direction."""


class _End:
    """Stands behind the last message."""


class Requests(Iterator[Any]):
    """The requests of a stream, for the thread that takes them; the loop reads a bounded number ahead.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = asyncio.Semaphore(_AHEAD)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = False

    async def read(self, call: LoopCall) -> None:
        """Reads them until there are no more."""
        try:
            while True:
                await self._taken.acquire()
                request = await call.read()
                if request is grpc.aio.EOF:
                    return
                self._requests.put(request)
        finally:
            self.end()

    def end(self) -> None:
        """Is told that no more come."""
        self._requests.put(_End)

    def __next__(self) -> Any:
        """Waits for the next one."""
        request = _End if self._over else self._requests.get()
        if request is _End:
            self._over = True
            raise StopIteration
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._taken.release)
        return request


class Responses:
    """The responses of a stream, from the thread that gives them; no more than a few wait to be sent.

    Args:
        loop: The event loop.
        call: The call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: LoopCall) -> None:
        self._loop = loop
        self._call = call
        self._places = threading.Semaphore(_AHEAD)
        self._responses: asyncio.Queue[Any] = asyncio.Queue()
        call.add_callback(self._places.release)  # the thread may wait for a place

    def give(self, responses: Iterator[Any]) -> None:
        """Gives responses, in the thread, until there are no more or the call is over."""
        for response in responses:
            self._places.acquire()
            if not self._call.is_active():
                self._places.release()
                return
            self._put(response)

    def give_one(self, response: Any) -> None:
        """Gives a response, or None behind the last one, and waits for nothing."""
        self._put(_End if response is None else response)

    def end(self) -> None:
        """Is told, on the loop, that no more are given."""
        self._responses.put_nowait(_End)

    async def write(self) -> None:
        """Sends them until there are no more."""
        while (response := await self._responses.get()) is not _End:
            await self._call.write(response)
            self._places.release()

    def _put(self, response: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the call
            self._loop.call_soon_threadsafe(self._responses.put_nowait, response)


def answering_streams(
    handler: grpc.RpcMethodHandler[Any, Any], behaviour: Callable[..., Any], pool: Executor
) -> Answering:
    """Returns what answers calls of a method with a stream in either direction.

    Args:
        handler: The method, whose kind tells what it takes and gives.
        behaviour: What it does, in a thread.
        pool: The threads.
    """

    async def answer(request: Any, call: LoopCall) -> Any:
        return await _answer_stream(handler, behaviour, request, call, pool)

    return answer


def answering_at_any_time(behaviour: Callable[..., Any]) -> Answering:
    """Returns what answers calls of a method that is given what sends its responses.

    They take no thread: the behaviour begins on the loop, and must take no time.
    """

    async def answer(request: Any, call: LoopCall) -> None:
        responses = Responses(asyncio.get_running_loop(), call)
        behaviour(request, call, responses.give_one)
        await responses.write()

    return answer


async def _answer_stream(
    handler: grpc.RpcMethodHandler[Any, Any],
    behaviour: Callable[..., Any],
    request: Any,
    call: LoopCall,
    pool: Executor,
) -> Any:
    """The one answer; None where they are a stream, which is sent."""
    loop = asyncio.get_running_loop()
    reading = None
    given = request
    if handler.request_streaming:
        given = requests = Requests(loop)
        reading = loop.create_task(requests.read(call))
        call.add_callback(requests.end)
    try:
        if not handler.response_streaming:
            return await in_thread(pool, lambda: behaviour(given, call))
        responses = Responses(loop, call)
        working = in_thread(pool, lambda: _run(behaviour, given, call, responses))
        working.add_done_callback(_noticed)
        writing = loop.create_task(responses.write())
        try:
            await asyncio.wait((working, writing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                responses.end()
            else:  # nothing can be sent any more
                call.end()
            await writing  # before the status, which gRPC refuses while a response is on its way
            await working
        finally:
            writing.cancel()
        return None
    finally:
        if reading is not None:
            reading.cancel()


def _noticed(working: asyncio.Future[Any]) -> None:
    """Looks at an error that nobody may be there to take, so that it is not reported as lost."""
    if not working.cancelled():
        working.exception()


def _run(behaviour: Callable[..., Any], given: Any, call: LoopCall, responses: Responses) -> None:
    results = behaviour(given, call)
    try:
        responses.give(results)
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()
