"""Further instances of a model: in this process, or in a process of their own.

Some frameworks predict only one batch at a time in each process. Tensors pass to and from another process
through shared memory, and short messages through a pipe.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.child_process import ChildProcess, end_children, received, sent, start_child
from inferometer.agent.hardware.environment import PredictorOptions, bound_to
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    InstanceLostError,
    OutOfMemoryError,
)
from inferometer.manifests.schema import ModelManifest

_ALIGNMENT = 64
_LOOK_S = 1.0
_LONGEST_PAUSE_S = 30.0
"""The longest pause between two starts of a process that cannot load the model; the first is ``_LOOK_S``."""
_log = logging.getLogger(__name__)
_Place: TypeAlias = "tuple[str, str, tuple[int, ...], int] | tuple[str, NDArray[Any]]"
"""A tensor's name, dtype, shape and offset in the memory; or its name and the tensor itself, of strings."""


def open_instance(predictor: Predictor, **own: Any) -> Predictor:
    """Loads a further instance of a predictor's model, with options of its ``own``, such as ``processors``.

    A process sees the same GPUs as this one, under the same indices. See ``Predictor.instances_by``.

    Raises:
        ConfigurationError: The model is in memory, where its owner has only one.
        InstanceLostError: The process of the instance ended early.
        InferometerError: The model cannot be loaded; see ``Predictor.load``.
    """
    if predictor.artifacts.in_memory is not None:
        raise ConfigurationError(f"{predictor}: is in memory, and so has one instance; save it to a file")
    given = predictor.manifest, predictor.artifacts, replace(predictor.options, **own)
    is_thread = predictor.instances_by == "threads"
    further = type(predictor)(*given) if is_thread else ProcessPredictor(type(predictor), *given)
    try:
        load_bound(further)
    except BaseException:
        further.close()
        raise
    return further


def load_bound(predictor: Predictor) -> None:
    """Loads a predictor, whose threads are bound to its processors, if there are any; see ``Predictor.load``.

    The threads inherit the binding of the thread that loads it. It is not the calling one, because the teams
    of OpenMP stay with the thread that has made them.
    """
    if processors := predictor.options.processors:
        with ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, processors)) as thread:
            thread.submit(predictor.load).result()
    else:
        predictor.load()


class ProcessPredictor(Predictor):
    """Runs a predictor in a fresh process, which is started anew as soon as it ends early.

    It profiles no layers. Unlike other predictors, it is thread-safe.

    The process inherits the binding to processors from the thread that starts it. ``kind`` is the class of
    the predictor in the process; the other arguments are those of ``Predictor``.
    """

    def __init__(
        self, kind: type[Predictor], manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions
    ) -> None:
        super().__init__(manifest, artifacts, options)
        self._make = partial(kind, manifest, artifacts, options)
        self._threads: int | None = None
        self._children: list[ChildProcess] = []
        """The process, unless it has not been started or has been closed."""
        self._inputs, self._outputs = _Memory(), _Memory()
        self._lock = threading.RLock()
        self._is_loaded = False
        self._pause_s, self._next_start_s, self._failure = 0.0, 0.0, ""
        self._keeper = threading.Thread(target=self._keep, name=f"keep an instance of {self}", daemon=True)
        # runs at the exit of the interpreter too, before multiprocessing waits for children
        self._at_exit = Finalize(self, _end, (self._children, self._inputs, self._outputs), exitpriority=10)

    def load(self) -> None:
        """Starts the process and loads the model there; see ``Predictor``.

        Raises:
            InstanceLostError: The process ended while it loaded the model.
        """
        with self._lock:
            self._is_loaded = False
            _end(self._children, self._inputs, self._outputs)
            with bound_to(self.options.processors):
                self._children[:] = [start_child(f"the process of an instance of {self}", _serve, self._make)]
            self._threads, self.fixed_outputs = self._answer()
            self._is_loaded = True
            if not self._at_exit.still_active():  # closed at the exit of the interpreter meanwhile
                _end(self._children, self._inputs, self._outputs)
            elif self._keeper.ident is None:
                self._keeper.start()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Starts the process again if it has ended; other instances are not waited for."""
        with self._lock:
            self._start_again()
            yield

    @property
    def is_alive(self) -> bool:
        """Whether the process has loaded the model and runs, and no prediction hangs."""
        return super().is_alive and self._runs

    @property
    def _runs(self) -> bool:
        return self._is_loaded and not all(child.has_ended for child in self._children[:1])

    def _start_again(self) -> None:
        """Starts the process again if it has ended, with growing pauses while it cannot load the model.

        Raises:
            InstanceLostError: It cannot load the model now, or could not before the pause.
        """
        if self._runs or not self._at_exit.still_active():
            return
        if time.monotonic() >= self._next_start_s:
            if is_first := not self._pause_s:
                _log.warning("%s: the process of an instance has ended, and starts again", self)
            try:
                self.load()
                self._pause_s = 0.0
                return
            except InferometerError as error:
                self._failure = f"{self}: an instance cannot be started again: {error}"
                if is_first:
                    pauses = f"pauses of up to {_LONGEST_PAUSE_S:g} s"
                    _log.error("%s; this is repeated with %s", self._failure, pauses)
            self._pause_s = min(max(_LOOK_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._next_start_s = time.monotonic() + self._pause_s
        raise InstanceLostError(self._failure)

    def _keep(self) -> None:
        """Starts the process again whenever it has ended, without waiting for a batch, until it is closed."""
        while self._at_exit.still_active():
            for child in self._children[:1]:
                wait([child.process.sentinel], _LOOK_S)  # which what the process has started may hold open
            try:
                with self._lock:
                    self._start_again()
            except InstanceLostError:
                time.sleep(_LOOK_S)

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the model in the process; see ``Predictor``.

        Raises:
            InstanceLostError: The process ended while it predicted the batch.
            OutOfMemoryError: The system has too little shared memory for the batch.
        """
        with self._lock:
            try:
                return self._predicted(inputs)
            except InstanceLostError:
                if self._inputs.buffer[0]:  # it has begun
                    raise
            self._start_again()
            return self._predicted(inputs)

    def _predicted(self, inputs: Tensors) -> Tensors:
        self._inputs.reserve(_size(inputs))
        answer = self._asked((self._inputs.name, self._inputs.put(inputs), self._outputs.name))
        if isinstance(answer, int):  # more than the memory has
            self._outputs.reserve(answer)
            answer = self._asked(self._outputs.name)
        return {name: tensor.copy() for name, tensor in self._outputs.views(answer).items()}

    def _asked(self, message: Any) -> Any:
        with suppress(OSError):  # it has ended, which the answer shows
            self._children[0].connection.send(message)
        return self._answer()

    def _answer(self) -> Any:
        """Waits for an answer, and raises it if it is an error."""
        [child] = self._children
        try:
            answer = child.connection.recv()
        except (EOFError, OSError) as error:  # also in the middle of a message
            raise InstanceLostError(f"{child.early_end('')}; try again") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def threads(self) -> int | None:
        """The number of threads of an operator in the process."""
        return self._threads

    def close(self) -> None:
        """Ends the process; calling it again does nothing."""
        with self._lock:
            self._at_exit()


def _end(children: list[ChildProcess], *memories: _Memory) -> None:
    end_children(children)
    children.clear()
    for memory in memories:
        memory.free()


class _Memory:
    """Growing shared memory for the tensors of one direction; the parent creates it, either frees it.

    ``buffer`` is empty if there is none. Its first byte tells whether the other process has begun to read.
    """

    def __init__(self) -> None:
        self._use(None)

    def _use(self, block: SharedMemory | None) -> None:
        self._block = block
        self.name = block.name if block else ""
        self.buffer: Any = block.buf if block else b""

    def reserve(self, size: int) -> None:
        """Replaces memory of fewer bytes; afterwards, there is none if the system has too little."""
        if size <= len(self.buffer):
            return
        self.free()
        self._use(SharedMemory(create=True, size=size))
        try:
            # otherwise writing to memory that the system does not have would kill this process
            os.posix_fallocate(self._block._fd, 0, size)  # type: ignore[union-attr]
        except OSError:
            self.free()

    def open(self, name: str) -> None:
        """Opens the memory that the other process has created, unless it is open."""
        if name != self.name:
            self._close()
            self._use(SharedMemory(name) if name else None)

    def put(self, tensors: Tensors) -> list[_Place]:
        """Copies tensors into the memory; returns their places, or raises OutOfMemoryError."""
        if (size := _size(tensors)) > len(self.buffer):
            raise OutOfMemoryError(f"the system has too little shared memory (/dev/shm) for {size} bytes")
        places: list[_Place] = []
        self.buffer[0], offset = 0, _ALIGNMENT
        for name, tensor in tensors.items():
            if tensor.dtype.hasobject:
                places.append((name, tensor))
            else:
                places.append((name, tensor.dtype.str, tensor.shape, offset))
                self.views(places[-1:])[name][...] = tensor
                offset += _padded(tensor.nbytes)
        return places

    def views(self, places: list[_Place]) -> dict[str, NDArray[Any]]:
        """Returns the tensors at places, without a copy."""
        return {
            place[0]: place[1] if len(place) == 2 else np.ndarray(place[2], place[1], self.buffer, place[3])
            for place in places
        }

    def free(self) -> None:
        """Frees the memory in both processes."""
        block = self._block
        self._close()
        self._use(None)
        if block is not None:
            with suppress(FileNotFoundError):  # the other process has freed it
                block.unlink()

    def _close(self) -> None:
        if self._block is not None:
            with suppress(BufferError):  # a framework still keeps a tensor in it
                self._block.close()


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _size(tensors: Tensors) -> int:
    """Returns how many bytes the tensors take in the memory, after its first byte."""
    return _ALIGNMENT + sum(_padded(each.nbytes) for each in tensors.values() if not each.dtype.hasobject)


def _end_with_parent() -> None:
    """Ends this process soon after its parent process, although a prediction hangs."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        time.sleep(_LOOK_S)
        os._exit(1)


def _serve(make: Callable[[], Predictor], connection: Connection) -> None:
    """Runs the process from the loading of the model until the parent process closes the connection."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    inputs, outputs = _Memory(), _Memory()
    try:
        predictor = make()
        predictor.load()
    except InferometerError as error:
        sent(connection, error)
        return
    answer: Any = (predictor.threads, dict(predictor.fixed_outputs))
    while sent(connection, answer) and (message := received(connection)) is not None:
        name, places, room = message
        try:
            inputs.open(name)
            inputs.buffer[0] = 1
            tensors = predictor.predict(inputs.views(places))
            outputs.open(room)
            if (size := _size(tensors)) > len(outputs.buffer) and sent(connection, size):
                outputs.open(received(connection))
            answer = outputs.put(tensors)
            del tensors
        except InferometerError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - raised again in the parent process
            answer = RuntimeError(f"{type(error).__name__}: {error}")
    predictor.close()
    _end([], inputs, outputs)  # which a parent process that was killed leaves
