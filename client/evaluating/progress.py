"""Progress on stderr: a bar for an evaluation, one live line for load. Both need a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.load.issuer import IssuerProgress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SHOWN_AFTER_S = 2.0
SHOWN_EVERY_S = 0.25
_NS_PER_MS = 1_000_000


class ProgressBar:
    """Shows the progress of an evaluation, once it has taken ``SHOWN_AFTER_S``.

    It draws only when it is called, at most every ``SHOWN_EVERY_S``: a thread that draws by itself would
    draw while a batch is predicted and timed.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._terminal = sys.stderr.isatty()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self.begin()

    def begin(self) -> None:
        """Starts the time of another evaluation."""
        self._next = time.monotonic() + SHOWN_AFTER_S

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
            self._task = self._bar.add_task(self.title, total=progress.total)
            self._bar.start()
        what = f"{self.title}: {progress.now}" if progress.now else self.title
        self._bar.update(
            self._task, description=what, completed=progress.done, total=progress.total, refresh=True
        )

    def close(self) -> None:
        """Removes the bar."""
        if self._bar:
            self._bar.stop()
        self._bar = self._task = None


class LiveLine:
    """Shows the progress of one run under load after the other, in one line.

    Args:
        search: Whether the runs are the probes of a search, which are then numbered.
    """

    def __init__(self, search: bool) -> None:
        self._stream = sys.stderr
        self._shown = self._stream.isatty()
        self._search = search
        self.begin()

    def begin(self) -> None:
        """Starts the count of another job's runs."""
        self._runs = 1 if self._search else 0
        self._elapsed_s = 0.0

    def __call__(self, progress: IssuerProgress) -> None:
        """Shows the progress."""
        if not self._shown:
            return
        if self._runs and progress.elapsed_s < self._elapsed_s:
            self._runs += 1
        self._elapsed_s = progress.elapsed_s
        line = line_of(progress, self._runs)[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{line}\033[K")
        self._stream.flush()

    def close(self) -> None:
        """Removes the line."""
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


def line_of(progress: IssuerProgress, probe: int = 0) -> str:
    """Returns the line; ``probe`` is the number of the probe, or 0."""
    what = f"probe {probe}  " if probe else ""
    if progress.target_qps:
        what += f"at {progress.target_qps:.4g} queries/s  "
    total = f"/{progress.total}" if progress.total else ""
    p99 = "" if progress.p99_ns is None else f"  p99 {progress.p99_ns / _NS_PER_MS:.1f} ms"
    return (
        f"{what}{progress.elapsed_s:5.1f} s  {progress.sent}{total} sent  "
        f"{progress.rate_qps:.1f} answers/s{p99}  backlog {progress.waiting}"
    )
