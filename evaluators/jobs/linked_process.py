"""Fresh Python processes: the link to each, their supervision, and evaluations in them.

The link receives the messages of a process (progress, warnings and errors) and ends it when this process
ends. The supervision stops all processes together, and finds the original cause of a failure.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeAlias, TypeVar

from inferometer.agent.child_process import start_child
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.evaluation import Evaluation, M, Status
from inferometer.evaluators.jobs.job import JobCallbacks, JobPart, Progress
from inferometer.manifests.errors import (
    EvaluationFailed,
    EvaluationInterrupted,
    InferometerError,
    RankLostError,
)

_PROGRESS_EVERY_S = 0.25
_Found = TypeVar("_Found")


class Sent(Enum):
    """The kinds of messages that a linked process sends."""

    STARTED = auto()
    PROGRESS = auto()
    WARNING = auto()
    EVALUATED = auto()
    COUNTED = auto()
    FAILED = auto()
    ENDED = auto()


LinkedWork: TypeAlias = Callable[[JobCallbacks], Iterable[_Found]]
"""A function that yields results. It must be picklable: a module-level function with bound arguments."""


@dataclass(frozen=True, slots=True)
class LinkedTask(Generic[_Found]):
    """The task of a linked process.

    Attributes:
        name: The name of the process in messages, such as ``rank 1 of 2``.
        tells: Whether the process sends progress, warnings and results as well as errors.
        stops: Whether the process takes part in the agreement on when to stop.
    """

    name: str
    work: LinkedWork[_Found]
    tells: bool = True
    stops: bool = True


class LinkedProcess:
    """The parent's end of the link to a fresh Python process, which starts at once.

    The process leads a process group, so its child processes end with it. It ignores SIGINT and SIGTERM:
    ``ask`` stops it and ``close`` kills it. When the parent process ends, even by SIGKILL, it ends itself.
    """

    def __init__(self, task: LinkedTask[Any]) -> None:
        self.task = task
        self.child = start_child(task.name, _live, task, daemon=False)  # it may start a loader's processes
        self.connection = self.child.connection
        atexit.register(self.close)  # runs before multiprocessing waits for the process

    def __str__(self) -> str:
        return self.task.name

    def ask(self, stop_at: int | None) -> None:
        """Tells the process the check at which to stop; None asks how many checks it has made."""
        with suppress(OSError):  # it has ended, which the next look at the connection shows
            self.connection.send(stop_at)

    def early_end(self) -> tuple[int, str]:
        """Ends a process whose link is closed; returns its exit code and the message for it."""
        line = self.child.early_end()
        self.close()
        return self.child.process.exitcode or 0, line

    def close(self) -> None:
        """Kills the process and its child processes if they still run; calling it again does nothing."""
        atexit.unregister(self.close)
        process = self.child.process
        pid = process.pid
        if not self.connection.closed and pid is not None:
            self.connection.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # also what a process that has ended left behind
            if not self.child.has_ended:
                process.kill()  # one that did not yet lead its group
        process.join()


def _live(task: LinkedTask[Any], connection: Connection) -> None:
    """Runs the task in the fresh process, from start to end."""
    with suppress(OSError):
        os.setpgid(0, 0)
    link = _Link(connection)
    try:
        for found in task.work(link.callbacks(task.tells)):
            if task.tells:
                link.send(Sent.EVALUATED, found)
    except InferometerError as error:
        link.send(Sent.FAILED, error)
    else:
        link.send(Sent.ENDED, None)


class _Link:
    """The fresh process's end of the link; the process exits at once if the other end closes.

    A separate thread listens, because the work may hang in a framework that waits for a dead process.
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

    def callbacks(self, tells: bool) -> JobCallbacks:
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

    def on_progress(self, progress: Progress) -> None:
        """Sends only some of the progress: waking the other process for each batch would disturb the next."""
        if time.monotonic() >= self._next_s or progress.done >= progress.total:
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            self.send(Sent.PROGRESS, progress)

    def stop_requested(self) -> bool:
        """Returns whether to stop at this check; blocks while the processes agree on the check to stop at."""
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


_MESSAGE_POLL_S = 0.2
_CAUSE_S = 5.0
"""How long to wait for the cause after a process has failed because another one ended."""
_MOST_END_S = 20.0
_MOST_START_S = 120.0


def in_processes(
    tasks: Sequence[LinkedTask[_Found]],
    callbacks: JobCallbacks,
    lost: type[InferometerError],
    beside: Sequence[LinkedTask[Any]] = (),
    most_silent_s: float = math.inf,
) -> Generator[_Found, None, None]:
    """Runs each task in a fresh Python process, and yields its results, such as evaluations, as they arrive.

    Once ``callbacks.stop_requested`` returns True, the nth call, for the same n, is the first to return True
    in every task, so that tasks that work in step stop at the same step. Closing the iterator ends the
    processes at once, with their child processes; so does the end of this process.

    Args:
        tasks: The tasks to run.
        callbacks: Called in this thread.
        lost: Raised for a process that was killed or ended early.
        beside: Companion tasks that ``tasks`` need. They may end before or after these, but must not fail.
        most_silent_s: The time without a message after which the tasks are considered lost. Until the first
            message it is at least two minutes, because a fresh process has to import modules.

    Raises:
        InferometerError: The error that a task raised. If there are several, a ``RankLostError`` has the
            lowest priority.
    """
    with ExitStack() as started:
        processes = [started.enter_context(closing(LinkedProcess(task))) for task in (*beside, *tasks)]
        working, others = processes[len(beside) :], processes[: len(beside)]
        yield from _Supervision[_Found](working, others, callbacks, lost).found(most_silent_s)
        deadline_s = time.monotonic() + _MOST_END_S
        for process in processes:
            process.child.join(deadline_s - time.monotonic())


class _Supervision(Generic[_Found]):
    """The supervision of processes, until all working processes have completed or one has failed."""

    def __init__(
        self,
        working: list[LinkedProcess],
        others: list[LinkedProcess],
        callbacks: JobCallbacks,
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
        ready = wait([process.connection for process in running], _MESSAGE_POLL_S)
        for process in running:
            if process.connection in ready:
                try:
                    kind, value = process.connection.recv()
                except (EOFError, OSError):  # also in the middle of a message
                    kind, value = None, None
                yield process, kind, value
            elif process.child.has_ended and not process.connection.poll():
                yield process, None, None  # what it started holds the link open

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
    highest count, so all stop at the check that follows it: processes that wait for others within a step have
    yet to reach that check.
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


Work: TypeAlias = Callable[[JobCallbacks], Generator[Evaluation[M], None, None]]
"""A function that runs the evaluation. It must be picklable: a module-level function with bound arguments."""


def in_fresh_process(
    work: Callable[[JobCallbacks], Iterable[Evaluation[M]]], callbacks: JobCallbacks
) -> Generator[Evaluation[M], None, None]:
    """Runs ``work`` in a fresh Python process, and yields its evaluations as soon as each is complete.

    The process ignores SIGINT and SIGTERM; stop requests reach it through ``callbacks.stop_requested``.
    Closing the iterator ends the process at once.

    Raises:
        EvaluationFailed: The process was killed or ended early.
        InferometerError: Raised by ``work``.
    """
    task = LinkedTask("the process of the evaluation", work)
    return in_processes([task], callbacks, EvaluationFailed)


def in_turn(
    works: Sequence[tuple[Work[M], TraceLevel | None]],
    callbacks: JobCallbacks,
    *,
    fresh: bool,
    group_id: str | None,
    numbered: bool,
) -> Generator[Evaluation[M], None, None]:
    """Runs the works one after the other, and yields each evaluation as soon as it is complete.

    No evaluation follows an interrupted one. Close the iterator to end early.

    Args:
        works: Functions that yield one evaluation each (none in a rank other than 0), paired with their trace
            levels for ``JobPart``.
        callbacks: Called in this thread.
        fresh: Whether each function runs in a fresh process.
        group_id: The group id of the evaluations; None for a single one that belongs to no group.
        numbered: Whether each evaluation has the number of its function, from 1, as its ``process``.

    Raises:
        EvaluationInterrupted: A stop was requested between two evaluations.
        InferometerError: One of the works raised it, or a fresh process was killed.
    """
    for number, (work, level) in enumerate(works, start=1):
        callbacks.on_part(JobPart(number, len(works), level))
        status, stopped = Status.COMPLETE, False
        with closing(in_fresh_process(work, callbacks) if fresh else work(callbacks)) as evaluations:
            for evaluation in evaluations:
                status = evaluation.status
                stopped = callbacks.stop_requested()  # in the last batch, which leaves nothing to interrupt
                yield replace(evaluation, group_id=group_id, process=number if numbered else None)
        if status is Status.INTERRUPTED:
            return
        if stopped and number < len(works):
            raise EvaluationInterrupted(f"stopped after {number} of {len(works)} evaluations")
