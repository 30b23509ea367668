"""Evaluations in a fresh Python process, whose progress, warnings and errors arrive here."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.manifests.errors import EvaluationFailed, InferometerError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

Work: TypeAlias = Callable[[JobCallbacks[Progress]], Iterable[Evaluation[BatchMeasurement]]]
"""Evaluates; pickle can pass it on, so that it is a function of a module with its arguments."""
_STARTED, _PROGRESS, _WARNING, _EVALUATED, _FAILED, _ENDED = range(6)
_POLL_S = 0.2
_PROGRESS_EVERY_S = 0.25
_MOST_END_S = 30.0
_GOVERNED = (signal.SIGINT, signal.SIGTERM)


def in_fresh_process(
    work: Work, callbacks: JobCallbacks[Progress]
) -> Generator[Evaluation[BatchMeasurement], None, None]:
    """Runs ``work`` in a fresh Python process, and yields its evaluations as soon as each is complete.

    The process ignores SIGINT and SIGTERM: ``callbacks.stop_requested`` is passed on to it. Closing the
    iterator ends the process at once.

    Raises:
        EvaluationFailed: The process was killed, or ended early.
        InferometerError: What ``work`` raised.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(work, theirs), daemon=True)
    with closing(ours):
        _start(process)
        theirs.close()
        try:
            yield from _evaluations(ours, process, callbacks)
            process.join(_MOST_END_S)
        finally:
            if process.is_alive():
                process.kill()
            process.join()


def _start(process: SpawnProcess) -> None:
    """Starts a process that does not notice a signal before it can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GOVERNED)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _evaluations(
    connection: Connection, process: SpawnProcess, callbacks: JobCallbacks[Progress]
) -> Generator[Evaluation[BatchMeasurement], None, None]:
    asked = False
    while True:
        while not connection.poll(_POLL_S):
            if not asked and callbacks.stop_requested():
                asked = True
                with suppress(OSError):  # it has ended, which the next look at the connection shows
                    connection.send(None)
        try:
            kind, value = connection.recv()
        except (EOFError, OSError) as error:  # also in the middle of a message
            process.join()
            raise EvaluationFailed(_ended_early(process.exitcode or 0)) from error
        if kind == _STARTED:
            callbacks.on_start(value)
        elif kind == _PROGRESS:
            callbacks.on_progress(value)
        elif kind == _WARNING:
            callbacks.on_warning(value)
        elif kind == _EVALUATED:
            yield value
        elif kind == _FAILED:
            raise value
        else:
            return


def _ended_early(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process of the evaluation ended with code {exit_code} before it was complete"
    name = signal.Signals(-exit_code).name
    cause = "; the kernel does that where memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"the process of the evaluation was ended by {name} before it was complete{cause}"


def _run(work: Work, connection: Connection) -> None:
    """The whole life of the process."""
    for number in _GOVERNED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GOVERNED)
    link = _Link(connection)
    callbacks = JobCallbacks(
        on_start=lambda start: link.send(_STARTED, start),
        on_progress=link.on_progress,
        on_warning=lambda line: link.send(_WARNING, line),
        stop_requested=link.stop_requested,
    )
    try:
        for evaluation in work(callbacks):
            link.send(_EVALUATED, evaluation)
    except InferometerError as error:
        link.send(_FAILED, error)
    else:
        link.send(_ENDED, None)


class _Link:
    """The end of the connection in the fresh process. Without the other end, the process ends at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stop = False
        self._next_s = 0.0

    def send(self, kind: int, value: Any) -> None:
        try:
            self._connection.send((kind, value))
        except OSError:
            os._exit(1)

    def on_progress(self, progress: Progress) -> None:
        """Passes on some: to wake the other process after each batch would disturb the next one."""
        if time.monotonic() >= self._next_s or progress.done >= progress.total:
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            self.send(_PROGRESS, progress)

    def stop_requested(self) -> bool:
        if not self._stop and self._connection.poll():
            try:
                self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            self._stop = True
        return self._stop
