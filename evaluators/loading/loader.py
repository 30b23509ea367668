"""The loader of batches: the interface, the loader of a dataset, and the one of a framework's reader.

A framework's own iterator runs in a separate process, because a damaged record makes the process of MXNet's
iterator end: by ``abort``, or by a division by zero.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, cycle
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.child_process import end_children, received, sent, start_child
from inferometer.agent.closeable import Closeable
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.stages import InputFailure
from inferometer.agent.preprocessing.preprocessor import RecordOptions, RecordReader, input_bytes
from inferometer.evaluators.datasets.arrays import synthetic_arrays
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.evaluators.loading.workers import (
    CallingThread,
    FilledRows,
    SampleFiller,
    SharedRows,
    Task,
    WorkerProcesses,
    Workers,
    WorkerThreads,
    own_rows,
)
from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import ConfigurationError, DatasetError, InferometerError
from inferometer.manifests.inputs import InputParameters


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A batch in host memory, with the times and failures of its loading.

    Attributes:
        inputs: ``(samples, *dimensions)``, of the model's element type; valid until the next batch is
            requested. Empty if all samples failed.
        labels: int64, (samples,): the index of each sample's class; (samples, length) for CTC.
        failures: The samples of this batch that failed, and are missing from ``inputs``.
        read_ns: The time to read, summed over the samples.
        preprocess_ns: The time to decode and preprocess, summed over the samples.
        read_bytes: The bytes of the encoded samples.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    failures: tuple[InputFailure, ...] = ()
    read_ns: int = 0
    preprocess_ns: int = 0
    read_bytes: int = 0


class Loader(Closeable):
    """The interface of a source of batches, epoch after epoch. Not thread-safe: for use from one thread."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        """Yields the batches of epoch ``number``, from 0. Close the iterator to end it early.

        Raises:
            DatasetError: The dataset is damaged, a class is unknown, or a worker process ended unexpectedly.
        """

    @property
    @abstractmethod
    def batches(self) -> int:
        """The number of batches in an epoch, the same on every rank."""

    def hold(self, batches: int) -> bool:
        """Stops loading ahead after ``batches`` batches, counted from the loader's first batch.

        The workers are idle once the caller has received all of these batches.

        Returns:
            Whether the loader supports this. If not, batches are in progress except when a new epoch starts.
        """
        return True

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes, whose CPU time belongs to the loader; empty if there are none."""
        return ()


class EpochOrder:
    """Divides the samples of an epoch among batches and ranks.

    The order is that of the dataset, or a random one that depends only on ``seed`` and the epoch's number. It
    is cut into pieces of ``ranks * batch_size`` samples, and each piece into one batch per rank, so several
    ranks see in a step what one rank with a larger batch would. The last piece may be smaller: the sizes of
    its batches differ by at most one. If it has fewer samples than there are ranks, it is left out of this
    epoch.

    Args:
        count: The number of samples in the dataset.
        options: The batches, the ranks and the order.

    Raises:
        DatasetError: There are fewer samples than ranks.
    """

    def __init__(self, count: int, options: LoaderOptions) -> None:
        if count < options.ranks:
            raise DatasetError(
                f"the dataset has {count} samples, and {options.ranks} ranks need one each; use fewer ranks"
            )
        self._count = count
        self._options = options
        self._piece = options.batch_size * options.ranks
        whole, rest = divmod(count, self._piece)
        self.batches = whole + (rest >= options.ranks)
        """The number of batches of each rank."""

    def of(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yields the indices of the samples in each batch of this rank; int64, (samples,)."""
        options = self._options
        if options.shuffle:
            order = random_state([options.seed, epoch]).permutation(self._count)
        else:
            order = np.arange(self._count)
        for number in range(self.batches):
            piece = order[number * self._piece : (number + 1) * self._piece]
            yield np.array_split(piece, options.ranks)[options.rank].astype(np.int64, copy=False)


UNLABELLED = -1
"""The label of a sample whose class is not needed."""


class DatasetLoader(Loader):
    """The loader of a dataset's samples, which ``EpochOrder`` assigns to batches.

    A batch is divided among the workers, and ``prefetch`` batches are loaded while the caller uses another
    one, including those of the next epoch by number: loading does not start over with each epoch. The memory
    of batches is reused: a batch is valid until the next one is requested. A sample that fails is left out of
    its batch, which names it; the batch is empty if all fail. Use it from only one thread.

    Args:
        dataset: The samples; the owner closes the dataset. For worker processes, it is pickled, and each
            process opens it again.
        parameters: The model's input.
        options: See ``LoaderOptions``.
        find_label: Returns the index of a class by its name, which is None for a sample without a label; by
            default ``UNLABELLED``, for loading alone.

    Raises:
        DatasetError: There are fewer samples than ranks, or a worker process cannot open the dataset.
        ConfigurationError: The dataset cannot be passed to a worker process, or there is not enough memory.
        FrameworkUnavailableError: The library that decodes the model's images is not installed.
    """

    def __init__(
        self,
        dataset: Dataset,
        parameters: InputParameters,
        options: LoaderOptions,
        find_label: Callable[[str | None], int] = lambda _: UNLABELLED,
    ) -> None:
        self._order = EpochOrder(len(dataset), options)
        self._options = options
        self._find_label = find_label
        self._numbers = count()
        self._slots = cycle(range(options.prefetch + 1))
        self._upcoming: Iterator[NDArray[np.int64]] = iter(())
        self._submitted: deque[list[Task]] = deque()
        self._begun = 0
        self._held_at: int | None = None
        self._next_epoch: int | None = None
        self._closed = False
        self._running: Generator[LoadedBatch, None, None] | None = None
        rows = (options.prefetch + 1) * options.batch_size
        if options.workers and options.processes:
            shared = SharedRows.of(rows, parameters)
            self._rows = shared.view(parameters)
            self._workers: Workers = WorkerProcesses(dataset, parameters, shared, options.workers)
            return
        self._rows = own_rows(rows, parameters)
        filler = SampleFiller(dataset, parameters, self._rows)
        self._workers = WorkerThreads(filler, options.workers) if options.workers else CallingThread(filler)

    @property
    def batches(self) -> int:
        """The number of batches in an epoch, the same on every rank."""
        return self._order.batches

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes; empty for threads."""
        return self._workers.processes

    def epoch(self, number: int) -> Generator[LoadedBatch, None, None]:
        """Yields the batches of an epoch, and ends the previous epoch; see ``Loader``."""
        self._end_epoch()
        self._require_open()
        self._running = self._batches_of(number)
        return self._running

    def hold(self, batches: int) -> bool:
        """Stops loading ahead after ``batches`` batches; see ``Loader``."""
        self._held_at = batches
        return True

    def close(self) -> None:
        """Ends the epoch and the workers; its batches are no longer valid."""
        self._end_epoch()
        self._close_workers()

    def _require_open(self) -> None:
        if self._closed:
            raise DatasetError("the loader is closed, as it is after the loss of a worker process")

    def _end_epoch(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _batches_of(self, epoch: int) -> Generator[LoadedBatch, None, None]:
        if self._next_epoch != epoch:
            self._cancel()
            self._require_open()
            self._upcoming = chain.from_iterable(self._order.of(number) for number in count(epoch))
        self._next_epoch = None
        try:
            for _ in range(self.batches):
                while not self._submitted or self._loads_ahead:
                    self._submitted.append(self._submit(next(self._upcoming)))
                    self._begun += 1
                yield self._loaded(self._submitted.popleft())
        except (InferometerError, GeneratorExit):
            self._cancel()
            raise
        except BaseException:  # such as KeyboardInterrupt, which can come in the middle of a message
            self._close_workers()
            raise
        self._next_epoch = epoch + 1

    @property
    def _loads_ahead(self) -> bool:
        is_held = self._held_at is not None and self._begun >= self._held_at
        return not is_held and len(self._submitted) <= self._options.prefetch

    def _cancel(self) -> None:
        self._submitted.clear()
        self._next_epoch = None
        try:
            self._workers.cancel()
        except BaseException as error:
            self._close_workers()
            if not isinstance(error, DatasetError):
                raise

    def _close_workers(self) -> None:
        self._closed = True
        self._workers.close()

    def _submit(self, places: NDArray[np.int64]) -> list[Task]:
        """Divides a batch among the workers; the rows of a batch that is no longer valid are reused."""
        first_row = next(self._slots) * self._options.batch_size
        self._rows.places[first_row : first_row + len(places)] = places
        tasks = []
        for part in np.array_split(places, max(1, self._options.workers)):
            if len(part):
                tasks.append(Task(next(self._numbers), first_row, len(part)))
                self._workers.submit(tasks[-1])
                first_row += len(part)
        return tasks

    def _loaded(self, tasks: Sequence[Task]) -> LoadedBatch:
        parts = [self._workers.result(task) for task in tasks]
        first, rows = tasks[0].first_row, sum(task.rows for task in tasks)
        inputs = self._rows.inputs[first : first + rows]
        if any(part.failed for part in parts):
            inputs = inputs[_filled(tasks, parts)]
        labels = [self._find_label(label) for part in parts for label in part.labels]
        return LoadedBatch(
            inputs=inputs,
            labels=np.array(labels, np.int64),
            failures=tuple(failure for part in parts for _, failure in part.failed),
            read_ns=sum(part.read_ns for part in parts),
            preprocess_ns=sum(part.preprocess_ns for part in parts),
            read_bytes=sum(part.read_bytes for part in parts),
        )


def _filled(tasks: Sequence[Task], parts: Sequence[FilledRows]) -> NDArray[np.bool_]:
    """Returns a mask of the rows that hold a sample: bool, (rows of the batch,)."""
    filled = np.ones(sum(task.rows for task in tasks), np.bool_)
    for task, part in zip(tasks, parts, strict=True):
        for number, _ in part.failed:
            filled[task.first_row - tasks[0].first_row + number] = False
    return filled


MOST_BATCHES = 8
"""The maximum number of batches that are drawn; more batches repeat them."""
MOST_BYTES = 256 * 1024 * 1024
"""The maximum memory of the inputs of these batches, unless a single batch takes more."""


class SyntheticLoader(Loader):
    """The loader of full batches of random inputs, drawn by ``synthetic_arrays``, and random labels.

    They depend on the seed, the rank and the batch size. The labels are uniform. Loading takes no time,
    because the batches are drawn when the loader is constructed.

    Args:
        parameters: The model's input.
        options: The batch size, the seed and the rank; there are no workers.
        classes: The number of classes.
        batches: The number of batches in an epoch.
        fixed: Whether all batches are the same.
        label_length: The number of labels of a sample, which then start at 1, as CTC requires; None for one
            label, which starts at 0.

    Raises:
        ConfigurationError: There is no class or no batch, or not enough memory.
    """

    def __init__(
        self,
        parameters: InputParameters,
        options: LoaderOptions,
        *,
        classes: int,
        batches: int,
        fixed: bool = False,
        label_length: int | None = None,
    ) -> None:
        lowest = 0 if label_length is None else 1
        if classes <= lowest or batches < 1:
            raise ConfigurationError(
                f"synthetic data of {classes} classes and {batches} batches cannot be drawn; "
                f"at least {lowest + 1} and 1 are needed"
            )
        size, one_batch = options.batch_size, options.batch_size * input_bytes(parameters.tensors)
        most = 1 if fixed else min(MOST_BATCHES, batches)
        drawn = max(1, min(most, MOST_BYTES // one_batch))
        seed, asked = [options.seed, options.rank], {"count": drawn * size, "max_bytes": drawn * one_batch}
        try:
            [tensors] = synthetic_arrays(parameters.tensors, seed, **asked).values()
        except MemoryError as error:
            raise ConfigurationError(
                f"a batch of {size} inputs takes {one_batch} bytes, which are not available; "
                "use a smaller batch_size"
            ) from error
        shape = (drawn * size,) if label_length is None else (drawn * size, label_length)
        labels = random_state([*seed, 1]).randint(lowest, classes, shape).astype(np.int64)
        self._batches = batches
        self._drawn = tuple(
            LoadedBatch(tensors[first : first + size], labels[first : first + size])
            for first in range(0, drawn * size, size)
        )

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return self._batches

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        """Yields the batches of an epoch, which continues where the previous one ended."""
        first = number * self._batches
        for place in range(first, first + self._batches):
            yield self._drawn[place % len(self._drawn)]

    def close(self) -> None:
        """Does nothing."""


_READERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"recordio": ("MXNet", "inferometer.agent.frameworks.mxnet.record_iterator:MXNetRecordReader")}
)
"""The framework that has an iterator for each format, and its ``RecordReader`` as ``module:class``."""
_NEXT = "next"


@dataclass(frozen=True, slots=True)
class _Opener:
    """The data that the process needs in order to open the reader."""

    reader: str
    path: Path
    count: int
    parameters: InputParameters
    options: RecordOptions

    def open(self) -> RecordReader:
        kind: type[RecordReader] = resolve_name(self.reader)
        return kind(self.path, self.count, self.parameters, self.options)


def open_framework_reader(
    dataset: Dataset, parameters: InputParameters, options: LoaderOptions
) -> FrameworkLoader:
    """Opens a dataset with the iterator of the framework that its format belongs to.

    Raises:
        ConfigurationError: No framework has such an iterator, or it does not support the options.
        FrameworkUnavailableError: The framework is not installed.
        DatasetError: The iterator cannot read the dataset.
    """
    if dataset.backend not in _READERS:
        raise ConfigurationError(
            f"no framework has a reader of {dataset.backend or dataset.identity.category}, only of "
            f"{', '.join(_READERS)}; use reader own"
        )
    if options.ranks > 1:
        raise ConfigurationError("a framework's reader is for one rank; use reader own")
    framework, reader = _READERS[dataset.backend]
    Registry().find(framework).require_installed()
    [path] = dataset.files()
    record_options = RecordOptions(
        options.batch_size, max(1, options.workers), options.prefetch, options.shuffle, options.seed
    )
    opener = _Opener(reader, path, len(dataset), parameters, record_options)
    return FrameworkLoader(f"the process of {framework}'s reader of {path}", opener)


class FrameworkLoader(Loader):
    """The loader around a framework's iterator; it reports neither the bytes read nor the times of reading.

    The iterator has its own threads, and always loads ahead. A record that it cannot read ends the epoch.
    Created by ``open_framework_reader``.

    Args:
        name: The name of the process in errors.
        opener: Opens the reader in the process.

    Raises:
        ConfigurationError, DatasetError: The reader cannot be opened.
    """

    def __init__(self, name: str, opener: _Opener) -> None:
        self._batch_size, self._count = opener.options.batch_size, opener.count
        rows = SharedRows.of(self._batch_size, opener.parameters)
        self._inputs = rows.view(opener.parameters).inputs
        self._child = start_child(name, _run, opener, rows)
        # runs at the exit of the interpreter too, before multiprocessing waits for children
        self._at_exit = Finalize(self, end_children, ([self._child],), exitpriority=10)
        self._running: Generator[LoadedBatch, None, None] | None = None
        try:
            self._answer()  # the iterator begins to read at once
        except BaseException:
            self.close()
            raise

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return -(-self._count // self._batch_size)

    @property
    def processes(self) -> tuple[int, ...]:
        """The id of the reader's process."""
        pid = self._child.process.pid
        return () if pid is None else (pid,)

    def epoch(self, number: int) -> Generator[LoadedBatch, None, None]:
        """Yields the batches of the next epoch, regardless of its number: the iterator counts epochs itself.

        Raises:
            DatasetError: A record cannot be read, or made the process end.
        """
        if self._running is not None:
            self._running.close()
        self._running = self._batches_of(number)
        return self._running

    def hold(self, batches: int) -> bool:
        """Returns False: MXNet's iterator decodes whole chunks of the file ahead, until it is reset."""
        return False

    def close(self) -> None:
        """Ends the process."""
        end_children([self._child])
        self._at_exit.cancel()

    def _batches_of(self, epoch: int) -> Generator[LoadedBatch, None, None]:
        self._ask(epoch)
        while (labels := self._answer()) is not None:
            yield LoadedBatch(self._inputs[: len(labels)], labels)
            self._ask(_NEXT)

    def _ask(self, message: Any) -> None:
        with _explaining():
            self._child.send(message)

    def _answer(self) -> Any:
        with _explaining():
            answer = self._child.receive()
        if isinstance(answer, InferometerError):
            raise answer
        return answer


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except DatasetError as error:
        hint = "a damaged record ends it; use reader own, which names the record"
        raise DatasetError(f"{error}: {hint}") from error


def _run(opener: _Opener, rows: SharedRows, connection: Connection) -> None:
    """Runs the process from its start to its end: in each epoch, it answers each message with one batch."""
    out = rows.view(opener.parameters).inputs
    answer: InferometerError | None = None
    try:
        reader = opener.open()
    except InferometerError as error:
        answer = error
    if not sent(connection, answer) or answer is not None:
        return
    message = received(connection)
    while message is not None:
        message = _one_epoch(reader, out, connection)


def _one_epoch(reader: RecordReader, out: np.ndarray[Any, Any], connection: Connection) -> Any:
    """Sends the batches of an epoch; returns the message that begins the next one, or None at the end."""
    try:
        for labels in reader.epoch(out):
            if not sent(connection, labels):
                return None
            message = received(connection)
            if message != _NEXT:
                return message
    except InferometerError as error:
        sent(connection, error)
        return received(connection)
    sent(connection, None)
    return received(connection)
