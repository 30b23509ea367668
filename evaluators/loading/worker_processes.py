"""Worker processes of a loader: tasks go through a pipe to each, and samples come back in shared memory."""

from __future__ import annotations

import pickle
from ctypes import c_int64
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.loading.child_process import (
    ChildProcess,
    end_children,
    received,
    sent,
    start_child,
)
from inferometer.evaluators.loading.samples import FilledRows, SampleFiller, Task
from inferometer.evaluators.loading.shared_rows import SharedRows
from inferometer.evaluators.loading.workers import Workers
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line
from inferometer.manifests.inputs import InputParameters

_NAME = "a worker process of the loader"


class WorkerProcesses(Workers):
    """Fresh Python processes, each of which opens the dataset anew.

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
        opener = _pickled(dataset, parameters)
        self._cancelled_below = rows.cancelled_below
        self._results: dict[int, FilledRows | InferometerError] = {}
        self._workers: list[ChildProcess] = []
        # runs at the exit of the interpreter too, before multiprocessing waits for children
        self._at_exit = Finalize(self, _end, (self._workers, rows.cancelled_below), exitpriority=10)
        self._last = -1
        try:
            for _ in range(count):
                self._workers.append(start_child(_NAME, _run, opener, rows))
            for worker in self._workers:
                if (failure := worker.receive()) is not None:
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
        worker.send(task)
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
        """Receives the available results; without a timeout, waits for one."""
        ready = wait([worker.connection for worker in self._workers], timeout_s)
        for worker in (each for each in self._workers if each.connection in ready):
            number, filled = worker.receive()
            worker.waiting -= 1
            self._results[number] = filled


def _pickled(dataset: Dataset, parameters: InputParameters) -> bytes:
    try:
        return pickle.dumps((dataset, parameters))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"dataset {dataset.identity.name} cannot be passed to worker processes: {one_line(error)}; "
            "use threads"
        ) from error


def _end(workers: list[ChildProcess], cancelled_below: c_int64) -> None:
    cancelled_below.value = np.iinfo(np.int64).max
    end_children(workers)
    workers.clear()


def _run(opener: bytes, rows: SharedRows, connection: Connection) -> None:
    """Runs a worker process until the caller closes the connection or is gone."""
    answer: Any = None
    try:
        dataset, parameters = pickle.loads(opener)  # noqa: S301 - from the caller of this process
        filler = SampleFiller(dataset, parameters, rows.view(parameters))
    except InferometerError as error:
        answer = error
    while sent(connection, answer) and (task := received(connection)) is not None:
        answer = (task.number, _filled(filler, task, rows.cancelled_below))


def _filled(filler: SampleFiller, task: Task, cancelled_below: c_int64) -> FilledRows | InferometerError:
    try:
        return filler.fill(task, lambda: task.number < cancelled_below.value)
    except InferometerError as error:
        return error
