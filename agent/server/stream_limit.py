"""The streams that an agent serves at once: each takes a thread for as long as it lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from manifests.errors import SessionLimitError


class StreamLimit:
    """Lets a limited number of streams in, of all services together. Thread-safe.

    Args:
        streams: The most that are served at once.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._free = threading.Semaphore(streams)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Held while a stream is served.

        Raises:
            SessionLimitError: As many are served as may be.
        """
        if not self._free.acquire(blocking=False):
            raise SessionLimitError(f"the agent serves its limit of {self._streams} streams; try again later")
        try:
            yield
        finally:
            self._free.release()
