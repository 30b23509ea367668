"""Waking what waits on the event loop from other threads, many by one signal."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Waker:
    """Wakes futures of an event loop. ``wake`` may be called in any thread.

    A signal to the loop costs a system call, and a batch answers many calls in a row: those that come before
    the loop has taken the signal are woken by the same one.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken: deque[asyncio.Future[bool]] = deque()
        self._signalled = False

    def wake(self, future: asyncio.Future[bool]) -> None:
        """Gives a future True, unless it has a result, as soon as the loop comes to it."""
        self._woken.append(future)
        if not self._signalled:
            self._signalled = True
            with suppress(RuntimeError):  # the loop has ended, and with it whatever waits
                self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._signalled = False  # before it looks: what comes later signals again
        while self._woken:
            settle(self._woken.popleft(), there=True)


def settle(future: asyncio.Future[bool], *, there: bool) -> None:
    """Gives a future its result, unless it has one."""
    if not future.done():
        future.set_result(there)
