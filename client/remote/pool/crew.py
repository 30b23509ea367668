"""One agent's part in a run: takes batches from the board as long as it lives."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from agent.tracing.scope import TraceScope
from client.remote.agent import RemoteAgent
from client.remote.pool.board import Board, Lease
from manifests.errors import AgentError, DeviceLostError, HungError, SessionError

LOST = (AgentError, SessionError, DeviceLostError, HungError)
"""What an agent raises that can do no more for this run, though another one may."""
_FIRST_ROUND = 2  # batches


def reason_of(address: str, error: Exception) -> str:
    """Why an agent was lost, with its address; what an agent itself says is without."""
    return str(error) if address in str(error) else f"agent {address}: {error}"


class LossReport(Protocol):
    """Is told of an agent that was lost."""

    def __call__(self, agent: RemoteAgent, reason: str, batches: int) -> None:
        """Takes the agent, why it was lost, and how many batches it was lost with; in any thread."""
        ...


class CrewMember:
    """An agent in a run, in a thread of its own. It sends a round, and takes the next when it is answered.

    The rounds begin small and grow, as nobody knows how many batches there are: in a short run too, there
    is something for everyone, and in a long one an agent can prepare many inputs at once.

    Args:
        agent: The open model.
        board: Where batches come from and results go.
        share: Into how many parts the rounds are cut, so that all agents have something to do.
        trace: What the agent's spans hang under; None asks for none.
        on_loss: Told when the agent is lost.
        on_answer: Told of every answer, with the agent's address.

    Raises:
        SessionError: The model is closed.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        board: Board,
        share: int,
        trace: TraceScope | None,
        on_loss: LossReport,
        on_answer: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._name = agent.description.agent
        self._board = board
        self._share = share
        self._on_loss = on_loss
        self._on_answer = on_answer
        self._held: deque[Lease] = deque()
        self._next_size = _FIRST_ROUND
        self._flight = agent.begin_flight(trace)
        self._thread = threading.Thread(target=self._run, name=f"agent-{self._name}", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def cancel(self) -> None:
        """Breaks off what is under way."""
        self._flight.cancel()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until its part is over, or for a time."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            try:
                self._work()
            finally:
                self._flight.close()
        except LOST as error:
            batches = len(self._held)
            reason = reason_of(self._name, error)
            if self._board.lose(self._name, self._held, reason):
                self._on_loss(self._agent, reason, batches)
        except BaseException as error:  # noqa: BLE001 - raised again where the results are taken
            self._board.fail(error)

    def _work(self) -> None:
        while True:
            while len(self._held) < self._agent.batches_in_flight and self._send_round():
                pass
            if not self._held:
                break
            result = self._flight.next()
            self._board.answer(self._name, self._held.popleft(), result)
            self._on_answer(self._name)
        self._flight.end()
        self._flight.finish()

    def _send_round(self) -> bool:
        """Sends the batches of a round, if there are any; waits for some where nothing else is to be done."""
        first = self._board.take(wait=not self._held)
        if first is None:
            return False
        round_ = [first]
        self._held.append(first)
        largest = self._agent.round_size(len(first.inputs))
        size = min(self._next_size, max(largest // self._share, min(largest, _FIRST_ROUND)))
        self._next_size *= 2
        while len(round_) < size:
            if (lease := self._board.take(wait=False)) is None:
                break
            round_.append(lease)
            self._held.append(lease)
        batches = [self._agent.begin_batch(lease.inputs) for lease in round_]
        self._flight.add(batches, [lease.number for lease in round_])
        return True
