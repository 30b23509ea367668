"""From ``--agent`` to the addresses of agents."""

from __future__ import annotations

from typing import Protocol

import click

from client.agents.finding import ask_agents, find_agents
from client.agents.naming import read_agents
from client.agents.picking import Wanted, pick_agent
from client.invocation import Invocation
from manifests.errors import ConfigurationError


class AgentWish(Protocol):
    """The options that agents are chosen by."""

    @property
    def agent_address(self) -> str | None: ...  # noqa: D102
    @property
    def model_name(self) -> str: ...  # noqa: D102
    @property
    def model_version(self) -> str | None: ...  # noqa: D102
    @property
    def gpu(self) -> bool: ...  # noqa: D102
    @property
    def framework_name(self) -> str | None: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def database_address(self) -> str | None: ...  # noqa: D102
    @property
    def database_name(self) -> str | None: ...  # noqa: D102


def choose_agents(invocation: Invocation, wish: AgentWish) -> tuple[str, ...]:
    """Returns where the model is to run, and says on stderr which agent was picked; empty for this process.

    Raises:
        ConfigurationError: The option makes no sense, or no agent fits.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    text = wish.agent_address or invocation.configuration.agent
    if not text:
        return ()
    named = read_agents(text)
    if isinstance(named, tuple):
        return named
    secret, tls = invocation.secret, invocation.agent_tls
    known = find_agents(invocation, wish.database_address, wish.database_name, _say)
    picked = pick_agent(
        known,
        named,
        Wanted(
            wish.model_name,
            wish.model_version,
            wish.framework_name or invocation.configuration.framework,
            wish.gpu,
        ),
        ask=lambda agents: ask_agents(agents, secret, tls),
        seed=wish.seed,
    )
    sessions = f", {picked.open_sessions} models open" if picked.open_sessions is not None else ""
    host = f" on {picked.facts.hostname}" if picked.facts else ""
    _say(f"agent {named}: {picked.address}{host}{sessions}")
    return (picked.address,)


def choose_one_agent(invocation: Invocation, wish: AgentWish) -> str | None:
    """Returns where the model is to run, as ``choose_agents`` does, where several make no sense.

    Raises:
        ConfigurationError: Several are named.
    """
    chosen = choose_agents(invocation, wish)
    if len(chosen) > 1:
        raise ConfigurationError(
            f"--agent names {len(chosen)} agents; under load is one: name it, or let any pick one"
        )
    return chosen[0] if chosen else None


def _say(line: str) -> None:
    click.echo(line, err=True)
