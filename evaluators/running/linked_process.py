"""A fresh Python process, and the link that brings its messages here and ends it with this process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from inferometer.agent.hardware.allocator import use_allocator_of_environment
from inferometer.evaluators.loading.starting import GOVERNED, start_process
from inferometer.evaluators.running.resources import JobCallbacks
from inferometer.manifests.errors import InferometerError

_PROGRESS_EVERY_S = 0.25
_MOST_EXIT_S = 5.0
_POLL_S = 0.05
_Found = TypeVar("_Found")


class Sent(Enum):
    """The messages of a linked process."""

    STARTED = auto()
    PROGRESS = auto()
    WARNING = auto()
    EVALUATED = auto()
    COUNTED = auto()
    FAILED = auto()
    ENDED = auto()


class CountedProgress(Protocol):
    """Progress towards a known total."""

    @property
    def done(self) -> int:
        """The amount of work that is done."""
        ...

    @property
    def total(self) -> int:
        """The total amount of work."""
        ...


LinkedWork: TypeAlias = Callable[[JobCallbacks[Any]], Iterable[_Found]]
"""Yields results. It must be picklable, so it is a module-level function with its arguments."""


@dataclass(frozen=True, slots=True)
class LinkedTask(Generic[_Found]):
    """The task of a linked process.

    Attributes:
        name: The name of the process in messages, such as ``rank 1 of 2``.
        work: The work that it runs.
        tells: Whether it sends its progress, warnings and results, and not only its errors.
        stops: Whether it takes part in the agreement on where to stop.
    """

    name: str
    work: LinkedWork[_Found]
    tells: bool = True
    stops: bool = True


class LinkedProcess:
    """This end of a fresh Python process, which starts at once.

    The process leads a process group, so that its child processes end with it. It ignores SIGINT and SIGTERM:
    ``ask`` stops it and ``end`` kills it. When the parent process ends, even by SIGKILL, it ends itself.
    """

    def __init__(self, task: LinkedTask[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = task
        self.connection, theirs = context.Pipe()
        # A daemon could start no processes, such as those of a loader; its end is ``end``'s concern.
        self._process = context.Process(target=_live, args=(task, theirs), daemon=False)
        try:
            start_process(self._process)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        atexit.register(self.end)  # runs before multiprocessing waits for the process

    def __str__(self) -> str:
        return self.task.name

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; messages may still be in the link."""
        return self._process.exitcode is not None

    def ask(self, stop_at: int | None) -> None:
        """Tells the process at which check to stop; with None, asks how many checks it has made."""
        with suppress(OSError):  # it has ended, which the next look at the connection shows
            self.connection.send(stop_at)

    def join(self, timeout_s: float) -> None:
        """Waits until the process has ended, or for ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended and (left_s := deadline_s - time.monotonic()) > 0:
            wait([self._process.sentinel], min(left_s, _POLL_S))  # what it started holds the sentinel open

    def early_end(self) -> tuple[int, str]:
        """Waits for the end of a process whose link is closed; returns its exit code and the message."""
        self.join(_MOST_EXIT_S)
        self.end()
        code = self._process.exitcode or 0
        if code >= 0:
            return code, f"{self} ended with code {code} before it was complete"
        name = signal.Signals(-code).name
        cause = "; the kernel does that where memory runs out" if -code == signal.SIGKILL else ""
        return code, f"{self} was ended by {name} before it was complete{cause}"

    def end(self) -> None:
        """Kills the process and its child processes if they still run; calling it again does nothing."""
        atexit.unregister(self.end)
        pid = self._process.pid
        if not self.connection.closed and pid is not None:
            self.connection.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # also what a process that has ended left behind
            if not self.has_ended:
                self._process.kill()  # one that did not yet lead its group
        self._process.join()


def _live(task: LinkedTask[Any], connection: Connection) -> None:
    """Runs the task in the fresh process, from its start to its end."""
    for number in GOVERNED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GOVERNED)
    with suppress(OSError):
        os.setpgid(0, 0)
    link = _Link(connection)
    try:
        use_allocator_of_environment()
        for found in task.work(link.callbacks(task.tells)):
            if task.tells:
                link.send(Sent.EVALUATED, found)
    except InferometerError as error:
        link.send(Sent.FAILED, error)
    else:
        link.send(Sent.ENDED, None)


class _Link:
    """The end of the connection in the fresh process, which exits at once if the other end closes.

    A thread listens, because work may hang in a framework that waits for a lost process.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._calls = 0
        self._held = False
        self._stop_at: int | None = None
        self._next_s = 0.0
        threading.Thread(target=self._listen, name="link", daemon=True).start()

    def callbacks(self, tells: bool) -> JobCallbacks[Any]:
        if not tells:
            return JobCallbacks(stop_requested=self.stop_requested, agreed=True)
        return JobCallbacks(
            on_start=lambda start: self.send(Sent.STARTED, start),
            on_progress=self.on_progress,
            on_warning=lambda line: self.send(Sent.WARNING, line),
            stop_requested=self.stop_requested,
            agreed=True,
        )

    def send(self, kind: Sent, value: Any) -> None:
        try:
            with self._sending:
                self._connection.send((kind, value))
        except OSError:
            _end_group()

    def on_progress(self, progress: CountedProgress) -> None:
        """Sends some of the progress: waking the other process for each batch would disturb the next one."""
        if time.monotonic() >= self._next_s or progress.done >= progress.total:
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            self.send(Sent.PROGRESS, progress)

    def stop_requested(self) -> bool:
        """Returns whether to stop at this check; blocks while the processes agree at which check to stop."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._calls += 1
            return self._stop_at is not None and self._calls >= self._stop_at

    def _listen(self) -> None:
        while True:
            try:
                stop_at = self._connection.recv()
            except (EOFError, OSError):
                _end_group()
            with self._changed:
                self._held = stop_at is None
                self._stop_at = stop_at
                self._changed.notify_all()
                calls = self._calls
            if stop_at is None:
                self.send(Sent.COUNTED, calls)


def _end_group() -> None:
    """Kills this process and its child processes."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
