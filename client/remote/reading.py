"""Reading inputs on the client's side, and putting what failed here into what the agent answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from agent.inputs import Input, Payload
from agent.results import BatchResult, InputFailure, Stage, StageTimes
from agent.trace_level import TraceLevel
from agent.tracing.scope import TraceScope
from agent.tracing.span import SpanKind
from manifests.errors import InputError

_READ = SpanKind.of("read", TraceLevel.APPLICATION_TRACE, side="client")


@dataclass(frozen=True, slots=True)
class _Read:
    """One input after reading: its data, or why there is none."""

    input_id: str
    payload: Payload | None
    failure: InputFailure | None
    read_ns: int
    read_at_ns: int = 0
    thread: int = 0


class LocalBatch:
    """A batch whose inputs are being read by the threads of a pool.

    Args:
        inputs: The batch, not empty.
        pool: Reads.
        clock: A monotonic clock in nanoseconds.

    Raises:
        InputError: The batch is empty.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        pool: ThreadPoolExecutor,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if not inputs:
            raise InputError("the batch is empty; it needs at least one input")
        self._clock = clock
        # What is in memory already needs no thread.
        self._reads: list[_Read | Future[_Read]] = [
            pool.submit(self._read, item) if callable(item.data) else _Read(item.id, item.data, None, 0)
            for item in inputs
        ]

    def readable(self) -> list[tuple[str, Payload]]:
        """Waits for the reading; returns the ids and the data of what could be read."""
        return [(read.input_id, read.payload) for read in self._all() if read.payload is not None]

    def merge(self, answer: BatchResult | None) -> BatchResult:
        """Returns the batch's result: the agent's answer with what failed and was spent here.

        Args:
            answer: None where nothing could be read, and so nothing was sent.
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
        """Records the reading of the inputs that were read here, as of the batch of a number."""
        for read in self._all():
            if read.thread:
                end_ns = read.read_at_ns + read.read_ns
                trace.add(_READ, read.read_at_ns, end_ns, batch=batch, thread=read.thread)

    def cancel(self) -> None:
        """Reads nothing more of it."""
        for read in self._reads:
            if isinstance(read, Future):
                read.cancel()

    def _all(self) -> list[_Read]:
        return [read.result() if isinstance(read, Future) else read for read in self._reads]

    def _read(self, item: Input) -> _Read:
        started = self._clock()
        try:
            payload = item.read()
        except InputError as error:
            failure = InputFailure(item.id, Stage.READ, str(error))
            return _Read(item.id, None, failure, self._clock() - started, started, threading.get_native_id())
        return _Read(item.id, payload, None, self._clock() - started, started, threading.get_native_id())
