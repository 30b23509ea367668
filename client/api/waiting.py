"""The line on stderr that shows the current activity if nothing else does; it requires a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread

SHOWN_AFTER_S = 1.0
SHOWN_EVERY_S = 0.5


class WaitingLine:
    """Shows the current activity and its elapsed time, after ``SHOWN_AFTER_S``. Thread-safe.

    A background thread draws the line. ``close`` returns after the thread has ended, so that nothing is drawn
    while a model is timed.

    Args:
        wanted: Whether to show the line at all; log lines, for example, would overlap it.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._shown = wanted and sys.stderr.isatty()
        self._lock = RLock()
        self._ended = Event()
        self._thread: Thread | None = None
        self._hidden = 0
        self._is_drawn = False

    def begin(self, what: str) -> None:
        """Begins an activity, such as "opening ResNet50", and ends the previous one."""
        self.close()
        if self._shown:
            self._ended = Event()
            self._thread = Thread(target=self._draw, args=(what, self._ended, time.monotonic()), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Removes the line."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()
            self._clear()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Returns a context manager that shows the line while its body runs."""
        self.begin(what)
        try:
            yield
        finally:
            self.close()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Returns a context manager that hides the line while its body prints other output."""
        self.hide()
        try:
            yield
        finally:
            self.show()

    def hide(self) -> None:
        """Hides the line until ``show`` is called."""
        with self._lock:
            self._hidden += 1
            self._clear()

    def show(self) -> None:
        """Shows the line again after ``hide``."""
        with self._lock:
            self._hidden -= 1

    def _draw(self, what: str, ended: Event, began_s: float) -> None:
        wait_s = SHOWN_AFTER_S
        while not ended.wait(wait_s):
            wait_s = SHOWN_EVERY_S
            with self._lock:
                if not self._hidden:
                    self._is_drawn = True
                    self._write(f"{what} … {time.monotonic() - began_s:.0f} s")

    def _clear(self) -> None:
        if self._is_drawn:
            self._write("")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        """Replaces the line, and leaves the cursor at its start so that other output overwrites it."""
        line = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{line}\033[K\r")
        sys.stderr.flush()
