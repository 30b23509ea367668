"""Finds the known agents, parses the value of ``--agent``, and chooses the agent that fits it best.

Agents in the configuration are probed; agents in the database have published themselves there.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from inferometer.agent.protocol.agent_info import AgentInfo
from inferometer.client.api.invocation import Invocation
from inferometer.client.remote.address import AgentAddress
from inferometer.evaluators.evaluation import utc_now
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.store.opening import local_file, open_agent_directory
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    InferometerError,
    StoreError,
    suggestion,
)
from inferometer.manifests.versions import Constraint, InvalidConstraintError

if TYPE_CHECKING:
    from inferometer.client.remote.connection import ClientTls
    from inferometer.client.remote.native.connection import Probe


_LOOPBACK_NAMES = frozenset({"localhost", "::1", "[::1]"})
_AT_ONCE = 32
_NAMED = re.compile(r"^agent \S+: ")


class Source(str, Enum):
    """Where an agent was found."""

    CONFIGURATION = "configuration"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """A known agent, whether or not it responds.

    Its description is None if it did not respond, and so is the number of models that it had open.
    ``problem`` is the reason why it cannot be used, in one line; empty if it can.
    """

    address: str
    source: Source
    agent_info: AgentInfo | None
    open_sessions: int | None = None
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether the agent can be used, as far as is known."""
        return self.agent_info is not None and not self.problem

    def http_url(self, *, secure: bool = False) -> str | None:
        """Returns the URL of its Open Inference Protocol endpoint over HTTP, on the host of its address.

        Returns None if it has no such endpoint, or if its address is invalid. ``secure`` specifies whether to
        use TLS if the address does not specify it.
        """
        if self.agent_info is None or self.agent_info.http_port is None:
            return None
        try:
            address = AgentAddress.parse(self.address)
        except ConfigurationError:
            return None
        has_tls = secure if address.secure is None else address.secure
        return f"http{'s' if has_tls else ''}://{address.host}:{self.agent_info.http_port}"

    def runs(
        self, model_name: str, framework_name: str | None = None, model_version: str | None = None
    ) -> bool:
        """Returns whether the agent can run a model. Names are compared ignoring case; None matches any name.

        Raises:
            InvalidConstraintError: The version constraint is invalid.
        """
        if self.agent_info is None:
            return False
        model = model_name.strip().casefold()
        framework = framework_name.strip().casefold() if framework_name else None
        versions = Constraint(model_version or "*")
        return any(
            each.name.casefold() == model
            and framework in {None, each.framework.casefold()}
            and versions.allows(each.version)
            for each in self.agent_info.models
        )


def only_local_elsewhere(address: str, hostname: str, here: str | None = None) -> bool:
    """Returns whether an address is a loopback address that an agent on another machine published.

    ``hostname`` is the host name of the agent's machine; ``here`` is this machine's, looked up if None.
    """
    host = address.rpartition("://")[2].rpartition(":")[0].casefold()
    loopback = host in _LOOPBACK_NAMES or host.startswith("127.")
    return loopback and hostname != (here or socket.gethostname())


def find_agents(invocation: Invocation) -> list[KnownAgent]:
    """Returns the agents in the configuration, and the published agents in the database that are alive.

    The agents in the configuration are probed in parallel, with a short deadline. If the database cannot be
    reached, only the agents in the configuration are returned, and the user is notified.

    Raises:
        ConfigurationError: An address in the configuration is invalid, the secret cannot be sent, or a TLS
            file cannot be used.
        StoreError: The database cannot be reached, and no agent is configured.
    """
    addresses = [str(AgentAddress.parse(address)) for address in invocation.configuration.agents]
    configured = ask_agents(
        [KnownAgent(address, Source.CONFIGURATION, None) for address in dict.fromkeys(addresses)],
        invocation.secret,
        invocation.agent_tls,
    )
    try:
        published = _published(invocation)
    except StoreError as error:
        if not configured:
            raise
        invocation.notify(f"only the agents in the configuration are known: {error}")
        published = []
    known = {agent.address for agent in configured}
    found = [_checked(agent, invocation.agent_tls) for agent in published]
    return [*configured, *(agent for agent in found if agent.address not in known)]


def ask_agents(
    agents: Sequence[KnownAgent], secret: str | None, tls: ClientTls | None = None
) -> list[KnownAgent]:
    """Probes agents in parallel. An agent with a problem is neither contacted nor sent the secret.

    Returns:
        The agents with their responses, in order; ``problem`` is set if an agent refused or did not respond.

    Raises:
        ConfigurationError: The secret cannot be sent, or a TLS file cannot be used.
    """
    checked = [_checked(agent, tls) for agent in agents]
    places = [place for place, agent in enumerate(checked) if not agent.problem]
    if not places:
        return checked
    # gRPC, which most commands do not need
    from inferometer.client.remote.native.connection import check_access, probe_agent
    from inferometer.client.remote.pool import side_by_side

    check_access(secret, tls)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        answers = side_by_side(some, lambda place: probe_agent(checked[place].address, secret, tls=tls))
        for place, answer in zip(some, answers, strict=True):
            checked[place] = _answered(checked[place], answer)
    return checked


def _answered(agent: KnownAgent, answer: Probe | Exception) -> KnownAgent:
    """Returns the agent with its response or its problem; re-raises any error other than InferometerError."""
    if isinstance(answer, InferometerError):
        return replace(agent, problem=f"agent {agent.address}: {_NAMED.sub('', str(answer))}")
    if isinstance(answer, Exception):
        raise answer
    if answer.agent_info is not None:
        return KnownAgent(agent.address, agent.source, answer.agent_info, answer.open_sessions)
    if agent.agent_info is not None:  # it is alive, and its description is published
        return replace(agent, open_sessions=None)
    return replace(
        agent, problem=f"agent {agent.address}: responds, but gives no description: {answer.problem}"
    )


def _checked(agent: KnownAgent, tls: ClientTls | None) -> KnownAgent:
    """Checks whether an agent from the database may be contacted; if not, returns it with the problem.

    A user with write access to the database must not be able to bypass the required TLS.
    """
    if agent.problem or agent.source is not Source.DATABASE:
        return agent
    try:
        address = AgentAddress.parse(agent.address)
    except ConfigurationError:
        return replace(
            agent, problem=f"agent {agent.address}: published with an address that is not host:port"
        )
    agent = replace(agent, address=str(address))
    if tls is not None and address.secure is False:
        remedy = f"to connect to it anyway, name it: --agent {address}"
        return replace(agent, problem=f"agent {address}: published without TLS; {remedy}")
    if agent.agent_info and only_local_elsewhere(agent.address, agent.agent_info.hostname):
        return replace(
            agent, problem=f"agent {address}: only {agent.agent_info.hostname} itself can reach it"
        )
    return agent


def _published(invocation: Invocation) -> list[KnownAgent]:
    """Returns the agents in the database; empty if the database is a local file that does not exist."""
    (address, name), directory = invocation.database, invocation.data_directory
    if address is None and not local_file(name, directory).exists():
        return []
    with closing(open_agent_directory(address, name, directory)) as published:
        records = published.alive(utc_now())
    return [KnownAgent(r.address, Source.DATABASE, r.agent_info, r.open_sessions) for r in records]


ANY = "any"
_OWN_SCHEMES = ("grpc://", "grpcs://")
_VALUES: Mapping[str, Callable[[AgentInfo], tuple[str, ...]]] = {
    "gpu": lambda info: info.gpus,
    "cpu": lambda info: (info.cpu_model,),
    "arch": lambda info: (info.architecture,),
    "host": lambda info: (info.hostname,),
    "framework": lambda info: tuple(f"{name} {version}" for name, version in info.frameworks.items()),
    "model": lambda info: tuple(model.name for model in info.models),
}


@dataclass(frozen=True, slots=True)
class AgentSelector:
    """Conditions on an agent: each is a key and a substring of the agent's value, compared ignoring case.

    Without conditions, any agent fits.
    """

    conditions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AgentSelector:
        """Parses ``any``, or a list of ``key=part`` separated by commas.

        Raises:
            ConfigurationError: A key is unknown or has no value.
        """
        if text.strip().casefold() == ANY:
            return cls()
        conditions: list[tuple[str, str]] = []
        for condition in text.split(","):
            key, separator, part = (piece.strip() for piece in condition.partition("="))
            if not (key and separator and part):
                raise ConfigurationError(
                    f'--agent "{text}": "{condition.strip()}" is not a condition; '
                    "write key=part, separated by commas, such as gpu=H100,framework=PyTorch"
                )
            if key.casefold() not in _VALUES:
                raise ConfigurationError(f'--agent: unknown key "{key}"; {suggestion(key, _VALUES)}')
            conditions.append((key.casefold(), part))
        return cls(tuple(conditions))

    def unmet(self, agent_info: AgentInfo) -> str:
        """Returns the first condition that an agent does not meet; empty if it meets all."""
        for key, part in self.conditions:
            if not any(part.casefold() in value.casefold() for value in _VALUES[key](agent_info)):
                return f"{key}={part}"
        return ""

    def __str__(self) -> str:
        return ",".join(f"{key}={part}" for key, part in self.conditions) or ANY


def pick_agent(
    agents: Sequence[KnownAgent],
    selector: AgentSelector,
    wanted: SystemRequest,
    *,
    ask: Callable[[Sequence[KnownAgent]], Sequence[KnownAgent]],
    seed: int,
) -> KnownAgent:
    """Picks the fitting agent with the fewest open models, and breaks ties at random.

    A healthy agent that was too busy to report its open models is chosen last. ``ask`` probes agents, and
    returns them with their responses.

    Raises:
        ConfigurationError: No agent fits; the message says why.
        AgentError: No fitting agent responds, or no agent is alive.
    """
    usable = [agent for agent in agents if agent.usable]
    if not usable:
        problems = "; ".join(agent.problem for agent in agents if agent.problem)
        raise AgentError(
            f"no agent is alive for --agent {selector}: {problems or 'none is published or configured'}; "
            "see `agent info agents`"
        )
    version = f" {wanted.model_version}" if wanted.model_version else ""
    model = wanted.model_name + version + (f" in {wanted.framework_name}" if wanted.framework_name else "")
    fitting = [agent for agent in usable if agent.agent_info and not selector.unmet(agent.agent_info)]
    if not fitting:
        unmet = dict.fromkeys(selector.unmet(agent.agent_info) for agent in usable if agent.agent_info)
        raise ConfigurationError(
            f"none of the {len(usable)} agents that are alive fits --agent {selector} "
            f"(not met: {', '.join(unmet)}); see `agent info agents`"
        )
    try:
        asked = wanted.model_name, wanted.framework_name, wanted.model_version
        able = [agent for agent in fitting if agent.runs(*asked)]
    except InvalidConstraintError as error:
        raise ConfigurationError(f"--model_version: {error}") from error
    if not able:
        runnable = (agent.agent_info.models for agent in fitting if agent.agent_info)
        known = dict.fromkeys(model.name for models in runnable for model in models)
        hint = "" if wanted.model_name in known else f": {suggestion(wanted.model_name, known)}"
        raise ConfigurationError(
            f"none of the {len(fitting)} agents that fit --agent {selector} can run {model}{hint}"
        )
    gpu = wanted.session.device.is_gpu
    if gpu and not (able := [agent for agent in able if agent.agent_info and agent.agent_info.gpus]):
        raise ConfigurationError(
            f"none of the agents that fit --agent {selector} and can run {model} has a GPU"
        )
    answering = [agent for agent in ask(able) if agent.usable]
    if not answering:
        raise AgentError(f"none of the {len(able)} agents that fit --agent {selector} responds")
    random.Random(seed).shuffle(answering)  # noqa: S311 - a choice, no secret
    return min(answering, key=lambda agent: inf if agent.open_sessions is None else agent.open_sessions)


def read_agents(text: str) -> tuple[str, ...] | AgentSelector:
    """Parses the value of ``--agent``.

    ``any`` and texts that contain ``=`` are selectors. A text with ``://`` is the address of a server with
    another protocol and is returned unchanged, unless the scheme is ``grpcs`` or ``grpc``. Any other text is
    a list of addresses separated by commas.

    Raises:
        ConfigurationError: The value is invalid, or names an agent twice.
    """
    text = text.strip()
    if any(
        "://" in each and not each.strip().casefold().startswith(_OWN_SCHEMES) for each in text.split(",")
    ):
        return (text,)
    if "=" in text or text.casefold() == ANY:
        return AgentSelector.parse(text)
    addresses = tuple(str(AgentAddress.parse(each)) for each in text.split(","))
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigurationError(f"--agent names {address} twice")
    return addresses


def choose_agents(invocation: Invocation, text: str | None, wanted: SystemRequest) -> tuple[str, ...]:
    """Returns the addresses of the agents that run the model; empty if this process runs it.

    If a selector is given, prints on stderr which agent was picked. ``text`` is the value of ``--agent``;
    None means the value in the configuration. The seed of ``wanted`` breaks ties between agents.

    Raises:
        ConfigurationError: The text is invalid, or no agent fits.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    text = text or invocation.configuration.agent
    if not text:
        return ()
    named = read_agents(text)
    if isinstance(named, tuple):
        return named
    secret, tls = invocation.secret, invocation.agent_tls
    known = find_agents(invocation)
    wanted = replace(wanted, framework_name=wanted.framework_name or invocation.configuration.framework)
    seed = wanted.session.seed
    picked = pick_agent(known, named, wanted, ask=lambda agents: ask_agents(agents, secret, tls), seed=seed)
    sessions = f", {picked.open_sessions} models open" if picked.open_sessions is not None else ""
    host = f" on {picked.agent_info.hostname}" if picked.agent_info else ""
    invocation.notify(f"agent {named}: {picked.address}{host}{sessions}")
    return (picked.address,)
