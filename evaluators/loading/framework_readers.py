"""Loaders around the frameworks' own iterators, which run in a separate process.

A damaged record makes the process of MXNet's iterator end: by ``abort``, or by a division by zero.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import numpy as np

from inferometer.agent.child_process import end_children, received, sent, start_child
from inferometer.agent.inference.registry import Registry
from inferometer.agent.preprocessing.preprocessor import RecordOptions, RecordReader
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.loading.loader import LoadedBatch, Loader, LoaderOptions
from inferometer.evaluators.loading.workers import SharedRows
from inferometer.manifests.errors import ConfigurationError, DatasetError, InferometerError
from inferometer.manifests.inputs import InputParameters

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
        try:
            self._child.send(message)
        except DatasetError as error:
            raise self._explained(error) from error

    def _answer(self) -> Any:
        try:
            answer = self._child.receive()
        except DatasetError as error:
            raise self._explained(error) from error
        if isinstance(answer, InferometerError):
            raise answer
        return answer

    def _explained(self, error: DatasetError) -> DatasetError:
        return DatasetError(f"{error}: a damaged record ends it; use reader own, which names the record")


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
