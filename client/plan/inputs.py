"""Finds files, folders and GPUs that the cells of a plan name and this machine lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import click

from inferometer.agent.hardware.environment import read_environment
from inferometer.client.api.directories import expanded
from inferometer.client.cli.command_line import named_command
from inferometer.client.cli.paths import InputPath
from inferometer.client.plan.asking import PlanRequest
from inferometer.evaluators.plans.cells import Cell
from inferometer.evaluators.plans.expressions import shown
from inferometer.evaluators.plans.plan import ContainerSoftware, Value
from inferometer.evaluators.plans.software import IMAGE, LAUNCHER, SOFTWARE
from inferometer.manifests.errors import InferometerError

_DEVICE = "device"
"""The parameter that decides alone where a cell gives it."""
_DEVICES = {_DEVICE, "gpu", "num_gpus", "gpus"}
"""The parameters of commands that may ask for a GPU."""
_NO_GPU = (False, 0, (), "cpu")
"""What they are where they do not."""


def missing_here(request: PlanRequest, *, on_agents: bool) -> Counter[str]:
    """Counts, for each file, folder or GPU that this machine lacks, the cells that name it.

    The files of cluster nodes and containers are not checked. GPUs are checked only for cells that run in the
    environment of this process.

    Args:
        request: The plan.
        on_agents: Whether agents run the models; then the files are read here, and the GPUs are theirs.
    """
    found: Counter[str] = Counter()
    if request.plan.slurm is not None:
        return found
    files, devices = _looked_at(request)
    for cell in request.cells:
        software = shown(cell.parameters.get(SOFTWARE))
        if isinstance(request.plan.software.get(software), ContainerSoftware) or cell.parameters.get(IMAGE):
            continue
        problems = {_file_problem(cell.options[name]) for name in files & cell.options.keys()}
        if not (on_agents or software or cell.options.get("agent") or cell.parameters.get(LAUNCHER)):
            problems.add(_gpu_problem(cell, devices))
        found.update(problems - {""})
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
    texts = [shown(each) for each in (value if isinstance(value, list) else [value])]
    missing = [text for text in texts if text and not _exists(text)]
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
    """Returns whether the driver reports a GPU or, in a container without NVML, a device file exists."""
    return bool(read_environment({}).gpus) or any(Path("/dev").glob("nvidia[0-9]*"))
