"""Notifies open pages of changes; checks for changes once a second while a page is open."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from inferometer.manifests.errors import InferometerError

_LOOK_S = 1.0
_ALIVE_LOOKS = 15
_log = logging.getLogger(__name__)
Look = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the data to send to the pages, by the name of the event."""


class Events:
    """Server-sent events to any number of pages; for one event loop.

    Args:
        look: Called once a second while a page is open.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._known: dict[str, Any] = {}
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def stream(self) -> AsyncIterator[str]:
        """Yields events until ``close``, beginning with those that describe the current state."""
        if self._closed:
            return
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        queue.put_nowait("retry: 2000\n\n")
        for name, value in self._known.items():
            queue.put_nowait(_event(name, value))
        self._pages.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            while (text := await queue.get()) is not None:
                yield text
        finally:
            self._pages.discard(queue)

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for queue in self._pages:
            queue.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        """Checks for changes until no page is open."""
        looks, told = 0, ""
        try:
            while self._pages:
                try:
                    found = await self._look()
                    told = ""
                except InferometerError as error:
                    if str(error) != told:
                        _log.warning("%s", error)
                    found, told = {}, str(error)
                for name, value in found.items():
                    if name not in self._known or self._known[name] != value:
                        self._known[name] = value
                        self._tell(_event(name, value))
                looks += 1
                if looks % _ALIVE_LOOKS == 0:
                    self._tell(": alive\n\n")
                await asyncio.sleep(_LOOK_S)
        finally:
            self._task = None
            self._known = {}

    def _tell(self, text: str) -> None:
        for queue in self._pages:
            queue.put_nowait(text)


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"
