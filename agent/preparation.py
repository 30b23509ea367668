"""Preparation: inputs are read and preprocessed, in threads, into the tensors that a model takes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.gate import Gate
from agent.inputs import EncodedImage, Input, Url
from agent.preprocessor import Preprocessor
from agent.results import InputFailure, Stage
from manifests.errors import InputError, SessionError

Clock: TypeAlias = Callable[[], int]
"""A monotonic clock in nanoseconds."""
Fetch: TypeAlias = Callable[[str], bytes]
"""Gets the bytes at an address, or raises InputError."""
_SHARES = 8
"""Pieces of work for each thread: with one, a thread with small images would wait for one with large ones."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInput:
    """One input after reading and preprocessing: where its tensor is, or why there is none.

    Attributes:
        input_id: The input.
        batch: The tensor of its whole batch; its own is in there at its place, unless there is a failure.
        place: Its place in the batch.
        failure: What went wrong.
        read_ns: How long reading took.
        preprocess_ns: How long preprocessing took, without the time at the gate.
        read_at_ns: When reading began, on the clock.
        preprocess_at_ns: When preprocessing began; 0 where reading failed.
        thread: The thread that did it.
    """

    input_id: str
    batch: NDArray[Any]
    place: int
    failure: InputFailure | None
    read_ns: int
    preprocess_ns: int
    read_at_ns: int = 0
    preprocess_at_ns: int = 0
    thread: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """An input, and where its tensor goes: into that of its batch, which then need not be put together."""

    item: Input
    batch: NDArray[Any]
    place: int


class Preparation:
    """Reads and preprocesses inputs. Thread-safe.

    Args:
        preprocessor: Makes input tensors.
        fetch: Gets what a URL names.
        gate: Keeps preprocessing and predicting apart.
        threads: Threads that do it; 0 means the calling thread.
        clock: The clock of the times.
    """

    def __init__(
        self, preprocessor: Preprocessor, fetch: Fetch, gate: Gate, *, threads: int, clock: Clock
    ) -> None:
        self._preprocessor = preprocessor
        self._fetch = fetch
        self._gate = gate
        self._threads = threads
        self._clock = clock
        self._closed = False
        self._spare: dict[int, deque[NDArray[Any]]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess") if threads else None

    def begin(self, inputs: Sequence[Input]) -> Preparing:
        """Starts to prepare inputs.

        Raises:
            InputError: There are none.
            SessionError: The preparation is closed.
        """
        return self.begin_round([inputs])

    def begin_round(self, batches: Sequence[Sequence[Input]]) -> Preparing:
        """Starts to prepare several batches as one.

        Raises:
            InputError: One of them is empty.
            SessionError: The preparation is closed.
        """
        if not all(batches):
            raise InputError("the batch is empty; it needs at least one input")
        slots = [
            _Slot(item, tensor, place)
            for batch, tensor in zip(batches, map(self._new_batch, batches), strict=True)
            for place, item in enumerate(batch)
        ]
        if not self._pool:
            done: Future[list[PreparedInput]] = Future()
            done.set_result(self._prepare_all(slots))
            return Preparing([done])
        share = -(-len(slots) // (self._threads * _SHARES))
        slices = [slots[start : start + share] for start in range(0, len(slots), share)]
        try:
            return Preparing([self._pool.submit(self._prepare_all, part) for part in slices])
        except RuntimeError as error:
            if self._closed:
                raise closed() from error
            raise

    def take_back(self, batch: NDArray[Any]) -> None:
        """Takes the tensor of a batch that nobody needs any more, for another one of the same size.

        Memory that is new costs a page fault for every 4 KiB, which is a tenth of what preparing takes.
        """
        self._spare.setdefault(len(batch), deque()).append(batch)

    def forget_spare(self) -> None:
        """Frees the memory that was taken back."""
        self._spare.clear()

    def close(self) -> None:
        """Stops the threads; calling it again does nothing."""
        self._closed = True
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _new_batch(self, inputs: Sequence[Input]) -> NDArray[Any]:
        try:
            return self._spare[len(inputs)].pop()
        except LookupError:
            return np.empty((len(inputs), *self._preprocessor.dimensions), self._preprocessor.dtype)

    def _prepare_all(self, slots: Sequence[_Slot]) -> list[PreparedInput]:
        prepared = []
        for slot in slots:
            if self._closed:  # nobody waits for the rest, and reading it may take long
                raise closed()
            prepared.append(self._prepare(slot))
        return prepared

    def _prepare(self, slot: _Slot) -> PreparedInput:
        """Reads and preprocesses one input; the time at the gate counts to neither."""
        item, batch, place = slot.item, slot.batch, slot.place
        thread = threading.get_native_id() if self._pool else 0
        read_at = self._clock()
        try:
            payload = item.read()
            if isinstance(payload, Url):
                payload = EncodedImage(self._fetch(payload.address))
        except InputError as error:
            failure = InputFailure(item.id, Stage.READ, str(error))
            read_ns = self._clock() - read_at
            return PreparedInput(item.id, batch, place, failure, read_ns, 0, read_at, 0, thread)
        read_ns = self._clock() - read_at
        with self._gate.prepare():
            started = self._clock()
            failed = None
            try:
                self._preprocessor.write(payload, batch[place])
            except InputError as error:
                failed = InputFailure(item.id, Stage.PREPROCESS, str(error))
            preprocess_ns = self._clock() - started
            return PreparedInput(
                item.id, batch, place, failed, read_ns, preprocess_ns, read_at, started, thread
            )


class Preparing:
    """Inputs that are being prepared. Iterating waits for each, in order.

    Raises:
        SessionError: While iterating: the preparation was closed before it came to an input.
    """

    def __init__(self, parts: Sequence[Future[list[PreparedInput]]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[PreparedInput]:
        """The inputs in order."""
        try:
            for part in self._parts:
                yield from part.result()
        except CancelledError as error:
            raise closed() from error

    def cancel(self) -> None:
        """Leaves out what is not begun."""
        for part in self._parts:
            part.cancel()


def closed() -> SessionError:
    """What is raised by a session that is closed."""
    return SessionError("the session is closed; open another")
