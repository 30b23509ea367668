"""Progress displays on a terminal's stderr or in a notebook: a bar for an evaluation, a line for load."""

from __future__ import annotations

import shutil
import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.load.issuer import IssuerProgress
from inferometer.evaluators.running.job import Job, Shown
from inferometer.evaluators.running.resources import JobPart
from inferometer.manifests.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SHOWN_AFTER_S = 2.0
SHOWN_EVERY_S = 0.25
_NS_PER_MS = 1_000_000
_NOTEBOOK_S = 1.0  # a message to a notebook takes up to a millisecond and delays the measurement


class Display:
    """Shows the progress of evaluations, one at a time."""

    def begin_part(self, part: JobPart) -> None:
        """Receives which evaluation of several begins."""

    def begin(self) -> None:
        """Restarts the elapsed time for another evaluation."""

    def __call__(self, progress: Any) -> None:
        """Shows the progress."""

    def close(self) -> None:
        """Removes the display."""


def display_of(job: Job[Any]) -> Display:
    """Returns the progress display for a job: HTML in a notebook, otherwise a line in a terminal."""
    if job.shown is Shown.BAR:
        return _NotebookBar(job.title) if _in_notebook() else ProgressBar(job.title)
    search = job.shown is Shown.PROBES
    return _NotebookLine(search) if _in_notebook() else LiveLine(search)


class ProgressBar(Display):
    """A progress bar for an evaluation, shown after ``SHOWN_AFTER_S``.

    It draws only when it is called, at most once per ``SHOWN_EVERY_S``. A background thread would also draw
    while a batch is predicted and timed.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._terminal = sys.stderr.isatty()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self.begin()

    def begin_part(self, part: JobPart) -> None:
        """Sets the title to the name of one evaluation of a sweep."""
        self.close()
        if part.name:
            self.title = f"{part.name} ({part.number} of {part.count})"

    def begin(self) -> None:
        """Restarts the elapsed time for another evaluation."""
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


class LiveLine(Display):
    """A line that shows the progress of runs under load, one at a time.

    Args:
        search: Whether the runs are the probes of a search. Probes are numbered.
    """

    def __init__(self, search: bool) -> None:
        self._stream = sys.stderr
        self._shown = self._stream.isatty()
        self._search = search
        self.begin()

    def begin(self) -> None:
        """Restarts the count of runs for another job."""
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
    """Formats progress as one line; ``probe`` is the number of the probe, or 0 if there is no search."""
    what = f"probe {probe}  " if probe else ""
    if progress.target_qps:
        what += f"at {progress.target_qps:.4g} queries/s  "
    total = f"/{progress.total}" if progress.total else ""
    p99 = "" if progress.p99_ns is None else f"  p99 {progress.p99_ns / _NS_PER_MS:.1f} ms"
    return (
        f"{what}{progress.elapsed_s:5.1f} s  {progress.sent}{total} sent  "
        f"{progress.rate_qps:.1f} answers/s{p99}  backlog {progress.waiting}"
    )


def _in_notebook() -> bool:
    """Returns whether a Jupyter kernel runs this code. Does not import IPython, which is no dependency."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Area(Display):
    """An output area below a notebook cell; its HTML is updated at most once per ``_NOTEBOOK_S``."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.begin()

    def begin(self) -> None:
        """Restarts the elapsed time for another evaluation."""
        self._next = time.monotonic() + _NOTEBOOK_S

    def close(self) -> None:
        """Clears the output area."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(sys.modules["IPython"].display.HTML(""))

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _NOTEBOOK_S
        return True

    def _show(self, text: str) -> None:
        shown = sys.modules["IPython"].display.HTML(text)
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
        sys.stdout.flush()  # waits until the kernel's thread has sent it, so that it cannot disturb a batch


class _NotebookBar(_Area):
    """The progress bar of an evaluation in a notebook."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def begin_part(self, part: JobPart) -> None:
        """Sets the title to the name of one evaluation of a sweep."""
        self.close()
        if part.name:
            self.title = f"{part.name} ({part.number} of {part.count})"

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""
        if self._is_due():
            bar = f'<progress value="{progress.done}" max="{progress.total}"></progress>'
            self._show(f"{bar} {_text(self.title)}: {progress.done} of {progress.total} {progress.counted}")


class _NotebookLine(_Area):
    """The live line of a run under load in a notebook; in a search, of each probe in turn."""

    def __init__(self, search: bool) -> None:
        super().__init__()
        self._probe = 1 if search else 0
        self._elapsed_s = 0.0

    def __call__(self, progress: IssuerProgress) -> None:
        """Shows the progress."""
        if self._probe and progress.elapsed_s < self._elapsed_s:
            self._probe += 1
        self._elapsed_s = progress.elapsed_s
        if self._is_due():
            of = f' value="{progress.sent}" max="{progress.total}"' if progress.total else ""
            self._show(f"<progress{of}></progress> {_text(line_of(progress, self._probe))}")


def _text(text: str) -> str:
    return escape(printable(text))
