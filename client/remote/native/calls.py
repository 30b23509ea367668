"""The calls to an agent: the inputs read for them, their failures, their retries, and their trace.

Failed calls become the program's errors, and inputs that cannot be read here join the agent's failures. A
call requests the agent's spans, which are shifted to the client's clock.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import Input, NamedTensors, Payload, Tensor, Tensors, dtype_of
from inferometer.agent.preprocessing.preprocessor import check_elements
from inferometer.agent.protocol.conversion import TracePart, read_trace_part
from inferometer.agent.protocol.status import CLASSES, ERROR_CLASS_KEY, LAYERS_KEY, LEVEL_KEY, one_line
from inferometer.agent.protocol.tensors import NUMERIC_TYPES
from inferometer.agent.tracing.recorder import (
    NO_BATCH,
    TRACEPARENT_KEY,
    SpanKind,
    TraceLevel,
    TraceScope,
    client_call,
    ended,
)
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import Hints, explain
from inferometer.manifests.errors import AgentError, DeadlineError, InferometerError, InputError
from inferometer.manifests.inputs import TensorSpec
from inferometer.protos.inferometer.v1 import predict_pb2

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 4
_TRIES = 3
_BUSY = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
_HINTS = Hints(
    refused="is `agent serve` running there?",
    no_grpc="speaks no gRPC there; is it the port of an agent, and not that of its metrics or a web server?",
    unauthenticated="requires a secret; give the right one with --secret",
    unimplemented="does not offer this; is it an inferometer agent, and of this version? ({})",
    crashed="the agent",
)
_OPENED_HINTS = replace(
    _HINTS, unreached="cannot be reached any more:", refused="was it stopped, or has it crashed?"
)
_TOO_LARGE = re.compile(r"message larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")


@contextmanager
def translate_errors(agent: object, *, opened: bool = False) -> Iterator[None]:
    """Translates gRPC errors in a ``with`` block into the program's errors.

    An agent that has ``opened`` a model for this client was reached before.

    Raises:
        AgentError: The agent cannot be reached, the connection was lost, or the agent broke the protocol.
        InferometerError: The agent reported an error, whose class it named.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise translate(error, agent, _OPENED_HINTS if opened else _HINTS) from error


def translate(error: grpc.RpcError, agent: object, hints: Hints = _HINTS) -> InferometerError:
    """Returns the program's error for an error of a gRPC call."""
    details = one_line(error.details() or "")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # both ends notice it together
        return DeadlineError(f"agent {agent}: did not answer in time")
    named = CLASSES.get(_named_class(error))
    if named is not None:
        return named(details)
    if too_large := _TOO_LARGE.search(details):
        return AgentError(
            f"agent {agent}: a message of {too_large['size']} bytes is larger than its limit of "
            f"{too_large['limit']}; use a smaller --batch_size here, or serve it with a larger "
            "--max_message_mb"
        )
    return AgentError(f"agent {agent}: {explain(error.code(), details, agent, hints)}")


def busy_with(error: grpc.RpcError, agent: object) -> str | None:
    """Returns why an agent that has answered a health check may be too busy for another call, or None."""
    if error.code() not in _BUSY:
        return None
    return str(translate(error, agent)).removeprefix(f"agent {agent}: ")


def _named_class(error: grpc.RpcError) -> str:
    metadata: Any = error.trailing_metadata()  # pairs, whatever grpc's types say
    return str(dict(metadata or ()).get(ERROR_CLASS_KEY, ""))


def retried(
    call: Callable[[float | None], _Answer],
    timeout_s: float | None,
    *,
    tries: int = _TRIES,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Answer:
    """Makes a call, and retries it after a growing pause if the connection was lost.

    Only calls that change nothing are retried: those that list and describe, and ``Predict``. ``Open`` is not
    retried because each call opens a model; nor are streams, whose progress is unknown, nor queries under
    load, which count as failed. A refused connection is not retried either, because nobody listens there.
    ``timeout_s`` is the timeout of all tries together, in seconds; ``call`` gets what is left of it.

    Raises:
        grpc.RpcError: The last try failed. The error raised is that of the first lost connection, which says
        more than that nobody listens any more.
    """
    began_s = clock()
    pause_s = _FIRST_PAUSE_S
    left_s = timeout_s
    first: grpc.RpcError | None = None
    for left in range(tries - 1, -1, -1):
        try:
            return call(left_s)
        except grpc.RpcError as error:
            if timeout_s is not None:
                left_s = timeout_s - (clock() - began_s) - pause_s
            lost = _connection_lost(error)
            if not left or not lost or (left_s is not None and left_s <= 0):
                if first is None or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                raise first from error
            first = first or error
        wait(pause_s)
        pause_s *= _PAUSE_GROWTH
    raise ValueError(f"tries is {tries}; it must be at least 1")


def _connection_lost(error: grpc.RpcError) -> bool:
    if error.code() is not grpc.StatusCode.UNAVAILABLE or _named_class(error):  # the agent has answered
        return False
    details = (error.details() or "").casefold()
    return any(sign in details for sign in ("reset", "closed", "broken pipe", "keepalive"))


_ROUND_TRIPS = 8
_NS_PER_US = 1000
_SERVICE = predict_pb2.DESCRIPTOR.services_by_name["PredictService"].full_name


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of an agent's clock from this one.

    ``offset_ns`` is how far the agent's clock is ahead, with an error of at most ``uncertainty_ns``.
    """

    offset_ns: int
    uncertainty_ns: int

    @property
    def shift_ns(self) -> int:
        """The shift to subtract from the agent's times; 0 if the clocks may agree."""
        return self.offset_ns if abs(self.offset_ns) > self.uncertainty_ns else 0

    def agrees(self, other: ClockOffset) -> bool:
        """Returns whether the two offsets are consistent within their uncertainties."""
        return abs(self.offset_ns - other.offset_ns) <= self.uncertainty_ns + other.uncertainty_ns


def measure_offset(ask: Callable[[], int], now_ns: Callable[[], int]) -> ClockOffset:
    """Measures an agent's clock by Cristian's algorithm, as if read in the middle of the shortest call.

    ``ask`` returns the agent's time, and ``now_ns`` the time here, both in nanoseconds since 1970.
    """
    found: list[ClockOffset] = []
    for _ in range(_ROUND_TRIPS):
        sent_ns = now_ns()
        theirs_ns = ask()
        returned_ns = now_ns()
        found.append(ClockOffset(theirs_ns - (sent_ns + returned_ns) // 2, (returned_ns - sent_ns) // 2 + 1))
    return min(found, key=lambda each: each.uncertainty_ns)


def call_to(address: AgentAddress, method: str) -> SpanKind:
    """Returns the span of a call of a method of ``PredictService``."""
    return client_call(f"{_SERVICE}/{method}", address.host, address.port)


class RemoteTrace:
    """The span of one call to an agent, which begins now, and the spans that the agent records for it.

    ``scope`` is the parent of the call; see ``call_to`` for ``call``.
    """

    def __init__(self, scope: TraceScope, agent: str, call: SpanKind) -> None:
        self.scope = scope
        self._agent = agent
        self._call = call
        self._call_id = scope.recorder.new_id()
        self._began_ns = scope.recorder.clock()
        self.parts: list[TracePart] = []
        self._shift_ns = 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of the call."""
        context = replace(self.scope.context, span_id=self._call_id)
        level = self.scope.recorder.level
        layers = () if self.scope.layers else ((LAYERS_KEY, "0"),)
        return ((TRACEPARENT_KEY, context.traceparent), (LEVEL_KEY, level.name), *layers)

    def call_ended(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """Records the call, which has just ended with a status."""
        recorder = self.scope.recorder
        kind = ended(self._call, code)
        recorder.add(kind, self._began_ns, recorder.clock(), self.scope.parent_id, span_id=self._call_id)

    def measure_clock(self, ask: Callable[[], int], known: ClockOffset | None = None) -> ClockOffset | None:
        """Measures the agent's clock; a failure is noted in the trace.

        Args:
            ask: Returns its time, in nanoseconds since 1970.
            known: The offset found before. It is kept if the agent does not answer, or if it agrees with the
                new one, so that calls of one trace are corrected alike.

        Returns:
            The offset from now on; None if it is unknown.
        """
        recorder = self.scope.recorder
        try:
            found = measure_offset(ask, lambda: recorder.clock() + recorder.epoch_offset_ns)
        except grpc.RpcError as error:
            if known is None:
                why = f"agent {self._agent} does not tell the time ({error.code().name})"
                recorder.note(f"{why}: its spans are on its own clock")
                return None
            found = known
        if known is not None and known.agrees(found):
            found = known
        self.set_clock(found)
        return found

    def set_clock(self, found: ClockOffset) -> None:
        """Sets the offset of the agent's clock; a correction is noted in the trace."""
        recorder = self.scope.recorder
        self._shift_ns = found.shift_ns
        if self._shift_ns:
            ahead, within = found.offset_ns / _NS_PER_US, found.uncertainty_ns / _NS_PER_US
            recorder.note(
                f"the clock of agent {self._agent} was {ahead:.0f} us ahead: its spans were shifted back, "
                f"accurate to within {within:.0f} us"
            )

    def add_message(self, message: predict_pb2.TracePart) -> None:
        """Adds a part of the agent's spans from its message.

        Raises:
            AgentError: The message is malformed.
        """
        try:
            self.parts.append(read_trace_part(message))
        except ValueError as error:
            raise AgentError(f"agent {self._agent}: its spans are malformed: {error}") from error

    def end(self, batches: Sequence[int] = (), *, complete: bool = True) -> None:
        """Adds the spans to the recorder, converted to this side's clock and batch numbers.

        Args:
            batches: The numbers on this side of the batches that the agent has answered.
            complete: Whether the call was completed; if not, missing spans are noted.
        """
        recorder = self.scope.recorder
        numbers = np.asarray(batches, np.int64)
        if not complete:
            recorder.note(f"the call to agent {self._agent} was cancelled: some of its spans are missing")
        elif not self.parts:
            recorder.note(f"agent {self._agent} returned no spans; is it an older version?")
        resource = next((part.resource for part in self.parts if part.resource), ())
        for part in self.parts:
            for chunk in part.chunks:
                known = (chunk.batch >= 0) & (chunk.batch < len(numbers))
                places = np.where(known, chunk.batch, len(numbers))
                batch = np.append(numbers, NO_BATCH)[places]
                start_ns = chunk.start_ns - self._shift_ns
                recorder.add_chunk(replace(chunk, start_ns=start_ns, batch=batch, resource=resource))
            for note in part.notes:
                recorder.note(note)
            recorder.add_dropped(part.dropped)
        self.parts.clear()


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

        ``answer`` is None if nothing could be read, so that nothing was sent.
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
