"""The progress of jobs: on a terminal's stderr, in a notebook, and for other processes.

A terminal or a notebook shows a bar for an evaluation and a line for a load test. Other processes, such as
the page's server, read one small file per job in the data directory. The measuring process holds a lock on
its file. The operating system releases the lock however the process ends, so a file without a lock is
stale and is ignored. The process writes the file only when it reports progress, at most once a second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from inferometer.agent.files import is_locked, lock
from inferometer.evaluators.jobs.job import Job, JobPart, JobStart, Progress
from inferometer.manifests.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


SHOWN_AFTER_S = 2.0
SHOWN_EVERY_S = 0.25
_NOTEBOOK_S = 1.0  # a message to a notebook takes up to a millisecond and delays the measurement


class Display:
    """Shows the progress of evaluations, one at a time."""

    def begin_part(self, part: JobPart) -> None:
        """Receives the evaluation that begins, if a job has several."""

    def begin(self) -> None:
        """Restarts the elapsed time for another evaluation."""

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""

    def close(self) -> None:
        """Removes the display."""


def display_of(job: Job[Any]) -> Display:
    """Returns the progress display for a job: HTML in a notebook, and text on a terminal otherwise."""
    # IPython is not a dependency, but a Jupyter kernel has imported it
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return _NotebookBar(job.title)
    return ProgressBar(job.title) if job.has_total else LiveLine()


class _Titled(Display):
    """A display whose title is that of the job, or the name of one evaluation of a sweep."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.begin()

    def begin_part(self, part: JobPart) -> None:
        self.close()
        if part.name:
            self.title = f"{part.name} ({part.number} of {part.count})"


class ProgressBar(_Titled):
    """A progress bar for an evaluation, shown after ``SHOWN_AFTER_S``.

    It draws only when it is called, at most once per ``SHOWN_EVERY_S``. A background thread would also draw
    while a batch is predicted and timed.
    """

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._terminal = sys.stderr.isatty()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

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
    """A line that shows the progress of runs under load, one at a time."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._shown = self._stream.isatty()

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""
        if self._shown:
            line = str(progress)[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line}\033[K")
            self._stream.flush()

    def close(self) -> None:
        """Removes the line."""
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


class _NotebookBar(_Titled):
    """The progress below a notebook cell; its HTML is updated at most once per ``_NOTEBOOK_S``."""

    _handle: Any = None

    def begin(self) -> None:
        self._next = time.monotonic() + _NOTEBOOK_S

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _NOTEBOOK_S
        of = f' value="{progress.done}" max="{progress.total}"' if progress.total else ""
        text = escape(printable(f"{self.title}: {progress}"))
        display = sys.modules["IPython"].display
        shown = display.HTML(f"<progress{of}></progress> {text}")
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
        sys.stdout.flush()  # waits until the kernel's thread has sent it, so that it cannot disturb a batch

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(sys.modules["IPython"].display.HTML(""))


FOLDER = "running"
"""The folder of the progress files, within the data directory."""
_EVERY_S = 1.0
_MOST_BYTES = 16_384
_ENDING = ".json"


class RunningFile:
    """Publishes the progress of a job to other processes. Does nothing if the file cannot be written.

    Without a data directory, nothing is published either.
    """

    def __init__(self, data_directory: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = None if data_directory is None else data_directory / FOLDER
        self._clock = clock
        self._file: IO[bytes] | None = None
        self._path: Path | None = None
        self._content: dict[str, Any] = {}
        self._next_s = 0.0
        self._length = 0

    def begin(self, what: JobStart) -> None:
        """Begins another evaluation of the job."""
        system = what.system
        framework = f"{system.manifest.framework.name} {system.framework_version}".rstrip()
        self._content = {
            "title": f"{system.manifest.name} {system.manifest.version}",
            "detail": f"{framework} · {system.device} · {what.inputs}, {what.input_count} inputs",
            "work": what.work,
            "began_unix_s": time.time(),
            "done": 0,
            "total": 0,
            "text": "warming up" if what.work else "starting",
        }
        if self._folder is None:
            return
        with suppress(OSError):
            if self._file is None:
                self._create(self._folder)
            self._write()

    def __call__(self, progress: Progress) -> None:
        """Receives progress, and writes it if at least a second has passed since the last write."""
        if self._file is None or self._clock() < self._next_s:
            return
        self._content |= {"done": progress.done, "total": progress.total, "text": str(progress).strip()}
        with suppress(OSError):
            self._write()

    def close(self) -> None:
        """Removes the file, and the folder if it is then empty."""
        if self._file is not None and self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._path.parent.rmdir()
        self._file = None

    def _create(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in _read(folder, remove=True):
            pass
        name = uuid.uuid4().hex
        partial, self._path = folder / f".{name}", folder / f"{name}{_ENDING}"
        try:
            try:
                file = lock(partial, mode=0o600)
            except FileNotFoundError:  # another process has removed the empty folder
                folder.mkdir(parents=True, exist_ok=True)
                file = lock(partial, mode=0o600)
            self._file, self._length = file, 0
            partial.rename(self._path)
        except BaseException:
            partial.unlink(missing_ok=True)
            self.close()
            raise

    def _write(self) -> None:
        """Overwrites the content in a single system call, which wakes no other process."""
        self._next_s = self._clock() + _EVERY_S
        text = json.dumps(self._content).encode("ascii")[:_MOST_BYTES]
        if self._file is not None:
            os.pwrite(self._file.fileno(), text.ljust(self._length), 0)
        self._length = max(self._length, len(text))


@dataclass(frozen=True, slots=True)
class Running:
    """A running job.

    ``detail`` is the framework, device and inputs; ``work`` describes the load, and is empty for a
    batch-by-batch evaluation. ``done`` of ``total`` inputs, queries or other units are completed; a total of
    0 is unknown.
    """

    title: str
    detail: str
    work: str
    began_unix_s: float
    done: int
    total: int
    text: str


def running_now(data_directory: Path) -> list[Running]:
    """Returns the jobs that run on this machine and use this data directory, ordered by start time."""
    found = []
    for content in _read(data_directory / FOLDER, remove=False):
        # a file that is read during a write is complete at the next reading
        with suppress(ValueError, TypeError, RecursionError):
            known = json.loads(content)
            found.append(Running(**{name: known[name] for name in Running.__slots__ if name in known}))
    return sorted(found, key=lambda each: each.began_unix_s)


def _read(folder: Path, *, remove: bool) -> Iterator[bytes]:
    """Yields the content of each locked progress file; with ``remove``, deletes the unlocked files."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.suffix != _ENDING:
                continue
            with suppress(OSError), path.open("rb") as file:
                if is_locked(file):
                    yield file.read(_MOST_BYTES)
                elif remove:
                    path.unlink()
