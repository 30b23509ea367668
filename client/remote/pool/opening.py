"""Opening one model on several agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client.remote.agent import RemoteAgent
from client.remote.pool.crew import LOST, reason_of
from client.remote.pool.pool import AgentPool
from client.remote.pool.side_by_side import side_by_side
from manifests.errors import AgentError


def open_agent_pool(
    addresses: Sequence[str],
    open_one: Callable[[str], RemoteAgent],
    *,
    warm_up: bool = False,
    say: Callable[[str], None] = lambda _: None,
    on_answer: Callable[[str], None] = lambda _: None,
) -> AgentPool:
    """Opens a model on all agents at once. One that cannot be reached, or has no room, is said and left out.

    Args:
        addresses: The agents.
        open_one: Opens the model on the agent at an address.
        warm_up: See ``AgentPool``.
        say: See ``AgentPool``.
        on_answer: See ``AgentPool``.

    Raises:
        AgentError: None can be reached.
        ConfigurationError: They differ in what has to be the same.
        InferscopeError: One cannot open the model.
    """
    opened: list[RemoteAgent] = []
    lost: list[str] = []
    refused: Exception | None = None
    for address, outcome in zip(addresses, side_by_side(addresses, open_one), strict=True):
        if isinstance(outcome, RemoteAgent):
            opened.append(outcome)
        elif isinstance(outcome, LOST):
            lost.append(reason_of(address, outcome))
        else:
            refused = refused or outcome
    try:
        if refused is not None:
            raise refused
        if not opened:
            raise AgentError("; ".join(lost))
        for reason in lost:
            say(f"left out: {reason}")
        return AgentPool(opened, warm_up=warm_up, say=say, on_answer=on_answer)
    except BaseException:
        side_by_side(opened, RemoteAgent.close)
        raise
