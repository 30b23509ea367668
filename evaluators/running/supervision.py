"""The supervision of linked processes: their messages, one stop for all, and the first cause of a failure."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from inferometer.evaluators.running.linked_process import LinkedProcess, LinkedTask, Sent
from inferometer.evaluators.running.resources import JobCallbacks
from inferometer.manifests.errors import InferometerError, RankLostError

_POLL_S = 0.2
_CAUSE_S = 5.0
"""How long to wait for the cause after a process has failed because it lost another one."""
_MOST_END_S = 20.0
_MOST_START_S = 120.0
_Found = TypeVar("_Found")


def in_processes(
    tasks: Sequence[LinkedTask[_Found]],
    callbacks: JobCallbacks[Any],
    lost: type[InferometerError],
    beside: Sequence[LinkedTask[Any]] = (),
    most_silent_s: float = math.inf,
) -> Generator[_Found, None, None]:
    """Runs each task in a fresh Python process, and yields its results, such as evaluations, as they arrive.

    Once ``callbacks.stop_requested`` returns True, all tasks get True from the same call, counted from the
    start of each, so that tasks that work in step stop at the same step. Closing the iterator ends the
    processes at once, with their child processes; so does the end of this process.

    Args:
        tasks: What to run.
        callbacks: Called in this thread.
        lost: Raised for a process that was killed or ended early.
        beside: Companion tasks that the tasks need. They may end before or after them, but must not fail.
        most_silent_s: The time without a message after which the tasks count as lost. Until the first message
            it is at least two minutes, because a fresh process has imports to do.

    Raises:
        InferometerError: The error that a task raised. Of several, a ``RankLostError`` has the lowest
            priority.
    """
    with ExitStack() as started:
        processes = [_started(task, started) for task in (*beside, *tasks)]
        working, others = processes[len(beside) :], processes[: len(beside)]
        yield from _Supervision[_Found](working, others, callbacks, lost).found(most_silent_s)
        deadline_s = time.monotonic() + _MOST_END_S
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))


def _started(task: LinkedTask[Any], started: ExitStack) -> LinkedProcess:
    process = LinkedProcess(task)
    started.callback(process.end)
    return process


class _Supervision(Generic[_Found]):
    """The supervision of processes, until all that work are complete or one has failed."""

    def __init__(
        self,
        working: list[LinkedProcess],
        others: list[LinkedProcess],
        callbacks: JobCallbacks[Any],
        lost: type[InferometerError],
    ) -> None:
        self._working = working
        self._others = others
        self._callbacks = callbacks
        self._lost = lost
        self._stop = _StopAgreement([process for process in working if process.task.stops])
        self._failure: InferometerError | None = None
        self._first_out: LinkedProcess | None = None
        self._deadline_s = float("inf")

    def found(self, most_silent_s: float) -> Generator[_Found, None, None]:
        tell: dict[Sent, Callable[[Any], None]] = {
            Sent.STARTED: self._callbacks.on_start,
            Sent.PROGRESS: self._callbacks.on_progress,
            Sent.WARNING: self._callbacks.on_warning,
        }
        heard_s, limit_s = time.monotonic(), max(most_silent_s, _MOST_START_S)
        while self._working:
            if not self._stop.asked and self._callbacks.stop_requested():
                self._stop.ask()
            messages = list(self._messages())
            if not messages and time.monotonic() - heard_s >= limit_s:
                raise self._lost(f"{self._working[0]}: no answer within {limit_s:g} s")
            if not messages and time.monotonic() >= self._deadline_s:
                break
            for process, kind, value in messages:
                if kind in tell:
                    tell[kind](value)
                elif kind is Sent.EVALUATED:
                    yield value
                elif kind is Sent.COUNTED:
                    self._stop.counted(process, value)
                else:
                    self._ended(process, kind, value)
                heard_s, limit_s = time.monotonic(), most_silent_s
        if self._failure is not None:
            raise self._failure
        if self._working:
            raise self._lost(f"{self._first_out} ended before {self._working[0]} was complete")

    def _messages(self) -> Iterator[tuple[LinkedProcess, Sent | None, Any]]:
        """Yields the pending messages, with kind None for a process that ended without a final message."""
        running = [*self._working, *self._others]
        ready = wait([process.connection for process in running], _POLL_S)
        for process in running:
            if process.connection in ready:
                try:
                    kind, value = process.connection.recv()
                except (EOFError, OSError):  # also in the middle of a message
                    kind, value = None, None
                yield process, kind, value
            elif process.has_ended and not process.connection.poll():  # what it started holds the link open
                yield process, None, None

    def _ended(self, process: LinkedProcess, kind: Sent | None, error: InferometerError | None) -> None:
        """Handles the final message of a process."""
        beside = process in self._others
        (self._others if beside else self._working).remove(process)
        self._stop.left(process)
        if kind is Sent.ENDED:
            if beside and self._working:  # it was told to end, and then those that told it end as well
                self._first_out = self._first_out or process
                self._end_in(_MOST_END_S)
            return
        consequence = isinstance(error, RankLostError)
        if error is None:
            code, line = process.early_end()
            error, consequence = self._lost(line), code == -signal.SIGABRT
        if not consequence:
            raise error
        self._failure = self._failure or error  # unless its cause shows in time
        self._end_in(_CAUSE_S)

    def _end_in(self, seconds: float) -> None:
        self._deadline_s = min(self._deadline_s, time.monotonic() + seconds)


class _StopAgreement:
    """The agreement of processes on the check of ``stop_requested`` at which all of them stop.

    Each process reports how many checks it has made, and blocks at the next one. No process has passed the
    highest count, so all stop at the check after it: processes that wait for the others within a step still
    have to reach that check.
    """

    def __init__(self, processes: list[LinkedProcess]) -> None:
        self.asked = False
        self._processes = processes
        self._counts: dict[LinkedProcess, int] = {}

    def ask(self) -> None:
        self.asked = True
        for process in self._processes:
            process.ask(None)

    def counted(self, process: LinkedProcess, calls: int) -> None:
        self._counts[process] = calls
        self._tell()

    def left(self, process: LinkedProcess) -> None:
        if process in self._processes:
            self._processes.remove(process)
            self._tell()

    def _tell(self) -> None:
        if self.asked and self._counts and all(process in self._counts for process in self._processes):
            stop_at = max(self._counts.values()) + 1
            for process in self._processes:
                process.ask(stop_at)
