"""Parses the value of ``--agent``, and chooses the known agent that fits it best."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from inferometer.agent.protocol.agent_info import AgentInfo
from inferometer.client.api.invocation import Invocation
from inferometer.client.discovery.finding import KnownAgent, ask_agents, find_agents
from inferometer.client.remote.channel.address import AgentAddress
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.manifests.errors import AgentError, ConfigurationError, suggestion
from inferometer.manifests.versions import InvalidConstraintError

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
            ConfigurationError: A key is unknown, or has no value.
        """
        if text.strip().casefold() == ANY:
            return cls()
        conditions: list[tuple[str, str]] = []
        for condition in text.split(","):
            key, separator, part = (piece.strip() for piece in condition.partition("="))
            if not (key and separator and part):
                raise ConfigurationError(
                    f'--agent "{text}": "{condition.strip()}" is no condition; '
                    "write key=part with commas between, such as gpu=H100,framework=PyTorch"
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

    A healthy agent that was too busy to report its open models is chosen last.

    Args:
        agents: The known agents.
        selector: The conditions on the agent.
        wanted: The model that the agent must be able to run, on a GPU if the request asks for one.
        ask: Probes agents, and returns them with their responses.
        seed: The seed for breaking ties.

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
        able = [
            agent
            for agent in fitting
            if agent.runs(wanted.model_name, wanted.framework_name, wanted.model_version)
        ]
    except InvalidConstraintError as error:
        raise ConfigurationError(f"--model_version: {error}") from error
    if not able:
        known = dict.fromkeys(
            model.name for agent in fitting if agent.agent_info for model in agent.agent_info.models
        )
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
        raise AgentError(f"none of the {len(able)} agents that fit --agent {selector} answers")
    random.Random(seed).shuffle(answering)  # noqa: S311 - a choice, no secret
    return min(answering, key=lambda agent: inf if agent.open_sessions is None else agent.open_sessions)


def read_agents(text: str) -> tuple[str, ...] | AgentSelector:
    """Parses the value of ``--agent``.

    ``any`` and a text with ``=`` are selectors. A text with ``://`` is the address of a server of another
    protocol and is returned unchanged, unless the scheme is ``grpcs`` or ``grpc``. Any other text is a list
    of addresses separated by commas.

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
    """Returns the addresses of the agents that run the model; empty for this process.

    Prints on stderr which agent was picked by a selector.

    Args:
        invocation: Has the configuration and the secret.
        text: The value of ``--agent``; None uses the configuration.
        wanted: The model that the agent must be able to run. Its seed breaks ties between agents.

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
