"""``agent plan check``: finds cells that cannot run, by parsing their command lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command_line import parsed_command
from inferometer.client.cli.output import say
from inferometer.client.plan.agents import PlanAgents
from inferometer.client.plan.asking import PlanRequest
from inferometer.client.plan.inputs import missing_here
from inferometer.evaluators.plans.cell_command import check_software
from inferometer.evaluators.plans.cells import Cell
from inferometer.evaluators.plans.running.places import SlurmPlace
from inferometer.evaluators.plans.software import sbatch_options_of
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line, suggestion

_WRONG = 2
_RUN = ("predict", "bench", "op", "measure")


def check_cells(invocation: Invocation, request: PlanRequest, agents: PlanAgents | None = None) -> int:
    """Prints what is wrong with the cells of a plan, and returns the exit code.

    Args:
        invocation: Has the manifests.
        request: The plan.
        agents: The served agents that run it, if any do.

    Raises:
        ConfigurationError: The plan has no cell, or its command cannot run as a cell.
    """
    command = request.plan.command.split()[0]
    if command not in _RUN:
        raise ConfigurationError(f'command "{command}" is none for cells; {suggestion(command, _RUN)}')
    if not request.cells:
        raise ConfigurationError(f"{request.path}: no cell is left by exclude and the constraints")
    problems: Counter[str] = Counter()
    proven: set[str] = set()  # options are checked independently, so a value is valid in every cell
    for cell in request.cells:
        found = ""
        if not proven.issuperset(cell.argv):
            found = _problem(cell.argv, None if agents else invocation.catalog)
            proven.update(() if found else cell.argv)
        if agents is not None and not found:
            found = _problem_on_agents(agents, cell)
        problems.update([found] if found else [])
    problems.update(missing_here(request, on_agents=agents is not None))
    here = request.plan.slurm is None
    problems.update(check_software(request.plan, request.cells, here=here, on_agents=agents is not None))
    problems.update(_refusals(request))
    for problem, count in problems.items():
        say(f"{problem} ({count} of {len(request.cells)} cells)")
    if problems:
        return _WRONG
    say(f"checked     {len(request.cells)} cells: none is known that cannot run")
    return 0


def _problem_on_agents(agents: PlanAgents, cell: Cell) -> str:
    """Returns why no agent can run a cell; empty if one can."""
    try:
        agents.able(cell)
    except InferometerError as error:
        return one_line(error)
    return ""


def _refusals(request: PlanRequest) -> Iterator[str]:
    """Yields, per cell, why Slurm would reject its job; Slurm is queried once per distinct set of options."""
    if request.plan.slurm is None:
        return
    refusal = cache(SlurmPlace(request.plan.slurm).refusal)
    for cell in request.cells:
        with suppress(ConfigurationError):  # already reported
            if problem := refusal(sbatch_options_of(cell, request.plan)):
                yield problem


def _problem(words: Sequence[str], catalog: Catalog | None) -> str:
    """Returns what prevents a cell from running, in one line without the cell; empty if nothing does."""
    try:
        model = parsed_command(words).params.get("model_name")
    except InferometerError as error:
        return one_line(error)
    return _unknown_model(catalog, model) if catalog and isinstance(model, str) and model else ""


@cache
def _unknown_model(catalog: Catalog, name: str) -> str:
    """Returns why a model is unknown; empty if it is known."""
    try:
        catalog.find_models(name)
    except InferometerError as error:
        return one_line(error)
    return ""
