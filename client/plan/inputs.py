"""What the cells of a plan name and this machine does not have: files, folders and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click

from inferometer.agent.hardware.environment import read_environment
from inferometer.client.cli.command_line import named_command
from inferometer.client.cli.paths import InputPath, expanded
from inferometer.client.plan.asking import PlanRequest
from inferometer.evaluators.plans.plan import Value
from inferometer.evaluators.plans.references import shown
from inferometer.evaluators.plans.software.cell import IMAGE, LAUNCHER, SOFTWARE
from inferometer.evaluators.plans.software.section import ContainerSoftware
from inferometer.manifests.errors import InferometerError

_DEVICES = {"gpu", "device", "num_gpus", "gpus"}
"""The parameters of commands that may ask for a GPU."""
_NO_GPU = (False, 0, (), "cpu")
"""What they are where they do not."""


def missing_here(request: PlanRequest, *, on_agents: bool) -> Counter[str]:
    """Returns the number of cells by each file, folder or GPU that they name and this machine lacks.

    Nodes of a cluster and containers have files of their own, which are not looked at. The GPU is looked for
    only where a cell runs as this process does.

    Args:
        request: The plan.
        on_agents: Whether agents run the models; then the files are read here, and the GPUs are theirs.
    """
    found: Counter[str] = Counter()
    if request.plan.slurm is not None:
        return found
    looked = _looked_at(request)
    for cell in request.cells:
        software = shown(cell.parameters.get(SOFTWARE))
        if isinstance(request.plan.software.get(software), ContainerSoftware) or cell.parameters.get(IMAGE):
            continue
        elsewhere = on_agents or bool(software or cell.options.get("agent") or cell.parameters.get(LAUNCHER))
        problems = {
            problem
            for name in looked.keys() & cell.options.keys()
            if (problem := looked[name](cell.options[name], elsewhere))
        }
        found.update(problems)
    return found


def _looked_at(request: PlanRequest) -> dict[str, Callable[[Value, bool], str]]:
    """What tells a problem with the value of an option, by the names by which cells may give it."""
    try:
        command = named_command(request.cells[0].argv)
    except InferometerError:
        return {}  # the check of command lines tells why
    found: dict[str, Callable[[Value, bool], str]] = {}
    for parameter in command.params:
        if isinstance(parameter.type, InputPath):
            check: Callable[[Value, bool], str] = _file_problem
        elif parameter.name in _DEVICES:
            check = _gpu_problem(parameter)
        else:
            continue
        for option in parameter.opts:
            name = option.lstrip("-")
            found[name] = found[name.replace("_", "-")] = check
    return found


def _file_problem(value: Value, elsewhere: bool) -> str:
    texts = [shown(each) for each in (value if isinstance(value, list) else [value])]
    missing = [text for text in texts if text and not _exists(text)]
    return f"{missing[0]}: there is no such file" if missing else ""


@cache
def _exists(text: str) -> bool:
    try:
        return Path(text).exists() or expanded(Path(text)).exists()
    except OSError:
        return True  # it cannot be told; the run says why it cannot read it


def _gpu_problem(parameter: click.Parameter) -> Callable[[Value, bool], str]:
    @cache
    def asks(text: str) -> bool:
        try:
            return parameter.type.convert(text, parameter, None) not in _NO_GPU
        except click.BadParameter:
            return False

    def problem(value: Value, elsewhere: bool) -> str:
        if elsewhere or value is None or not asks(shown(value)) or _gpu_here():
            return ""
        return f"{parameter.name}: this machine has no GPU"

    return problem


@cache
def _gpu_here() -> bool:
    """Whether the driver knows a GPU; in a container that lacks NVML, whether a device file is there."""
    return bool(read_environment({}).gpus) or any(Path("/dev").glob("nvidia[0-9]*"))
