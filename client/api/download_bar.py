"""Download progress bars on stderr; they require a terminal."""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import TYPE_CHECKING

from inferometer.agent.artifacts.downloads import DownloadProgress
from inferometer.agent.artifacts.locations import file_name

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from inferometer.client.api.waiting import WaitingLine

SHOWN_AFTER_S = 1.0
SHOWN_EVERY_S = 0.25


class DownloadBar:
    """Shows the progress of each download that takes longer than ``SHOWN_AFTER_S``. Thread-safe.

    A bar disappears when its download ends. Bars are redrawn only when the object is called, at most once per
    ``SHOWN_EVERY_S``.

    Args:
        waiting: The waiting line to hide while a bar is shown; None if there is no such line.
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
            self._next_s[progress.url] = now_s + SHOWN_EVERY_S
            self._draw(progress)

    def _draw(self, progress: DownloadProgress) -> None:
        if self._bar is None:
            if self._waiting is not None:
                self._waiting.hide()
            self._bar = _new_bar()
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


def _new_bar() -> Bar:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
