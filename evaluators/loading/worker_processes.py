"""Worker processes of a loader: tasks go through a pipe to each, and samples come back in shared memory."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import signal
import time
from contextlib import suppress
from ctypes import Array, c_int64, c_ubyte
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from typing_extensions import Self

from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.loading.samples import FilledRows, Rows, SampleFiller, Task
from inferometer.evaluators.loading.workers import Workers
from inferometer.manifests.errors import ConfigurationError, DatasetError, InferometerError, one_line
from inferometer.manifests.inputs import InputParameters

_CONTEXT = multiprocessing.get_context("spawn")
_GOVERNED = (signal.SIGINT, signal.SIGTERM)
_MOST_END_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """Rows in memory that is shared with child processes, and that has no name.

    No process has to delete it: it is gone with the last one that uses it, however that ends.

    Attributes:
        places: The memory of ``Rows.places``.
        inputs: The memory of ``Rows.inputs``.
        cancelled_below: The number of the first task that is not cancelled.
    """

    places: Array[c_int64]
    inputs: Array[c_ubyte]
    cancelled_below: c_int64

    @classmethod
    def of(cls, rows: int, parameters: InputParameters) -> Self:
        """Allocates rows for inputs of a model.

        Raises:
            DatasetError: There is not enough memory.
        """
        size = rows * math.prod(parameters.dimensions) * np.dtype(parameters.element_type.value).itemsize
        try:
            places, inputs = _CONTEXT.RawArray(c_int64, rows), _CONTEXT.RawArray(c_ubyte, size)
            return cls(places, inputs, _CONTEXT.RawValue(c_int64, 0))
        except (OSError, MemoryError) as error:
            raise DatasetError(
                f"{size} bytes to share with worker processes cannot be had: {one_line(error)}; use threads, "
                "or a smaller batch or prefetch"
            ) from error

    def view(self, parameters: InputParameters) -> Rows:
        """Returns the memory as arrays."""
        inputs = np.frombuffer(memoryview(self.inputs), np.dtype(parameters.element_type.value))
        return Rows(
            np.frombuffer(memoryview(self.places), np.int64), inputs.reshape(-1, *parameters.dimensions)
        )


@dataclass(eq=False)
class _Worker:
    """One process; ``waiting`` counts its tasks that have not come back."""

    process: SpawnProcess
    connection: Connection
    waiting: int = 0


class WorkerProcesses(Workers):
    """Fresh Python processes, each of which opens the dataset anew.

    They ignore SIGINT and SIGTERM, which a terminal or a queue sends to all processes of a command: the
    caller decides when they end. They also end when the caller's process is gone.

    Args:
        dataset: The samples; pickle passes it on.
        parameters: The model's input.
        rows: The buffers.
        count: The number of processes.

    Raises:
        ConfigurationError: The dataset cannot be passed to another process, or this one may have no children.
        DatasetError: A process cannot open the dataset, or ended.
    """

    def __init__(self, dataset: Dataset, parameters: InputParameters, rows: SharedRows, count: int) -> None:
        if multiprocessing.current_process().daemon:
            raise ConfigurationError("a daemonic process may not start worker processes; use threads")
        opener = _pickled(dataset, parameters)
        self._cancelled_below = rows.cancelled_below
        self._results: dict[int, FilledRows | InferometerError] = {}
        self._workers: list[_Worker] = []
        # runs at the exit of the interpreter too, before multiprocessing waits for children
        self._at_exit = Finalize(self, _end, (self._workers, rows.cancelled_below), exitpriority=10)
        self._last = -1
        try:
            for _ in range(count):
                self._workers.append(_started(opener, rows))
            for worker in self._workers:
                if (failure := self._receive(worker)) is not None:
                    raise failure
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes."""
        return tuple(worker.process.pid for worker in self._workers if worker.process.pid is not None)

    def submit(self, task: Task) -> None:
        """Sends the task to the process with the fewest tasks."""
        self._take_what_is_there()
        worker = min(self._workers, key=lambda each: each.waiting)
        try:
            worker.connection.send(task)
        except OSError as error:
            raise _lost(worker) from error
        worker.waiting += 1
        self._last = task.number

    def result(self, task: Task) -> FilledRows:
        """Waits for the task."""
        while task.number not in self._results:
            self._take_what_is_there(timeout_s=None)
        found = self._results.pop(task.number)
        if isinstance(found, InferometerError):
            raise found
        return found

    def cancel(self) -> None:
        """Tells the processes to skip what waits, and waits for the samples in progress."""
        self._cancelled_below.value = self._last + 1
        while any(worker.waiting for worker in self._workers):
            self._take_what_is_there(timeout_s=None)
        self._results.clear()

    def close(self) -> None:
        """Ends the processes; what interrupts it is made up for at the exit of the interpreter."""
        _end(self._workers, self._cancelled_below)
        self._at_exit.cancel()

    def _take_what_is_there(self, timeout_s: float | None = 0.0) -> None:
        """Takes the results that have come; without a timeout, waits for one."""
        ready = wait([worker.connection for worker in self._workers], timeout_s)
        for worker in (each for each in self._workers if each.connection in ready):
            number, filled = self._receive(worker)
            worker.waiting -= 1
            self._results[number] = filled

    def _receive(self, worker: _Worker) -> Any:
        """Receives a message; raises DatasetError if the process has ended."""
        try:
            return worker.connection.recv()
        except (EOFError, OSError) as error:  # also in the middle of a message
            raise _lost(worker) from error


def _pickled(dataset: Dataset, parameters: InputParameters) -> bytes:
    try:
        return pickle.dumps((dataset, parameters))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"dataset {dataset.identity.name} cannot be passed to worker processes: {one_line(error)}; "
            "use threads"
        ) from error


def _started(opener: bytes, rows: SharedRows) -> _Worker:
    """Starts a process that does not notice a signal before it can ignore it."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run, args=(opener, rows, theirs), name="load", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GOVERNED)
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _Worker(process, ours)


def _lost(worker: _Worker) -> DatasetError:
    worker.process.join(_MOST_END_S)
    code = worker.process.exitcode
    if code is None or code >= 0:
        return DatasetError(f"a worker process of the loader ended with code {code} before its work was done")
    cause = "; the kernel does that where memory runs out" if -code == signal.SIGKILL else ""
    return DatasetError(f"a worker process of the loader was ended by {signal.Signals(-code).name}{cause}")


def _end(workers: list[_Worker], cancelled_below: c_int64) -> None:
    """Ends processes, and kills those that do not end by themselves."""
    cancelled_below.value = np.iinfo(np.int64).max
    for worker in workers:
        worker.connection.close()
    deadline_s = time.monotonic() + _MOST_END_S
    for worker in workers:
        worker.process.join(max(deadline_s - time.monotonic(), 0.0))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()


def _run(opener: bytes, rows: SharedRows, connection: Connection) -> None:
    """The whole life of a worker process: it ends when the caller closes the connection, or is gone."""
    for number in _GOVERNED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GOVERNED)
    answer: Any = None
    try:
        dataset, parameters = pickle.loads(opener)  # noqa: S301 - from the caller of this process
        filler = SampleFiller(dataset, parameters, rows.view(parameters))
    except InferometerError as error:
        answer = error
    while _sent(connection, answer) and (task := _received(connection)) is not None:
        answer = (task.number, _filled(filler, task, rows.cancelled_below))


def _filled(filler: SampleFiller, task: Task, cancelled_below: c_int64) -> FilledRows | InferometerError:
    try:
        return filler.fill(task, lambda: task.number < cancelled_below.value)
    except InferometerError as error:
        return error


def _sent(connection: Connection, message: Any) -> bool:
    """Sends a message; returns False if nobody is there."""
    with suppress(OSError):
        connection.send(message)
        return True
    return False


def _received(connection: Connection) -> Task | None:
    """Waits for a task; returns None if nobody is there."""
    with suppress(EOFError, OSError):
        task: Task = connection.recv()
        return task
    return None
