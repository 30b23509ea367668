"""The agents that are known: those of the configuration, which are asked, and those of the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from client.agents.known_agent import KnownAgent, Source, only_local_elsewhere
from client.invocation import DEFAULT_DATABASE, Invocation
from client.remote.address import AgentAddress
from client.remote.pool.side_by_side import side_by_side
from client.serving.heartbeat import utc_now
from evaluators.store.agent_records import AgentRecord
from evaluators.store.opening import local_file, open_agent_directory
from manifests.errors import ConfigurationError, InferscopeError, StoreError

if TYPE_CHECKING:
    from client.remote.probing import Probe
    from client.remote.tls import ClientTls

_AT_ONCE = 32
_NAMED = re.compile(r"^agent \S+: ")


def find_agents(
    invocation: Invocation,
    database_address: str | None,
    database_name: str | None,
    say: Callable[[str], None],
) -> list[KnownAgent]:
    """Returns the agents of the configuration, and those that are published and alive.

    Those of the configuration are asked, side by side, with a short deadline. Where the database cannot be
    reached, they are all there is, and that is said.

    Args:
        invocation: Has the configuration and the secret.
        database_address: The database; None for the one that is configured.
        database_name: Its name; None for the one that is configured.
        say: Told, in one line, of a database that cannot be reached.

    Raises:
        ConfigurationError: An address of the configuration makes no sense, the secret cannot be sent, or a
            file of TLS cannot be used.
        StoreError: The database cannot be reached, and no agent is configured.
    """
    addresses = [str(AgentAddress.parse(address)) for address in invocation.configuration.agents]
    configured = ask_agents(
        [KnownAgent(address, Source.CONFIGURATION, None) for address in dict.fromkeys(addresses)],
        invocation.secret,
        invocation.agent_tls,
    )
    try:
        published = _published(invocation, database_address, database_name)
    except StoreError as error:
        if not configured:
            raise
        say(f"only the agents of the configuration are known: {error}")
        published = []
    known = {agent.address for agent in configured}
    found = [_checked(_from_record(record), invocation.agent_tls) for record in published]
    return [*configured, *(agent for agent in found if agent.address not in known)]


def ask_agents(
    agents: Sequence[KnownAgent], secret: str | None, tls: ClientTls | None = None
) -> list[KnownAgent]:
    """Asks agents what they are and how much they have to do, many at once.

    One that has a problem is not asked, nor shown the secret.

    Returns:
        Them with what they answered, in the same order; one that refused or did not answer has a problem.

    Raises:
        ConfigurationError: The secret cannot be sent, or a file of TLS cannot be used.
    """
    checked = [_checked(agent, tls) for agent in agents]
    places = [place for place, agent in enumerate(checked) if not agent.problem]
    if not places:
        return checked
    from client.remote.probing import check_access, probe_agent  # gRPC, which a listing does not need

    check_access(secret, tls)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        answers = side_by_side(some, lambda place: probe_agent(checked[place].address, secret, tls=tls))
        for place, answer in zip(some, answers, strict=True):
            checked[place] = _answered(checked[place], answer)
    return checked


def _answered(agent: KnownAgent, answer: Probe | Exception) -> KnownAgent:
    """The agent with what it has answered, or with the problem that it has.

    Raises:
        Exception: The answer is a fault of the program.
    """
    if isinstance(answer, InferscopeError):
        return agent.with_problem(f"agent {agent.address}: {_NAMED.sub('', str(answer))}")
    if isinstance(answer, Exception):
        raise answer
    if answer.facts is not None:
        return KnownAgent(agent.address, agent.source, answer.facts, answer.open_sessions)
    if agent.facts is not None:  # it is alive, and what it is has been published
        return replace(agent, open_sessions=None)
    return agent.with_problem(f"agent {agent.address}: serves, but does not say what it is: {answer.untold}")


def _checked(agent: KnownAgent, tls: ClientTls | None) -> KnownAgent:
    """An agent of the database with what speaks against asking it; what the user has named is not checked.

    Whoever can write there must not get around the TLS that the user asks for.
    """
    if agent.problem or agent.source is not Source.DATABASE:
        return agent
    try:
        address = AgentAddress.parse(agent.address)
    except ConfigurationError:
        return agent.with_problem(f"agent {agent.address}: published with an address that is no host:port")
    agent = replace(agent, address=str(address))
    if tls is not None and address.secure is False:
        return agent.with_problem(
            f"agent {address}: published without TLS; to speak to it all the same, name it: --agent {address}"
        )
    if agent.facts and only_local_elsewhere(agent.address, agent.facts.hostname):
        return agent.with_problem(f"agent {address}: only {agent.facts.hostname} itself can reach it")
    return agent


def _published(
    invocation: Invocation, database_address: str | None, database_name: str | None
) -> Sequence[AgentRecord]:
    """What is in the database; nothing where it is a local file that is not there."""
    settings = invocation.configuration.database
    address = database_address or settings.address
    name = database_name or settings.name or DEFAULT_DATABASE
    directory = invocation.data_directory
    if address is None and not local_file(name, directory).exists():
        return []
    with closing(open_agent_directory(address, name, directory)) as published:
        return published.alive(utc_now())


def _from_record(record: AgentRecord) -> KnownAgent:
    return KnownAgent(
        record.address,
        Source.DATABASE,
        record.facts,
        record.open_sessions,
        published_at=record.published_at,
    )
