"""The progress bar of a run: on stderr, on a terminal only, and only for what takes a while."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from typing_extensions import Self

from evaluators.dataset_run import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SHOWN_AFTER_S = 2.0
SHOWN_EVERY_S = 0.25


class ProgressBar:
    """Shows how far a run has come, once it has taken ``SHOWN_AFTER_S``.

    It draws only when it is called, at most every ``SHOWN_EVERY_S``: a thread that draws by itself would do
    so while a batch is predicted, and be in its time.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._next = time.monotonic() + SHOWN_AFTER_S
        self._terminal = sys.stderr.isatty()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""
        if not self._terminal or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SHOWN_EVERY_S
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._task = self._bar.add_task(self._title, total=progress.total)
            self._bar.start()
        self._bar.update(self._task, completed=progress.done, refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
