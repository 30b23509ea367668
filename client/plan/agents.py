"""The served agents of a plan: queries once what they have, to check the plan and to place its cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command_line import parsed_command
from inferometer.client.cli.exit_codes import EXIT_CODES
from inferometer.client.cli.output import say
from inferometer.client.discovery.finding import KnownAgent, Source, ask_agents
from inferometer.client.plan.asking import PlanRequest
from inferometer.client.remote.channel.address import CANNOT_BE_REACHED, AgentAddress, is_kserve
from inferometer.evaluators.plans.cells import Cell
from inferometer.evaluators.plans.expressions import shown
from inferometer.evaluators.plans.running.journal import Result
from inferometer.evaluators.plans.running.places import AgentsPlace, LocalPlace, host_of
from inferometer.evaluators.plans.software import IMAGE, SOFTWARE
from inferometer.manifests.errors import AgentError, ConfigurationError, suggestion
from inferometer.manifests.versions import InvalidConstraintError

_COMMAND = "predict"
_DECIDING = ("model_name", "model_version", "framework_name", "model_path", "gpu", "use_gpu")
_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")


@dataclass(frozen=True)
class PlanAgents:
    """The agents of a plan that respond.

    Attributes:
        known: The agents with their responses.
        default_framework: The framework of cells that name none; None for any.
    """

    known: tuple[KnownAgent, ...]
    default_framework: str | None = None
    _able: dict[tuple[str, ...], tuple[str, ...] | str] = field(default_factory=dict)

    def able(self, cell: Cell) -> tuple[str, ...]:
        """Returns the addresses of the agents that can run a cell.

        Raises:
            ConfigurationError: No agent can run the cell, and the message says what they have; or the cell is
                not a valid command line.
        """
        for name, reason in _EXCLUDED.items():
            if shown(cell.parameters.get(name)):
                raise ConfigurationError(f"{name}: {reason}; leave it out, or run the plan without agents")
        names = {name.replace("-", "_"): shown(value) for name, value in cell.options.items()}
        key = tuple(names.get(each, "") for each in _DECIDING)
        if key not in self._able:
            wanted = parsed_command(cell.argv).params
            try:
                self._able[key] = self._fitting(wanted)
            except ConfigurationError as error:
                self._able[key] = str(error)
        if isinstance(able := self._able[key], str):
            raise ConfigurationError(able)
        return able

    def _fitting(self, wanted: Mapping[str, Any]) -> tuple[str, ...]:
        model, framework = wanted["model_name"], wanted["framework_name"] or self.default_framework
        if wanted["model_path"]:
            raise ConfigurationError(
                f"model_path {wanted['model_path']}: runs in this process, and agents run the models of "
                "their manifests, which agent manifest init writes"
            )
        if framework:
            having = dict.fromkeys(name for each in self.known for name in _frameworks(each))
            if framework.casefold() not in map(str.casefold, having):
                have = ", ".join(having) or "none"
                raise ConfigurationError(f'no agent has framework "{framework}"; they have: {have}')
        try:
            able = [each for each in self.known if each.runs(model, framework, wanted["model_version"])]
        except InvalidConstraintError as error:
            raise ConfigurationError(f"model_version: {error}") from error
        if not able:
            models = dict.fromkeys(name for each in self.known for name in _models(each))
            hint = "" if model.casefold() in map(str.casefold, models) else f"; {suggestion(model, models)}"
            version = f" {wanted['model_version']}" if wanted["model_version"] else ""
            within = f" in {framework}" if framework else ""
            raise ConfigurationError(f'no agent can run model "{model}"{version}{within}{hint}')
        if wanted["gpu"] and not (
            able := [each for each in able if each.agent_info and each.agent_info.gpus]
        ):
            raise ConfigurationError(f'gpu: no agent that can run model "{model}" has a GPU')
        return tuple(each.address for each in able)

    def place(self, invocation: Invocation) -> AgentsPlace:
        """Returns the place that runs the plan on the agents; its processes get this one's secret and TLS."""
        return AgentsPlace(
            agents_of=self.able,
            hosts={each.address: host_of(AgentAddress.parse(each.address).host) for each in self.known},
            unreachable=_unreachable,
            local=LocalPlace(_access(invocation)),
        )


def ask_plan_agents(
    invocation: Invocation, request: PlanRequest, given: Iterable[str] = ()
) -> PlanAgents | None:
    """Queries the agents of a plan for what they have, and reports those that do not respond.

    Args:
        invocation: Has the secret and TLS.
        request: The plan.
        given: The addresses that replace those of the plan.

    Returns:
        The agents that respond; None if the plan names no agents.

    Raises:
        ConfigurationError: An address is invalid, or the plan does not run on agents.
        AgentError: No agent responds.
    """
    plan, given = request.plan, tuple(given)
    if given and plan.slurm is not None:
        raise ConfigurationError(f"{request.path}: --agent is for plans without slurm, and it has slurm")
    addresses = _addresses(given or plan.agents, "--agent" if given else f"{request.path}: agents")
    if not addresses:
        return None
    if plan.command.split()[0] != _COMMAND:
        raise ConfigurationError(
            f'command "{plan.command}" runs in its own process, and served agents run predict; '
            "leave out the agents"
        )
    asked = ask_agents(
        [KnownAgent(each, Source.CONFIGURATION, None) for each in addresses],
        invocation.secret,
        invocation.agent_tls,
    )
    problems = [each.problem for each in asked if not each.usable]
    if len(problems) == len(asked):
        raise AgentError(f"none of the agents of plan {plan.name} answers: {'; '.join(problems)}")
    for problem in problems:
        say(f"left out    {problem}")
    usable = tuple(each for each in asked if each.usable)
    return PlanAgents(usable, invocation.configuration.framework)


def _addresses(texts: Iterable[str], what: str) -> tuple[str, ...]:
    found: list[str] = []
    for text in texts:
        if is_kserve(text):
            raise ConfigurationError(
                f"{what}: {text}: a server of the Open Inference Protocol does not say what it can run; "
                "name it in the cells' own option agent"
            )
        try:
            address = str(AgentAddress.parse(text))
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from error
        if address in found:
            raise ConfigurationError(f"{what}: {address} is named twice")
        found.append(address)
    return tuple(found)


def _frameworks(agent: KnownAgent) -> Iterable[str]:
    return agent.agent_info.frameworks if agent.agent_info else ()


def _models(agent: KnownAgent) -> Iterable[str]:
    return [each.name for each in agent.agent_info.models] if agent.agent_info else []


def _unreachable(result: Result) -> bool:
    """Returns whether a run failed because nothing listened at its agent's address."""
    return result.exit_code == EXIT_CODES[AgentError] and CANNOT_BE_REACHED in result.reason


def _access(invocation: Invocation) -> dict[str, str]:
    """Returns the environment variables that give a command this one's access to agents."""
    found = {} if invocation.secret is None else {"AGENT_SECRET": invocation.secret}
    for name in _TLS:
        if value := invocation.flags.get(name):
            is_file = name != "tls_server_name"
            found[f"AGENT_{name.upper()}"] = str(Path(value).absolute()) if is_file else value
    return found


_EXCLUDED = {
    "agent": "the cell names an agent itself, and the plan has agents",
    SOFTWARE: "it chooses what runs the model, and here an agent does",
    IMAGE: "it chooses what runs the model, and here an agent does",
}
"""The options that a cell cannot have, with the reason."""
