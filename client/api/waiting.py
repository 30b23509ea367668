"""The displays on stderr while a user waits: the current activity in one line, and the progress of downloads.

Both are shown only on a terminal.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, RLock, Thread
from typing import TYPE_CHECKING

from inferometer.agent.artifacts.downloads import DownloadProgress
from inferometer.agent.artifacts.locations import file_name

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


SHOWN_AFTER_S = 1.0
SHOWN_EVERY_S = 0.5


class WaitingLine:
    """Shows the current activity and its elapsed time, after ``SHOWN_AFTER_S``. Thread-safe.

    A background thread draws the line. ``close`` returns after the thread has ended, so that nothing is drawn
    while a model is timed. It is not ``wanted`` if, for example, log lines would overlap it.
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


BAR_EVERY_S = 0.25


class DownloadBar:
    """Shows the progress of each download that takes longer than ``SHOWN_AFTER_S``. Thread-safe.

    A bar disappears when its download ends. Bars are redrawn only when the object is called, at most once per
    ``BAR_EVERY_S``. The ``waiting`` line is hidden while a bar is shown.
    """

    def __init__(self, waiting: WaitingLine | None = None) -> None:
        self._waiting = waiting
        self._terminal = sys.stderr.isatty()
        self._lock = Lock()
        self._next_s: dict[str, float] = {}
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: DownloadProgress) -> None:
        """Shows the progress."""
        if not self._terminal:
            return
        with self._lock:
            if progress.ended:
                self._end(progress.url)
                return
            now_s = time.monotonic()
            if now_s < self._next_s.setdefault(progress.url, now_s + SHOWN_AFTER_S):
                return
            self._next_s[progress.url] = now_s + BAR_EVERY_S
            self._draw(progress)

    def _draw(self, progress: DownloadProgress) -> None:
        if self._bar is None:
            if self._waiting is not None:
                self._waiting.hide()
            from rich import progress as rich
            from rich.console import Console

            columns = (
                rich.TextColumn("{task.description}", markup=False),
                rich.BarColumn(),
                rich.DownloadColumn(binary_units=True),
                rich.TransferSpeedColumn(),
                rich.TimeRemainingColumn(),
            )
            self._bar = rich.Progress(
                *columns, console=Console(stderr=True), transient=True, auto_refresh=False
            )
            self._bar.start()
        if progress.url not in self._tasks:
            self._tasks[progress.url] = self._bar.add_task(file_name(progress.url), total=None)
        self._bar.update(
            self._tasks[progress.url], completed=progress.done_bytes, total=progress.total_bytes, refresh=True
        )

    def _end(self, url: str) -> None:
        self._next_s.pop(url, None)
        task = self._tasks.pop(url, None)
        if self._bar is None or task is None:
            return
        self._bar.remove_task(task)
        if not self._tasks:
            self._bar.stop()
            self._bar = None
            if self._waiting is not None:
                self._waiting.show()
