"""Picking one of the agents that are known, for a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from client.agents.known_agent import KnownAgent
from client.agents.selector import AgentSelector
from manifests.errors import AgentError, ConfigurationError, suggestion
from manifests.versions import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an agent is to run.

    Attributes:
        model_name: The model.
        model_version: A version or a constraint; None for any.
        framework_name: The framework; None for any.
        gpu: Whether on a GPU.
    """

    model_name: str
    model_version: str | None = None
    framework_name: str | None = None
    gpu: bool = False

    def __str__(self) -> str:
        version = f" {self.model_version}" if self.model_version else ""
        return f"{self.model_name}{version}" + (f" in {self.framework_name}" if self.framework_name else "")


Ask = Callable[[Sequence[KnownAgent]], Sequence[KnownAgent]]


def pick_agent(
    agents: Sequence[KnownAgent],
    selector: AgentSelector,
    wanted: Wanted,
    *,
    ask: Ask,
    seed: int,
) -> KnownAgent:
    """Picks the agent that fits and has the fewest models open; of several such, one at random.

    One that is healthy and was too busy to say how many it has open comes last.

    Args:
        agents: Those that are known.
        selector: What is asked of it.
        wanted: What it has to run.
        ask: Asks agents how they are at this moment.
        seed: Draws among equals.

    Raises:
        ConfigurationError: None fits; the message says why.
        AgentError: None of those that fit answers, or none is alive.
    """
    usable = [agent for agent in agents if agent.usable]
    if not usable:
        problems = "; ".join(agent.problem for agent in agents if agent.problem)
        raise AgentError(
            f"no agent is alive for --agent {selector}: {problems or 'none is published or configured'}; "
            "see `agent info agents`"
        )
    fitting = [agent for agent in usable if agent.facts and not selector.unmet(agent.facts)]
    if not fitting:
        unmet = dict.fromkeys(selector.unmet(agent.facts) for agent in usable if agent.facts)
        raise ConfigurationError(
            f"none of the {len(usable)} agents that are alive fits --agent {selector} "
            f"(not met: {', '.join(unmet)}); see `agent info agents`"
        )
    able = _able(fitting, wanted)
    if not able:
        known = dict.fromkeys(model.name for agent in fitting if agent.facts for model in agent.facts.models)
        hint = "" if wanted.model_name in known else f": {suggestion(wanted.model_name, known)}"
        raise ConfigurationError(
            f"none of the {len(fitting)} agents that fit --agent {selector} can run {wanted}{hint}"
        )
    if wanted.gpu and not (able := [agent for agent in able if agent.facts and agent.facts.gpus]):
        raise ConfigurationError(
            f"none of the agents that fit --agent {selector} and can run {wanted} has a GPU"
        )
    answering = [agent for agent in ask(able) if agent.usable]
    if not answering:
        raise AgentError(f"none of the {len(able)} agents that fit --agent {selector} answers")
    random.Random(seed).shuffle(answering)  # noqa: S311 - a choice, no secret
    return min(answering, key=lambda agent: inf if agent.open_sessions is None else agent.open_sessions)


def _able(agents: Sequence[KnownAgent], wanted: Wanted) -> list[KnownAgent]:
    """Those that can run it.

    Raises:
        ConfigurationError: The version is none.
    """
    try:
        return [
            agent
            for agent in agents
            if agent.runs(wanted.model_name, wanted.framework_name, wanted.model_version)
        ]
    except InvalidConstraintError as error:
        raise ConfigurationError(f"--model_version: {error}") from error
