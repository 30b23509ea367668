"""The pool: several agents as one system under test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent.closeable import Closeable
from agent.description import SystemDescription
from agent.inputs import Input
from agent.results import BatchResult
from agent.tracing.scope import TraceScope
from client.remote.agent import RemoteAgent
from client.remote.pool.board import Board
from client.remote.pool.crew import LOST, CrewMember, reason_of
from client.remote.pool.likeness import check_same, combined, machine_differences
from client.remote.pool.side_by_side import side_by_side
from manifests.errors import AgentError, SessionError

_AHEAD_PER_AGENT = 64
_LEAVING_S = 10.0
_log = logging.getLogger(__name__)


class AgentPool(Closeable):
    """A model that several agents have open; satisfies ``evaluators.system.SystemUnderTest``.

    Batches go to whoever is free, and the results come back in order. What an agent is lost with is done
    again by another one; the lost agent is said, and left out from then on. The times of a batch are those of
    the agent that answered it. One evaluation at a time.

    Args:
        agents: The same model on each; the pool closes them.
        warm_up: Whether the first run only warms up: each agent then does the whole of it, because one that
            did none of it would warm up in what is measured.
        say: Told, in one line for a person, of agents that are lost and machines that differ.
        on_answer: Told, in any thread, the address of the agent that has just answered a batch.

    Raises:
        ConfigurationError: The agents' models, frameworks or kinds of device differ.
    """

    def __init__(
        self,
        agents: Sequence[RemoteAgent],
        *,
        warm_up: bool = False,
        say: Callable[[str], None] = lambda _: None,
        on_answer: Callable[[str], None] = lambda _: None,
    ) -> None:
        descriptions = [agent.description for agent in agents]
        check_same(descriptions)
        self._agents = list(agents)
        self._lost: dict[str, str] = {}
        self._ran: set[str] = set()
        self._cold = warm_up
        self._say = say
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._closed = False
        if differences := machine_differences(descriptions):
            say(f"the agents' machines differ, so that latencies are of more than one system: {differences}")

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on: the agents that answered in the last run, or that could in one."""
        known = [agent.description for agent in self._agents]
        ran = [d for d in known if d.agent in self._ran]
        alive = [d for d in known if d.agent not in self._lost]
        return combined(ran or alive or known)

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch, by the first agent that does.

        Raises:
            InputError: The batch is empty.
            AgentError: All agents were lost.
        """
        for agent in self._alive():
            try:
                return agent.predict(inputs)
            except LOST as error:
                self._lose(agent, reason_of(agent.description.agent, error), 1)
        raise self._nobody()

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, and gives the results in order.

        Closing the iterator stops the work. The spans of each agent are in the trace at the end; the batches
        are numbered as they are here.

        Raises:
            InputError: A batch is empty.
            AgentError: All agents were lost, or too many with one batch.
        """
        if self._closed:
            raise SessionError("the pool of agents is closed; open another")
        cold, self._cold = self._cold, False
        if cold:
            yield from self._warm_up([tuple(batch) for batch in batches], trace)
        else:
            yield from self._share(batches, trace)

    def close(self) -> None:
        """Closes the model at every agent; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            side_by_side(self._agents, RemoteAgent.close)

    def _share(self, batches: Iterable[Sequence[Input]], trace: TraceScope | None) -> Iterator[BatchResult]:
        alive = self._alive()
        names = [agent.description.agent for agent in alive]
        board = Board(batches, names, _AHEAD_PER_AGENT * len(alive))
        self._ran = set()
        crew = [CrewMember(agent, board, len(alive), trace, self._lose, self._on_answer) for agent in alive]
        if not crew:
            raise self._nobody()
        for member in crew:
            member.start()
        try:
            while (result := board.next()) is not None:
                self._ran = set(board.answered)
                yield result
            for member in crew:
                member.join()
        finally:
            board.close()
            for member in crew:
                member.cancel()
            for member in crew:
                member.join(_LEAVING_S)
            self._ran = set(board.answered)
            shares = (f"{name} {count}" for name, count in sorted(board.answered.items()))
            _log.info("batches by agent: %s", ", ".join(shares))

    def _warm_up(self, batches: Sequence[Sequence[Input]], trace: TraceScope | None) -> Iterator[BatchResult]:
        """Has every agent predict all the batches; the results are those of one of them."""
        alive = self._alive()
        outcomes = side_by_side(alive, lambda agent: list(agent.predict_batches(batches, trace)))
        done: list[list[BatchResult]] = []
        for agent, outcome in zip(alive, outcomes, strict=True):
            if isinstance(outcome, LOST):
                self._lose(agent, reason_of(agent.description.agent, outcome), 0)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                done.append(outcome)
        if not done:
            raise self._nobody()
        yield from done[0]

    def _alive(self) -> list[RemoteAgent]:
        with self._lock:
            return [agent for agent in self._agents if agent.description.agent not in self._lost]

    def _lose(self, agent: RemoteAgent, reason: str, batches: int) -> None:
        name = agent.description.agent
        with self._lock:
            if name in self._lost:
                return
            self._lost[name] = reason
            left = len(self._agents) - len(self._lost)
        again = f"; {batches} batches go to others" if batches and left else ""
        self._say(f"left out from here on: {reason}{again}; {left} of {len(self._agents)} agents go on")

    def _nobody(self) -> AgentError:
        return AgentError(f"no agent is left that could go on: {'; '.join(self._lost.values())}")
