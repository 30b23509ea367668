"""The agents that are known: those of the configuration, which are asked, and those of the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from client.agents.known_agent import KnownAgent, Source, only_local_elsewhere
from client.invocation import DEFAULT_DATABASE, Invocation
from client.remote.address import AgentAddress
from client.remote.pool.side_by_side import side_by_side
from client.serving.heartbeat import utc_now
from evaluators.store.agent_records import AgentRecord
from evaluators.store.opening import local_file, open_agent_directory
from manifests.errors import AgentError, StoreError

if TYPE_CHECKING:
    from client.remote.tls import ClientTls

_AT_ONCE = 32


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
        ConfigurationError: An address makes no sense.
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
    return [*configured, *(_from_record(record) for record in published if record.address not in known)]


def ask_agents(
    agents: Sequence[KnownAgent], secret: str | None, tls: ClientTls | None = None
) -> list[KnownAgent]:
    """Asks agents what they are and how much they have to do, many at once.

    Returns:
        Them with what they answered, in the same order; one that did not answer has a problem.
    """
    from client.remote.probing import probe_agent  # gRPC, which a listing of the database does not need

    asked: list[KnownAgent] = []
    for start in range(0, len(agents), _AT_ONCE):
        some = agents[start : start + _AT_ONCE]
        answers = side_by_side(some, lambda agent: probe_agent(agent.address, secret, tls=tls))
        for agent, answer in zip(some, answers, strict=True):
            if isinstance(answer, AgentError):
                asked.append(agent.with_problem(str(answer)))
            elif isinstance(answer, Exception):
                raise answer
            else:
                facts, sessions = answer
                asked.append(KnownAgent(agent.address, agent.source, facts, sessions))
    return asked


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
    problem = ""
    if only_local_elsewhere(record.address, record.facts.hostname):
        problem = f"agent {record.address}: only {record.facts.hostname} itself can reach it"
    return KnownAgent(
        record.address, Source.DATABASE, record.facts, record.open_sessions, problem, record.published_at
    )
