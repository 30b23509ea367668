"""Distributes the batches of one run to free agents, and returns their results in order."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inferometer.agent.inference.results import BatchResult
from inferometer.agent.preprocessing.inputs import Input
from inferometer.manifests.errors import AgentError

MAX_TRIES = 3
"""A batch is given up after this many agents were lost while they held it: it may be the cause."""


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """A batch that one agent processes; ``number`` is its place in the run."""

    number: int
    inputs: Sequence[Input] = field(compare=False)
    tries: int = field(default=0, compare=False)
    """The number of agents lost so far while they held the batch."""


class BatchQueue:
    """Hands out batches and collects their results. Thread-safe.

    Each batch has one answer: the batches of a lost agent are handed out again, and only a batch that is
    handed out can be answered. Batches are read from the source on demand, a bounded number ahead of the
    results.

    Args:
        batches: The source; it is read by one thread at a time.
        agents: The names of the agents.
        ahead: How many batches may be handed out ahead of the next result.
    """

    def __init__(self, batches: Iterable[Sequence[Input]], agents: Iterable[str], ahead: int) -> None:
        self._source = iter(batches)
        self._agents = set(agents)
        self._ahead = ahead
        self._changed = threading.Condition()
        self._returned: list[Lease] = []
        self._results: dict[int, BatchResult] = {}
        self._out: set[int] = set()
        self._taken = 0
        self._wanted = 0
        self._exhausted = False
        self._closed = False
        self._lost: dict[str, str] = {}
        self._error: BaseException | None = None
        self._source_error: Exception | None = None
        self._answered: dict[str, int] = {}

    @property
    def answered(self) -> Mapping[str, int]:
        """The number of batches that each agent has answered."""
        with self._changed:
            return dict(self._answered)

    def take(self, *, wait: bool) -> Lease | None:
        """Returns a batch to predict; None if there is none now or, if ``wait`` is set, if none will come.

        With ``wait``, waits while there is none, because another agent may be lost and leave its batches.
        """
        with self._changed:
            while not self._closed:
                if (lease := self._next()) is not None:
                    self._out.add(lease.number)
                    return lease
                if not wait or (self._exhausted and not self._out):
                    return None
                self._changed.wait()
            return None

    def answer(self, agent: str, lease: Lease, result: BatchResult) -> None:
        """Accepts the result of a batch."""
        with self._changed:
            self._out.discard(lease.number)
            self._results[lease.number] = result
            self._answered[agent] = self._answered.get(agent, 0) + 1
            self._changed.notify_all()

    def lose(self, agent: str, held: Iterable[Lease], reason: str) -> bool:
        """Removes an agent and hands out its batches again; returns whether the run continues."""
        with self._changed:
            if self._closed:
                return False
            self._agents.discard(agent)
            self._lost[agent] = reason
            for lease in held:
                self._out.discard(lease.number)
                again = Lease(lease.number, lease.inputs, lease.tries + 1)
                heapq.heappush(self._returned, again)
                if again.tries >= MAX_TRIES and self._error is None:
                    self._error = AgentError(
                        f"{again.tries} agents were lost with batch {again.number}, which begins with input "
                        f"{again.inputs[0].id}: it is not tried again; the last one: {reason}"
                    )
            self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error that would also occur on another agent."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def next(self) -> BatchResult | None:
        """Waits for the next result in order; None after the last.

        Raises:
            AgentError: All agents were lost, or too many agents were lost with one batch.
            Exception: The error that the source or a batch raised.
        """
        with self._changed:
            while True:
                if self._wanted in self._results:
                    self._wanted += 1
                    self._changed.notify_all()
                    return self._results.pop(self._wanted - 1)
                if self._error is not None:
                    raise self._error
                if self._exhausted and self._wanted == self._taken:
                    if self._source_error is not None:
                        raise self._source_error
                    return None
                if not self._agents:
                    reasons = "; ".join(dict.fromkeys(self._lost.values()))
                    raise AgentError(f"no agent is left: {reasons}")
                self._changed.wait()

    def close(self) -> None:
        """Ends the run: no further batches are handed out. Calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> Lease | None:
        """Returns the next batch to hand out: first those of lost agents, whose results are overdue."""
        if self._error is not None:
            return None
        if self._returned:
            return heapq.heappop(self._returned)
        if self._exhausted or self._taken - self._wanted >= self._ahead:
            return None
        try:
            inputs = next(self._source, None)
        except Exception as error:  # noqa: BLE001 - raised again where the result is taken
            self._source_error, inputs = error, None
        if inputs is None:
            self._exhausted = True
            self._changed.notify_all()
            return None
        self._taken += 1
        return Lease(self._taken - 1, inputs)
