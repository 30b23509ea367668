"""The workers of a loader, which read and preprocess samples into the rows of a buffer.

They are threads of this process, the caller's own thread, or processes: each process receives tasks through a
pipe, and returns samples in shared memory.
"""

from __future__ import annotations

import math
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from ctypes import Array, c_int64, c_ubyte
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from inferometer.agent.child_process import CONTEXT, ChildProcess, end_children, received, sent, start_child
from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.agent.preprocessing.inputs import dtype_of, size_of
from inferometer.agent.preprocessing.preprocessor import Preprocessor, preprocessor_of
from inferometer.evaluators.datasets.base import Dataset
from inferometer.manifests.errors import ConfigurationError, InferometerError, InputError, one_line
from inferometer.manifests.inputs import InputParameters


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The buffers of a loader; each row is for one sample.

    Attributes:
        places: int64, (rows,): the index of the sample in the dataset.
        inputs: ``(rows, *dimensions)``, of the model's element type.
    """

    places: NDArray[np.int64]
    inputs: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Task:
    """The rows that a worker is to fill; ``number`` increases with each task of a loader."""

    number: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class FilledRows:
    """The result of a task: the rows that a worker filled.

    Attributes:
        labels: The class of each sample that was loaded, in order; None if it is unknown.
        failed: The rows that were not filled, counted from the task's first row, each with its failure.
        read_ns: The time to read, summed over the samples.
        preprocess_ns: The time to decode and preprocess, summed over the samples.
        read_bytes: The bytes of the samples as they were read.
    """

    labels: tuple[str | None, ...] = ()
    failed: tuple[tuple[int, InputFailure], ...] = ()
    read_ns: int = 0
    preprocess_ns: int = 0
    read_bytes: int = 0


class SampleFiller:
    """Reads samples, and preprocesses them into rows. Thread-safe for different rows.

    Args:
        dataset: The samples.
        parameters: The model's input.
        rows: The buffers.
    """

    def __init__(self, dataset: Dataset, parameters: InputParameters, rows: Rows) -> None:
        self._dataset = dataset
        self._preprocessor: Preprocessor = preprocessor_of(parameters)
        self._rows = rows

    def fill(self, task: Task, cancelled: Callable[[], bool] = lambda: False) -> FilledRows:
        """Fills the rows of a task, or fewer once ``cancelled`` returns True."""
        labels: list[str | None] = []
        failed: list[tuple[int, InputFailure]] = []
        read_ns = preprocess_ns = read_bytes = 0
        for number in range(task.rows):
            if cancelled():
                break
            row = task.first_row + number
            place = int(self._rows.places[row])
            name, stage = str(place), Stage.READ
            begin_ns = middle_ns = time.perf_counter_ns()
            try:
                sample = self._dataset.sample(place)
                name = sample.id
                payload = sample.read()
                stage, middle_ns = Stage.PREPROCESS, time.perf_counter_ns()
                read_bytes += size_of(payload)
                self._preprocessor.write(payload, self._rows.inputs[row])
            except InputError as error:
                failed.append((number, InputFailure(name, stage, str(error))))
            else:
                labels.append(sample.label)
            end_ns = time.perf_counter_ns()
            if stage is Stage.READ:
                middle_ns = end_ns
            read_ns += middle_ns - begin_ns
            preprocess_ns += end_ns - middle_ns
        return FilledRows(tuple(labels), tuple(failed), read_ns, preprocess_ns, read_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """Rows in unnamed shared memory, which is freed when the last process that uses it ends, however it ends.

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
        """Allocates rows for inputs of a model; raises ConfigurationError if there is not enough memory."""
        size = rows * math.prod(_row_shape(parameters)) * _dtype_of(parameters).itemsize
        try:
            places, inputs = CONTEXT.RawArray(c_int64, rows), CONTEXT.RawArray(c_ubyte, size)
            return cls(places, inputs, CONTEXT.RawValue(c_int64, 0))
        except (OSError, MemoryError, OverflowError) as error:
            raise _no_memory(size, error) from error

    def view(self, parameters: InputParameters) -> Rows:
        """Returns the memory in the form of arrays."""
        inputs = np.frombuffer(memoryview(self.inputs), _dtype_of(parameters))
        places = np.frombuffer(memoryview(self.places), np.int64)
        return Rows(places, inputs.reshape(-1, *parameters.dimensions))


def own_rows(rows: int, parameters: InputParameters) -> Rows:
    """Returns rows for this process alone; raises ConfigurationError if there is not enough memory."""
    dtype, shape = _dtype_of(parameters), _row_shape(parameters)
    try:
        return Rows(np.zeros(rows, np.int64), np.zeros((rows, *shape), dtype))
    except (MemoryError, ValueError) as error:
        size = rows * math.prod(shape) * dtype.itemsize
        raise _no_memory(size, error) from error


def _dtype_of(parameters: InputParameters) -> np.dtype[Any]:
    """Returns the dtype of an input; raises ConfigurationError for strings."""
    dtype = dtype_of(parameters)
    if dtype.hasobject:
        raise ConfigurationError(
            f'input "{parameters.input_layer}" of the model has strings; batches are loaded only for models '
            "whose inputs are numbers or images"
        )
    return dtype


def _row_shape(parameters: InputParameters) -> tuple[int, ...]:
    """Returns the shape of an input; raises ConfigurationError if it varies between inputs."""
    if any(tensor.is_dynamic for tensor in parameters.tensors):
        raise ConfigurationError(
            f'input "{parameters.input_layer}" of the model has no fixed size; batches are loaded for models '
            "with one size only, which dimensions in the manifest give"
        )
    return parameters.dimensions


def _no_memory(size: int, error: Exception) -> ConfigurationError:
    """Returns the error for buffers of this size."""
    return ConfigurationError(
        f"the batches of the loader take {size} bytes, which are not available: {one_line(error)}; use a "
        "smaller batch_size or prefetch"
    )


class Workers(ABC):
    """The interface of workers that fill rows, in the background or on demand. Use them from only one thread.

    After an exception other than an ``InferometerError``, such as KeyboardInterrupt, or after a worker
    process has ended unexpectedly, they can only be closed.
    """

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Accepts a task, whose number must be higher than those of all previous tasks."""

    @abstractmethod
    def result(self, task: Task) -> FilledRows:
        """Waits for a submitted task, and returns its result; may be called only once per task.

        Raises:
            DatasetError: The dataset is damaged, or a worker process ended unexpectedly.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Drops all submitted tasks, and returns when no row is being written.

        Raises:
            DatasetError: A worker process ended unexpectedly.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the workers; calling it again does nothing."""

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes; empty for threads."""
        return ()


class CallingThread(Workers):
    """The caller's thread, which fills rows on demand."""

    def __init__(self, filler: SampleFiller) -> None:
        self._filler = filler

    def submit(self, task: Task) -> None:
        """Does nothing: ``wait`` fills the rows."""

    def result(self, task: Task) -> FilledRows:
        """Fills the rows."""
        return self._filler.fill(task)

    def cancel(self) -> None:
        """Does nothing: no task is in progress."""

    def close(self) -> None:
        """Does nothing."""


class WorkerThreads(Workers):
    """Threads of this process; decoders and NumPy release the interpreter's lock.

    Args:
        filler: Fills rows, in several threads at once.
        count: The number of threads.
    """

    def __init__(self, filler: SampleFiller, count: int) -> None:
        self._filler = filler
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="load")
        self._futures: dict[int, Future[FilledRows]] = {}
        self._cancelled_below = 0

    def submit(self, task: Task) -> None:
        """Queues the task."""
        self._futures[task.number] = self._executor.submit(
            self._filler.fill, task, lambda: task.number < self._cancelled_below
        )

    def result(self, task: Task) -> FilledRows:
        """Waits for the task."""
        return self._futures.pop(task.number).result()

    def cancel(self) -> None:
        """Cancels the waiting tasks, and waits for the samples in progress."""
        futures, self._futures = self._futures, {}
        if futures:
            self._cancelled_below = max(futures) + 1
        for future in futures.values():
            future.cancel()
        wait_for_futures(futures.values())

    def close(self) -> None:
        """Ends the threads."""
        self.cancel()
        self._executor.shutdown()


_NAME = "a worker process of the loader"


class WorkerProcesses(Workers):
    """Fresh Python processes, each of which opens the dataset again.

    Args:
        dataset: The samples; it is pickled.
        parameters: The model's input.
        rows: The buffers.
        count: The number of processes.

    Raises:
        ConfigurationError: The dataset cannot be passed to another process, or this one cannot have children.
        DatasetError: A process cannot open the dataset, or ended unexpectedly.
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
        """Sends the task to the process with the fewest pending tasks."""
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
        """Tells the processes to skip the waiting tasks, and waits for the samples in progress."""
        self._cancelled_below.value = self._last + 1
        while any(worker.waiting for worker in self._workers):
            self._take_what_is_there(timeout_s=None)
        self._results.clear()

    def close(self) -> None:
        """Ends the processes; if it is interrupted, the interpreter ends them at its exit."""
        _end(self._workers, self._cancelled_below)
        self._at_exit.cancel()

    def _take_what_is_there(self, timeout_s: float | None = 0.0) -> None:
        """Receives the available results; without a timeout, waits for at least one."""
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
    """Runs a worker process until the caller closes the connection or has ended."""
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
