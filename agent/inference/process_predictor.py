"""Further instances of a model: in this process, or in a process of their own.

Some frameworks predict only one batch at a time in each process. Tensors pass to and from another process
through shared memory, and short messages through a pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.child_process import ChildProcess, end_children, received, sent, start_child
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    InstanceLostError,
    OutOfMemoryError,
)

_ALIGNMENT = 64
_Place: TypeAlias = "tuple[str, str, tuple[int, ...], int] | tuple[str, NDArray[Any]]"
"""A tensor's name, dtype, shape and offset in the memory; or its name and the tensor itself, of strings."""


def open_instance(predictor: Predictor) -> Predictor:
    """Loads a further instance of a predictor's model; see ``Predictor.instances_by``.

    Raises:
        ConfigurationError: The model is in memory, where its owner has only one.
        InstanceLostError: The process of the instance ended early.
        InferometerError: The model cannot be loaded; see ``Predictor.load``.
    """
    if predictor.artifacts.in_memory is not None:
        raise ConfigurationError(f"{predictor}: is in memory, and so has one instance; save it to a file")
    make = partial(type(predictor), predictor.manifest, predictor.artifacts, predictor.options)
    further = make() if predictor.instances_by == "threads" else ProcessPredictor(predictor, make)
    try:
        further.load()
    except BaseException:
        further.close()
        raise
    return further


class ProcessPredictor(Predictor):
    """Runs a predictor in a fresh process, which is started anew if it ends early. It profiles no layers.

    Args:
        like: A predictor of the same model in this process.
        make: Makes the predictor in the other process.
    """

    def __init__(self, like: Predictor, make: Callable[[], Predictor]) -> None:
        super().__init__(like.manifest, like.artifacts, like.options)
        self._make = make
        self._threads: int | None = None
        self._children: list[ChildProcess] = []
        """The process, unless it has not been started or has been closed."""
        self._inputs, self._outputs = _Memory(), _Memory()
        # runs at the exit of the interpreter too, before multiprocessing waits for children
        self._at_exit = Finalize(self, _end, (self._children, self._inputs, self._outputs), exitpriority=10)

    def load(self) -> None:
        """Starts the process and loads the model there; see ``Predictor``.

        Raises:
            InstanceLostError: The process ended while it loaded the model.
        """
        _end(self._children, self._inputs, self._outputs)
        self._children[:] = [start_child(f"the process of an instance of {self}", _serve, self._make)]
        self._threads, self.fixed_outputs = self._answer()

    def turn(self) -> AbstractContextManager[object]:
        """Starts the process again if it has ended; other instances are not waited for."""
        if self._at_exit.still_active() and (not self._children or self._children[0].has_ended):
            self.load()
        return super().turn()

    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the model in the process; see ``Predictor``.

        Raises:
            InstanceLostError: The process ended while it predicted the batch.
            OutOfMemoryError: The system has too little shared memory for the batch.
        """
        try:
            return self._predicted(inputs)
        except InstanceLostError:
            if self._inputs.buffer[0]:  # it has begun
                raise
        self.load()
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


def _serve(make: Callable[[], Predictor], connection: Connection) -> None:
    """Runs the process from the loading of the model until the parent process closes the connection."""
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
