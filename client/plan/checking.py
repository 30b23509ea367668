"""``agent plan check``: the cells that cannot run, found by the commands that they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

from inferometer.client.cli.command_line import parsed_command
from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.console import say
from inferometer.client.plan.asking import PlanRequest
from inferometer.evaluators.plans.running.slurm import SlurmPlace
from inferometer.evaluators.plans.software.cell import sbatch_options_of
from inferometer.evaluators.plans.software.command import check_software
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line, suggestion

_WRONG = 2
_RUN = ("predict", "bench", "op")


def check_cells(invocation: Invocation, request: PlanRequest) -> int:
    """Says what is wrong with the cells of a plan, and returns the exit code.

    Raises:
        ConfigurationError: The plan has no cell, or its command is none for cells.
    """
    command = request.plan.command.split()[0]
    if command not in _RUN:
        raise ConfigurationError(f'command "{command}" is none for cells; {suggestion(command, _RUN)}')
    if not request.cells:
        raise ConfigurationError(f"{request.path}: no cell is left by exclude and the constraints")
    problems: Counter[str] = Counter()
    proven: set[str] = set()  # a command looks at each option by itself, so that a value is right everywhere
    for cell in request.cells:
        if not proven.issuperset(cell.argv):
            found = _problem(invocation, cell.argv)
            problems.update([found] if found else [])
            proven.update(() if found else cell.argv)
    problems.update(check_software(request.plan, request.cells, here=request.plan.slurm is None))
    problems.update(_refusals(request))
    for problem, count in problems.items():
        say(f"{problem} ({count} of {len(request.cells)} cells)")
    if problems:
        return _WRONG
    say(f"checked     {len(request.cells)} cells: none is known that cannot run")
    return 0


def _refusals(request: PlanRequest) -> Iterator[str]:
    """Why Slurm would refuse jobs of the cells, for each; Slurm is asked once for equal options."""
    if request.plan.slurm is None:
        return
    refusal = cache(SlurmPlace(request.plan.slurm).refusal)
    for cell in request.cells:
        with suppress(ConfigurationError):  # told before
            if problem := refusal(sbatch_options_of(cell, request.plan)):
                yield problem


def _problem(invocation: Invocation, words: Sequence[str]) -> str:
    """What keeps a cell from running, in one line without the cell; empty for nothing."""
    try:
        model = parsed_command(words).params.get("model_name")
    except InferometerError as error:
        return one_line(error)
    return _unknown_model(invocation.catalog, model) if isinstance(model, str) and model else ""


@cache
def _unknown_model(catalog: Catalog, name: str) -> str:
    """Why there is no such model; empty if there is."""
    try:
        catalog.find_models(name)
    except InferometerError as error:
        return one_line(error)
    return ""
