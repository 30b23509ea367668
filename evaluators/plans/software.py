"""The parameters of a cell that decide how it runs, and their meaning on this machine.

``cell.software`` names one of the plan's interpreters and containers, ``cell.container`` an image for Docker.
``cell.env.NAME`` adds a variable, ``cell.launcher`` adds words before the program, and ``cell.cores`` pins
it, as ``0,2-3``. ``cell.slurm`` adds sbatch options, such as ``--gres=gpu:1``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferometer.evaluators.plans.cells import CELL, Cell
from inferometer.evaluators.plans.expressions import shown
from inferometer.evaluators.plans.plan import Container, ContainerSoftware, Interpreter, Plan, Software
from inferometer.manifests.errors import ConfigurationError, suggestion

SOFTWARE, IMAGE = f"{CELL}software", f"{CELL}container"
LAUNCHER, CORES, VARIABLE = f"{CELL}launcher", f"{CELL}cores", f"{CELL}env."
SLURM = f"{CELL}slurm"
_MOST_CORES = 65536
_THIS = Interpreter()


def software_of(cell: Cell, plan: Plan) -> Software:
    """Returns the interpreter or container that a cell runs in.

    Without ``cell.software``, that is the image of ``cell.container``, or the interpreter of the plan's jobs,
    or the one of this process.

    Raises:
        ConfigurationError: The plan has no software of this name.
    """
    wanted = shown(cell.parameters.get(SOFTWARE))
    if not wanted:
        image = shown(cell.parameters.get(IMAGE))
        if image:
            return ContainerSoftware(container=Container(image=image))
        return Interpreter(python=plan.slurm.python) if plan.slurm and plan.slurm.python else _THIS
    if wanted not in plan.software:
        raise ConfigurationError(f'unknown software "{wanted}"; {suggestion(wanted, plan.software)}')
    return plan.software[wanted]


def python_of(software: Interpreter) -> str:
    """Returns the path of an interpreter: that of this process, in a virtual environment, or on PATH."""
    if not software.python:
        return sys.executable
    path = Path(software.python).expanduser()
    if path.is_dir():
        return str(path.absolute() / "bin" / "python")
    if "/" not in software.python and not path.exists():
        return shutil.which(software.python) or software.python
    return str(path.absolute())


def absolute(folders: Sequence[str]) -> list[str]:
    """Returns absolute paths of folders."""
    return [str(Path(each).expanduser().absolute()) for each in folders]


def environment_of(software: Interpreter, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables with an interpreter's folders prepended to those set for libraries and modules."""
    found = dict(environment)
    paths = {"LD_LIBRARY_PATH": software.library_path, "PYTHONPATH": software.python_path}
    for name, folders in paths.items():
        if folders:
            present = found.get(name, os.environ.get(name, ""))
            found[name] = ":".join([*absolute(folders), *([present] if present else [])])
    return found


def variables_of(cell: Cell) -> dict[str, str]:
    """Returns the variables that a cell adds; a parameter without a value adds none.

    Raises:
        ConfigurationError: A name is not a valid name of a variable.
    """
    found = {}
    for parameter, value in cell.parameters.items():
        if parameter.startswith(VARIABLE) and value is not None:
            name = parameter.removeprefix(VARIABLE)
            if not (name.isidentifier() and name.isascii()):
                raise ConfigurationError(
                    f'{parameter}: "{name}" is no name of a variable, such as OMP_NUM_THREADS'
                )
            found[name] = shown(value)
    return found


def launcher_of(cell: Cell) -> tuple[str, ...]:
    """Returns the words that a cell adds before its program.

    Raises:
        ConfigurationError: A quotation is not closed.
    """
    return _words_of(cell, LAUNCHER)


def sbatch_options_of(cell: Cell, plan: Plan) -> tuple[str, ...]:
    """Returns the sbatch options that a cell adds to those of its plan.

    Raises:
        ConfigurationError: An option is not valid on one line, or the plan does not run on Slurm.
    """
    options = tuple(word for word in _words_of(cell, SLURM) if word)
    if options and plan.slurm is None:
        raise ConfigurationError(
            f"{SLURM}: the plan has no section slurm, without which no cell is a job; add one, or slurm: {{}}"
        )
    for option in options:
        if not option.startswith("-") or option.splitlines() != [option] or "\0" in option:
            raise ConfigurationError(
                f"{SLURM}: {option!r} is no option of sbatch in one line, such as --gres=gpu:1"
            )
    return options


def _words_of(cell: Cell, parameter: str) -> tuple[str, ...]:
    """Returns the words of a parameter: a list of them, or a text that is split as in a shell."""
    given = cell.parameters.get(parameter)
    if isinstance(given, list):
        return tuple(shown(each) for each in given)
    try:
        return tuple(shlex.split(shown(given)))
    except ValueError as error:
        raise ConfigurationError(f'{parameter}: "{shown(given)}" cannot be split: {error}') from error


def cores_of(cell: Cell, *, here: bool = True) -> str:
    """Returns the cores that a cell is pinned to, as ``0,2-3``; empty for all.

    Args:
        cell: The cell.
        here: Whether the cell runs on this machine; its cores are then checked against those of this process.

    Raises:
        ConfigurationError: The value is not a list of cores, or this process may not use one of them.
    """
    given = cell.parameters.get(CORES)
    written = ",".join(shown(each) for each in given) if isinstance(given, list) else shown(given)
    text = written.replace(" ", "")
    if not text:
        return ""
    wanted: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = (first, last or first) if "-" not in part or last else ("", "")
        if not all(each.isdecimal() and each.isascii() for each in numbers):
            raise ConfigurationError(f'{CORES}: "{written}" is no list of cores, such as 0,2-3')
        low, high = (int(each) for each in numbers)
        if not low <= high < _MOST_CORES:
            raise ConfigurationError(f'{CORES}: "{part}" is no range of cores, such as 2-3')
        wanted.update(range(low, high + 1))
    usable = os.sched_getaffinity(0)
    if here and (missing := sorted(wanted - usable)):
        several = ", ".join(str(each) for each in sorted(usable))
        raise ConfigurationError(f"{CORES}: this process may not use core {missing[0]}; it may use {several}")
    return text
