"""Methods of one request and one answer on the event loop: in steps, or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeAlias

from agent.server.loop.loop_call import LoopCall
from agent.server.loop.waking import Waker, settle
from agent.server.steps import Steps, Wait
from manifests.errors import RequestCancelledError

_NS_PER_S = 1_000_000_000
Answering: TypeAlias = Callable[[Any, LoopCall], Awaitable[Any]]


def answering_in_steps(behaviour: Callable[..., Steps[Any]], pool: Executor, waker: Waker) -> Answering:
    """Returns what takes a behaviour's steps on the loop; those that take time are taken by a thread.

    Args:
        behaviour: Of a request and its call.
        pool: The threads.
        waker: Wakes calls when what they wait for is there.
    """

    async def answer(request: Any, call: LoopCall) -> Any:
        steps = behaviour(request, call)
        working: asyncio.Future[Any] | None = None
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Wait):
                        result = await _waited(step, waker)
                    else:
                        working = in_thread(pool, partial(_unless_over, call, step.work))
                        result = await asyncio.shield(working)
                        working = None
                except asyncio.CancelledError:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is the steps' to deal with
                    working = None
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value
        finally:
            call.end()  # before the steps are closed, which may ask
            if working is None:
                steps.close()
            else:  # what the work returns may be the steps' to give back
                working.add_done_callback(partial(_end_after, steps))

    return answer


def answering_in_thread(behaviour: Callable[..., Any], pool: Executor) -> Answering:
    """Returns what runs a behaviour in a thread."""

    async def answer(request: Any, call: LoopCall) -> Any:
        return await in_thread(pool, partial(behaviour, request, call))

    return answer


def in_thread(pool: Executor, work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Does work in a thread, in this task's context; returns what will have its result."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(pool, context.run, _done, work)


def _end_after(steps: Steps[Any], working: asyncio.Future[Any]) -> None:
    """Ends steps that nobody takes any more with what their work came to."""
    with closing(steps), suppress(Exception):  # nobody is there to be told
        if working.cancelled():
            return
        error = working.exception()
        if error is not None:
            steps.throw(error)
        else:
            steps.send(working.result())


def _unless_over(call: LoopCall, work: Callable[[], Any]) -> Any:
    """Does work, unless its call was over before a thread had time for it."""
    if not call.is_active():
        raise RequestCancelledError("the caller has gone away")
    return work()


def _done(work: Callable[[], Any]) -> Any:
    """The result of work, whose end must not look like that of the generator which waits for it."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("the work raised StopIteration") from error


async def _waited(step: Wait, waker: Waker) -> bool:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    step.awaited.tell(partial(waker.wake, future))
    if step.timeout_ns is None:
        return await future
    timer = loop.call_later(max(0, step.timeout_ns) / _NS_PER_S, partial(settle, future, there=False))
    try:
        return await future
    finally:
        timer.cancel()
