"""``agent plan check``: finds cells that cannot run, here or on the served agents of a plan.

Cells are checked by parsing their command lines, and by looking for the files, folders and GPUs that they
name. Agents are queried once for their models and devices, to check the plan and to place its cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import click

from inferometer.agent.hardware.environment import read_environment
from inferometer.client.api.directories import expanded
from inferometer.client.api.discovery import KnownAgent, Source, ask_agents
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import InputPath
from inferometer.client.cli.main import named_command, parsed_command
from inferometer.client.cli.output import EXIT_CODES, say
from inferometer.client.plan.request import PlanRequest
from inferometer.client.remote.address import CANNOT_BE_REACHED, AgentAddress, is_kserve
from inferometer.evaluators.plans.cell_command import (
    IMAGE,
    LAUNCHER,
    LIBRARIES,
    SOFTWARE,
    TRAINING,
    check_software,
    sbatch_options_of,
)
from inferometer.evaluators.plans.cells import NODES, TASKS, Cell, shown, tasks_of
from inferometer.evaluators.plans.plan import ContainerSoftware, Value, items_of
from inferometer.evaluators.plans.running.places import (
    AgentsPlace,
    LocalPlace,
    SlurmPlace,
    agents_for,
    host_of,
)
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    InferometerError,
    one_line,
    suggestion,
)
from inferometer.manifests.versions import InvalidConstraintError

_COMMAND = "predict"
_DECIDING = ("model_name", "model_version", "framework_name", "model_path", "gpu", "use_gpu")
_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")


@dataclass(frozen=True)
class PlanAgents:
    """The agents of a plan that respond.

    ``default_framework`` applies to cells that name none; None means any framework.
    """

    known: tuple[KnownAgent, ...]
    default_framework: str | None = None
    _able: dict[tuple[str, ...], tuple[str, ...] | str] = field(default_factory=dict)

    @cached_property
    def hosts(self) -> dict[str, str]:
        """The host of each agent, by address."""
        return {each.address: host_of(AgentAddress.parse(each.address).host) for each in self.known}

    def able(self, cell: Cell) -> tuple[str, ...]:
        """Returns the addresses of the agents that can run a cell.

        Raises:
            ConfigurationError: No agent can run the cell (the message may list what the agents have), or the
                cell is not a valid command line.
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
        if not agents_for(cell, able, self.hosts):
            nodes, tasks = tasks_of(cell)
            raise ConfigurationError(
                f"{NODES} {nodes}, {TASKS} {tasks}: too few agents can run it, or too few hosts have {tasks} "
                f"such agents: {', '.join(able)}"
            )
        return able

    def _fitting(self, wanted: Mapping[str, Any]) -> tuple[str, ...]:
        model, framework = wanted["model_name"], wanted["framework_name"] or self.default_framework
        if wanted["model_path"]:
            raise ConfigurationError(
                f"model_path {wanted['model_path']}: works only in this process, and agents run only the "
                "models in their manifests; write one with agent manifest init"
            )
        told = [each.agent_info for each in self.known if each.agent_info]
        if framework:
            having = dict.fromkeys(name for each in told for name in each.frameworks)
            if framework.casefold() not in map(str.casefold, having):
                have = ", ".join(having) or "none"
                raise ConfigurationError(f'no agent has framework "{framework}"; they have: {have}')
        try:
            able = [each for each in self.known if each.runs(model, framework, wanted["model_version"])]
        except InvalidConstraintError as error:
            raise ConfigurationError(f"model_version: {error}") from error
        if not able:
            models = dict.fromkeys(known.name for each in told for known in each.models)
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
        """Returns the place that runs the plan on the agents, with this process's secret and TLS settings."""
        return AgentsPlace(
            agents_of=self.able,
            hosts=self.hosts,
            unreachable=lambda result: (
                result.exit_code == EXIT_CODES[AgentError] and CANNOT_BE_REACHED in result.reason
            ),
            local=LocalPlace(_access(invocation)),
        )


def ask_plan_agents(
    invocation: Invocation, request: PlanRequest, given: Iterable[str] = ()
) -> PlanAgents | None:
    """Queries the agents of a plan for their descriptions, and reports those that do not respond.

    The addresses in ``given`` replace those of the plan.

    Returns:
        The agents that respond; None if the plan names no agents.

    Raises:
        ConfigurationError: An address is invalid, or the plan cannot run on agents.
        AgentError: No agent responds.
    """
    plan, given = request.plan, tuple(given)
    if given and plan.slurm is not None:
        raise ConfigurationError(f"{request.path}: --agent requires a plan without slurm; leave it out")
    addresses = _addresses(given or plan.agents, "--agent" if given else f"{request.path}: agents")
    if not addresses:
        return None
    if plan.command.split()[0] != _COMMAND:
        raise ConfigurationError(
            f'command "{plan.command}" runs in its own process, but served agents run only predict; '
            "leave out the agents"
        )
    asked = ask_agents(
        [KnownAgent(each, Source.CONFIGURATION, None) for each in addresses],
        invocation.secret,
        invocation.agent_tls,
    )
    problems = [each.problem for each in asked if not each.usable]
    if len(problems) == len(asked):
        raise AgentError(f"none of the agents of plan {plan.name} responds: {'; '.join(problems)}")
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


def _access(invocation: Invocation) -> dict[str, str]:
    """Returns the environment variables that give a command the same access to agents as this process."""
    found = {} if invocation.secret is None else {"AGENT_SECRET": invocation.secret}
    for name in _TLS:
        if value := invocation.flags.get(name):
            is_file = name != "tls_server_name"
            found[f"AGENT_{name.upper()}"] = str(Path(value).absolute()) if is_file else value
    return found


_EXCLUDED = {
    "agent": "the cell names an agent, but the plan already has agents",
    SOFTWARE: "it chooses what runs the model, but here an agent does",
    IMAGE: "it chooses what runs the model, but here an agent does",
    LIBRARIES: "it affects what runs the model, but here an agent does",
}
"""The options that a cell cannot have if agents run the plan, with the reason."""


_DEVICE = "device"
"""The parameter that, if a cell sets it, alone decides whether the cell asks for a GPU."""
_DEVICES = {_DEVICE, "gpu", "num_gpus", "gpus"}
"""The parameters of commands that may ask for a GPU."""
_NO_GPU = (False, 0, (), "cpu")
"""The values of these parameters that request no GPU."""


def _missing_here(request: PlanRequest, *, on_agents: bool) -> Counter[str]:
    """Counts, for each file, folder or GPU that this machine lacks, the cells that name it.

    The files of cluster nodes and containers are not checked. GPUs are checked only for cells that run in the
    environment of this process: if agents run the models, files are read here, but the GPUs are the agents'.
    """
    found: Counter[str] = Counter()
    if request.plan.slurm is not None:
        return found
    files, devices = _looked_at(request)
    for cell in request.running:
        software = shown(cell.parameters.get(SOFTWARE))
        if isinstance(request.plan.software.get(software), ContainerSoftware) or cell.parameters.get(IMAGE):
            continue
        problems = [_file_problem(value) for name, value in cell.options.items() if name in files]
        if not (on_agents or software or cell.options.get("agent") or cell.parameters.get(LAUNCHER)):
            problems.append(_gpu_problem(cell, devices))
        found.update({each: 1 for each in problems if each})
    return found


def _looked_at(request: PlanRequest) -> tuple[set[str], dict[str, click.Parameter]]:
    """Returns the options that name files, and the parameters that may request a GPU, in all spellings."""
    try:
        command = named_command(request.cells[0].argv)
    except InferometerError:
        return set(), {}  # the check of command lines tells why
    files: set[str] = set()
    devices: dict[str, click.Parameter] = {}
    for parameter in command.params:
        names = [each.lstrip("-") for each in parameter.opts]
        names += [each.replace("_", "-") for each in names]
        if isinstance(parameter.type, InputPath):
            files.update(names)
        elif parameter.name in _DEVICES:
            devices.update(dict.fromkeys(names, parameter))
    return files, devices


def _file_problem(value: Value) -> str:
    missing = [text for text in map(shown, items_of(value)) if text and not _exists(text)]
    return f"{missing[0]}: there is no such file" if missing else ""


@cache
def _exists(text: str) -> bool:
    try:
        return Path(text).exists() or expanded(Path(text)).exists()
    except OSError:
        return True  # it cannot be told; the run says why it cannot read it


def _gpu_problem(cell: Cell, devices: Mapping[str, click.Parameter]) -> str:
    names = [_DEVICE] if shown(cell.options.get(_DEVICE)) else devices.keys() & cell.options.keys()
    asking = [name for name in sorted(names) if _asks_for_gpu(devices[name], cell.options[name])]
    return f"{asking[0]}: this machine has no GPU" if asking and not _gpu_here() else ""


def _asks_for_gpu(parameter: click.Parameter, value: Value) -> bool:
    try:
        return value is not None and parameter.type.convert(shown(value), parameter, None) not in _NO_GPU
    except click.BadParameter:
        return False


@cache
def _gpu_here() -> bool:
    """Returns whether the driver reports a GPU, or a device file exists, as in a container without NVML."""
    return bool(read_environment({}).gpus) or any(Path("/dev").glob("nvidia[0-9]*"))


_WRONG = 2
_RUN = ("predict", "bench", "op", "measure")


def check_cells(invocation: Invocation, request: PlanRequest, agents: PlanAgents | None = None) -> int:
    """Prints what is wrong with the cells of a plan, and returns the exit code.

    Raises:
        ConfigurationError: The plan has no cell, or its command cannot run as a cell.
    """
    command = request.plan.command.split()[0]
    if command not in _RUN:
        raise ConfigurationError(f'command "{command}" cannot run in cells; {suggestion(command, _RUN)}')
    if not request.cells:
        raise ConfigurationError(f"{request.path}: exclude and the constraints leave no cell")
    problems: Counter[str] = Counter()
    proven: set[str] = set()  # options are checked independently, so a value is valid in every cell
    for cell in request.cells:
        found = ""
        if not proven.issuperset(cell.argv):
            found = _problem(_parse, cell.argv, None if agents else invocation.catalog)
            proven.update(() if found else cell.argv)
        found = found or _problem(_check_spellings, cell)
        if not (found or cell.is_simulated):
            found = _problem(_check_tasks, cell, request, agents)
            if agents is not None and not found:
                found = _problem(agents.able, cell)
        problems.update([found] if found else [])
    problems.update(_missing_here(request, on_agents=agents is not None))
    here = request.plan.slurm is None
    of_software = check_software(request.plan, request.running, here=here, on_agents=agents is not None)
    problems.update([each for each in of_software if each not in problems])
    problems.update(_refusals(request))
    for problem, count in problems.items():
        say(f"{problem} ({count} of {len(request.cells)} cells)")
    if problems:
        return _WRONG
    say(f"checked     {len(request.cells)} cells: found none that cannot run")
    return 0


def _check_spellings(cell: Cell) -> None:
    """Raises ConfigurationError for a cell that gives an option by two names: only the last would count."""
    given: dict[object, str] = {}
    for name in (name for name, value in cell.options.items() if value is not None):
        option = _spellings(cell.words).get(name.replace("-", "_"), name)
        if (other := given.setdefault(option, name)) != name:
            raise ConfigurationError(f"{other} and {name} are the same option; leave one of them out")


@cache
def _spellings(words: tuple[str, ...]) -> dict[str, click.Parameter]:
    """Returns the parameter of a command for each name of an option."""
    return {name.lstrip("-"): each for each in named_command(words).params for name in each.opts}


_SHARING = (("predict", "dataset"), ("predict", "urls"))
"""The commands whose inputs several agents share."""
_RANKS = {"num_ranks", "kv_num_workers", "rank", "rank_address", "local_rank"}
"""The options of training that the tasks of a cell replace."""


def _check_tasks(cell: Cell, request: PlanRequest, agents: PlanAgents | None) -> None:
    """Raises ConfigurationError for a cell with several tasks that cannot share its work, or lack nodes."""
    nodes, tasks = tasks_of(cell)
    if nodes * tasks == 1:
        return
    several = NODES if nodes > 1 else TASKS
    if cell.words[:2] not in (_SHARING if agents is not None else (TRAINING,)):
        raise ConfigurationError(
            f"{several}: only the tasks of bench training share its work, and agents the inputs of predict "
            "dataset and predict urls; leave it out"
        )
    if nodes > 1 and agents is None and request.plan.slurm is None:
        raise ConfigurationError(
            f"{NODES}: this machine is one node, not {nodes}; add a section slurm, such as slurm: {{}}"
        )
    given = {name.replace("-", "_") for name, value in cell.options.items() if value is not None}
    if both := sorted(_RANKS & given):
        raise ConfigurationError(f"{several} determines the ranks; leave out {both[0]}")


def _problem(check: Callable[..., object], *given: object) -> str:
    """Returns the error that a check raises, in one line; empty if it raises none."""
    try:
        check(*given)
    except InferometerError as error:
        return one_line(error)
    return ""


def _refusals(request: PlanRequest) -> Iterator[str]:
    """Yields a reason for each cell whose job Slurm would reject, asking Slurm once per set of options."""
    if request.plan.slurm is None:
        return
    refusal = cache(SlurmPlace(request.plan.slurm).refusal)
    for cell in request.running:
        with suppress(ConfigurationError):  # already reported
            if problem := refusal(sbatch_options_of(cell, request.plan)):
                yield problem


def _parse(words: Sequence[str], catalog: Catalog | None) -> None:
    """Raises InferometerError for words that no command accepts, or a model that the catalog lacks."""
    model = parsed_command(words).params.get("model_name")
    if catalog and isinstance(model, str) and model and (reason := _unknown_model(catalog, model)):
        raise ConfigurationError(reason)


@cache
def _unknown_model(catalog: Catalog, name: str) -> str:
    """Returns the error message for an unknown model; empty if the model is known."""
    return _problem(catalog.find_models, name)
