"""Preparation: inputs are read and preprocessed, in threads, into the tensors that a model takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from agent.gate import Gate
from agent.inputs import EncodedImage, Input, Url
from agent.preprocessing import ImagePreprocessor
from agent.results import InputFailure, Stage
from manifests.errors import InputError, SessionError

Clock: TypeAlias = Callable[[], int]
"""A monotonic clock in nanoseconds."""
Fetch: TypeAlias = Callable[[str], bytes]
"""Gets the bytes at an address, or raises InputError."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInput:
    """One input after reading and preprocessing: its tensor, or why there is none."""

    input_id: str
    tensor: NDArray[Any] | None
    failure: InputFailure | None
    read_ns: int
    preprocess_ns: int


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
        self, preprocessor: ImagePreprocessor, fetch: Fetch, gate: Gate, *, threads: int, clock: Clock
    ) -> None:
        self._preprocessor = preprocessor
        self._fetch = fetch
        self._gate = gate
        self._threads = threads
        self._clock = clock
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess") if threads else None

    def begin(self, inputs: Sequence[Input]) -> Preparing:
        """Starts to prepare inputs.

        Raises:
            InputError: There are none.
            SessionError: The preparation is closed.
        """
        if not inputs:
            raise InputError("the batch is empty; it needs at least one input")
        if not self._pool:
            done: Future[list[PreparedInput]] = Future()
            done.set_result(self._prepare_all(inputs))
            return Preparing([done])
        share = -(-len(inputs) // self._threads)
        slices = [inputs[start : start + share] for start in range(0, len(inputs), share)]
        try:
            return Preparing([self._pool.submit(self._prepare_all, part) for part in slices])
        except RuntimeError as error:
            if self._closed:
                raise closed() from error
            raise

    def begin_round(self, batches: Sequence[Sequence[Input]]) -> Preparing:
        """Starts to prepare several batches as one.

        Raises:
            InputError: One of them is empty.
            SessionError: The preparation is closed.
        """
        if not all(batches):
            raise InputError("the batch is empty; it needs at least one input")
        return self.begin(tuple(itertools.chain.from_iterable(batches)))

    def close(self) -> None:
        """Stops the threads; calling it again does nothing."""
        self._closed = True
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _prepare_all(self, inputs: Sequence[Input]) -> list[PreparedInput]:
        prepared = []
        for item in inputs:
            if self._closed:  # nobody waits for the rest, and reading it may take long
                raise closed()
            prepared.append(self._prepare(item))
        return prepared

    def _prepare(self, item: Input) -> PreparedInput:
        """Reads and preprocesses one input; the time at the gate counts to neither."""
        started = self._clock()
        try:
            payload = item.read()
            if isinstance(payload, Url):
                payload = EncodedImage(self._fetch(payload.address))
        except InputError as error:
            failure = InputFailure(item.id, Stage.READ, str(error))
            return PreparedInput(item.id, None, failure, self._clock() - started, 0)
        read_ns = self._clock() - started
        with self._gate.prepare():
            started = self._clock()
            try:
                tensor = self._preprocessor(payload)
            except InputError as error:
                failure = InputFailure(item.id, Stage.PREPROCESS, str(error))
                return PreparedInput(item.id, None, failure, read_ns, self._clock() - started)
            return PreparedInput(item.id, tensor, None, read_ns, self._clock() - started)


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
