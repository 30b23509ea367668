"""One prediction at a time: a lock for which nobody waits whose holder may never give it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from manifests.errors import HungError

_SHORTEST_WAIT_S = 0.001


class OneAtATime:
    """A lock, to be entered.

    Args:
        patience_s: For how long, in seconds, one may hold it before nobody waits for it any more; None for
            any time.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, patience_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held_since_s = 0.0

    def __enter__(self) -> None:
        """Waits for the lock.

        Raises:
            HungError: Who holds it has held it for too long.
        """
        if not self._lock.acquire(blocking=False):
            self._wait()
        self._held_since_s = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @contextmanager
    def whenever(self) -> Iterator[None]:
        """Waits for the lock for any time, and holds it."""
        with self._lock:
            self._held_since_s = self._clock()
            yield

    def _wait(self) -> None:
        if (patience_s := self._patience_s) is None:
            self._lock.acquire()
            return
        left_s = self._held_since_s + patience_s - self._clock()
        while not self._lock.acquire(timeout=max(_SHORTEST_WAIT_S, left_s)):
            left_s = self._held_since_s + patience_s - self._clock()
            if left_s <= 0:
                raise HungError(
                    f"the prediction under way has run for {patience_s - left_s:.1f} s, and may take "
                    f"{patience_s:g} s; the agent may have to be restarted"
                )
