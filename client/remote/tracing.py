"""The agent's part of a trace: asked for with a call, taken from its answers, put on the client's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import grpc
import numpy as np
from numpy.typing import NDArray

from agent.server.call_tracing import LAYERS_KEY, LEVEL_KEY, TRACEPARENT_KEY
from agent.server.span_messages import TracePart, read_trace_part
from agent.tracing.scope import TraceScope
from agent.tracing.span import NO_BATCH, SpanChunk
from client.remote.reading import LocalBatch
from manifests.errors import AgentError
from protos.inferscope.v1 import predict_pb2

_ROUND_TRIPS = 8
_NS_PER_US = 1000
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far an agent's clock is from this one's.

    Attributes:
        offset_ns: What the agent's clock shows more.
        uncertainty_ns: How far that may be wrong at the most.
    """

    offset_ns: int
    uncertainty_ns: int

    @property
    def shift_ns(self) -> int:
        """What the agent's times are to be set back by: nothing where the clocks may as well be the same."""
        return self.offset_ns if abs(self.offset_ns) > self.uncertainty_ns else 0

    def agrees(self, other: ClockOffset) -> bool:
        """Whether both may be right."""
        return abs(self.offset_ns - other.offset_ns) <= self.uncertainty_ns + other.uncertainty_ns


def measure_offset(ask: Callable[[], int], now_ns: Callable[[], int]) -> ClockOffset:
    """Measures an agent's clock by Cristian's algorithm: it was read in the middle of the shortest call.

    Args:
        ask: Asks the agent for its time, in nanoseconds since 1970.
        now_ns: The clock here, in nanoseconds since 1970.
    """
    found: list[ClockOffset] = []
    for _ in range(_ROUND_TRIPS):
        sent_ns = now_ns()
        theirs_ns = ask()
        returned_ns = now_ns()
        found.append(ClockOffset(theirs_ns - (sent_ns + returned_ns) // 2, (returned_ns - sent_ns) // 2 + 1))
    return min(found, key=lambda each: each.uncertainty_ns)


class RemoteTrace:
    """The spans that an agent records of one call.

    Args:
        scope: What they hang under.
        agent: The agent's address, for notes.
    """

    def __init__(self, scope: TraceScope, agent: str) -> None:
        self._scope = scope
        self._agent = agent
        self._parts: list[TracePart] = []
        self._shift_ns = 0

    @property
    def metadata(self) -> Metadata:
        """What the call is sent with."""
        context, level = self._scope.context, self._scope.recorder.level
        layers = () if self._scope.layers else ((LAYERS_KEY, "0"),)
        return ((TRACEPARENT_KEY, context.traceparent), (LEVEL_KEY, level.name), *layers)

    def measure_clock(self, ask: Callable[[], int], known: ClockOffset | None = None) -> ClockOffset | None:
        """Measures the agent's clock; one that does not tell the time is noted.

        Args:
            ask: Asks it, in nanoseconds since 1970.
            known: What was found before. It holds as long as it agrees with what is found now, so that calls
                of one trace are set back alike, and where the agent does not tell the time any more.

        Returns:
            What holds from now on; None where nothing is known.
        """
        recorder = self._scope.recorder
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
        """Takes an offset as the agent's; one that is applied is noted."""
        recorder = self._scope.recorder
        self._shift_ns = found.shift_ns
        if self._shift_ns:
            ahead, within = found.offset_ns / _NS_PER_US, found.uncertainty_ns / _NS_PER_US
            recorder.note(
                f"the clock of agent {self._agent} was {ahead:.0f} us ahead: its spans were set back, "
                f"which is right to within {within:.0f} us"
            )

    def add(self, part: TracePart) -> None:
        """Takes a part."""
        self._parts.append(part)

    def add_message(self, message: predict_pb2.TracePart) -> None:
        """Takes a part as it came.

        Raises:
            AgentError: It cannot be understood.
        """
        try:
            self.add(read_trace_part(message))
        except ValueError as error:
            raise AgentError(f"agent {self._agent}: its spans cannot be understood: {error}") from error

    def add_reading(self, batch: LocalBatch, number: int) -> None:
        """Records what was read here for a batch."""
        batch.record(self._scope, number)

    def end(self, batches: Sequence[int] = (), *, complete: bool = True) -> None:
        """Puts the spans into the recorder.

        Args:
            batches: The numbers that the batches which the agent has answered have here.
            complete: Whether the call came to its end; if not, spans may be missing, which is noted.
        """
        recorder = self._scope.recorder
        numbers = np.asarray(batches, np.int64)
        if not complete:
            recorder.note(f"the call to agent {self._agent} was broken off: spans of it are missing")
        elif not self._parts:
            recorder.note(f"agent {self._agent} gave no spans; is it of an earlier version?")
        for part in self._parts:
            for chunk in part.chunks:
                recorder.add_chunk(_here(chunk, self._shift_ns, numbers))
            for note in part.notes:
                recorder.note(note)
            recorder.add_dropped(part.dropped)
        self._parts.clear()


def _here(chunk: SpanChunk, shift_ns: int, numbers: NDArray[np.int64]) -> SpanChunk:
    """A chunk on the clock and with the batches' numbers of this side."""
    known = (chunk.batch >= 0) & (chunk.batch < len(numbers))
    batch = np.where(
        known, np.append(numbers, NO_BATCH)[np.where(known, chunk.batch, len(numbers))], NO_BATCH
    )
    return replace(chunk, start_ns=chunk.start_ns - shift_ns, batch=batch)
