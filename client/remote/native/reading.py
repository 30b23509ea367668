"""Reads inputs on the client and merges read failures into the agent's response."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import Input, NamedTensors, Payload, Tensor, Tensors, dtype_of
from inferometer.agent.preprocessing.preprocessor import check_elements
from inferometer.agent.protocol.tensors import NUMERIC_TYPES
from inferometer.agent.tracing.recorder import SpanKind, TraceLevel, TraceScope
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import TensorSpec

_READ = SpanKind.of("read", TraceLevel.APPLICATION_TRACE, side="client")


@dataclass(frozen=True, slots=True)
class _Read:
    """One input after reading: its data, or its failure."""

    input_id: str
    payload: Payload | None
    failure: InputFailure | None
    read_ns: int
    read_at_ns: int = 0
    thread: int = 0


class LocalBatch:
    """A batch whose inputs are read by the threads of a pool.

    Args:
        inputs: The batch, not empty.
        pool: The threads that read.
        tensors: The tensors that the model takes.

    Raises:
        InputError: The batch is empty.
    """

    def __init__(
        self, inputs: Sequence[Input], pool: ThreadPoolExecutor, tensors: Sequence[TensorSpec]
    ) -> None:
        if not inputs:
            raise InputError("the batch is empty; it needs at least one input")
        # Inputs in memory need no thread.
        self._reads: list[_Read | Future[_Read]] = [
            pool.submit(_read, item, tensors) if callable(item.data) else _in_memory(item, item.data, tensors)
            for item in inputs
        ]

    def readable(self) -> list[tuple[str, Payload]]:
        """Waits for the reading; returns the ids and the data of the inputs that could be read."""
        return [(read.input_id, read.payload) for read in self._all() if read.payload is not None]

    def merge(self, answer: BatchResult | None) -> BatchResult:
        """Returns the batch's result: the agent's answer with the read failures and read time of this side.

        Args:
            answer: The agent's answer; None if nothing could be read, so that nothing was sent.
        """
        reads = self._all()
        failures = tuple(read.failure for read in reads if read.failure is not None)
        read_ns = sum(read.read_ns for read in reads)
        if answer is None:
            return BatchResult((), None, failures, StageTimes(read_ns, 0, 0, 0))
        if failures:
            places = {read.input_id: place for place, read in enumerate(reads)}
            both = (*failures, *answer.failures)
            failures = tuple(sorted(both, key=lambda failure: places.get(failure.input_id, len(places))))
        times = replace(answer.times, read_ns=answer.times.read_ns + read_ns)
        return replace(answer, failures=failures or answer.failures, times=times)

    def record(self, trace: TraceScope, batch: int) -> None:
        """Records the spans of reading for the batch with this number."""
        for read in self._all():
            if read.thread:
                end_ns = read.read_at_ns + read.read_ns
                trace.add(_READ, read.read_at_ns, end_ns, batch=batch, thread=read.thread)

    def cancel(self) -> None:
        """Cancels the reading."""
        for read in self._reads:
            if isinstance(read, Future):
                read.cancel()

    def _all(self) -> list[_Read]:
        return [read.result() if isinstance(read, Future) else read for read in self._reads]


def _read(item: Input, tensors: Sequence[TensorSpec]) -> _Read:
    payload = failure = None
    started_ns = time.perf_counter_ns()
    try:
        payload = item.read()
    except InputError as error:
        failure = InputFailure(item.id, Stage.READ, str(error))
    read_ns = time.perf_counter_ns() - started_ns
    if payload is not None:
        read = _in_memory(item, payload, tensors)
        payload, failure = read.payload, read.failure
    return _Read(item.id, payload, failure, read_ns, started_ns, threading.get_native_id())


def _in_memory(item: Input, payload: Payload, tensors: Sequence[TensorSpec]) -> _Read:
    try:
        return _Read(item.id, sendable_payload(payload, tensors), None, 0)
    except InputError as error:
        return _Read(item.id, None, InputFailure(item.id, Stage.PREPROCESS, str(error)), 0)


def sendable_payload(payload: Payload, tensors: Sequence[TensorSpec]) -> Payload:
    """Returns the data of an input so that it can be sent; see ``sendable``."""
    if isinstance(payload, NamedTensors):
        return NamedTensors(_named(payload.arrays, tensors))
    if isinstance(payload, Tensor) and not _travels(payload.array):
        return Tensor(check_elements(payload.array, dtype_of(tensors[0])))
    return payload


def sendable(batch: Tensors | NDArray[Any], tensors: Sequence[TensorSpec]) -> Tensors | NDArray[Any]:
    """Returns a batch whose arrays can be sent: numbers in the types that the protocol supports, and strings.

    Other arrays are converted to the types of the model's ``tensors``, as on the model's own machine.

    Raises:
        InputError: A conversion would lose values; the message is the same as for a model in this process.
    """
    if isinstance(batch, np.ndarray):
        return batch if _travels(batch) else check_elements(batch, dtype_of(tensors[0]))
    return _named(batch, tensors)


def _named(arrays: Tensors, tensors: Sequence[TensorSpec]) -> Tensors:
    if all(map(_travels, arrays.values())):
        return arrays
    dtypes = {each.name: dtype_of(each) for each in tensors}
    found = {}
    for name, array in arrays.items():
        try:
            # the agent refuses a name that the model has not
            found[name] = array if _travels(array) else check_elements(array, dtypes.get(name, array.dtype))
        except InputError as error:
            raise InputError(f'input "{name}": {error}' if len(dtypes) > 1 else str(error)) from error
    return found


def _travels(array: NDArray[Any]) -> bool:
    """Returns whether an array can be sent unchanged, as numbers that the protocol supports."""
    return array.dtype.name in NUMERIC_TYPES
