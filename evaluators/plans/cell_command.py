"""The command of a cell, in an interpreter or a container, and whether this machine can run it.

``cell.software`` names one of the plan's interpreters or containers; ``cell.container`` names an image for
the installed engine. ``cell.env.NAME`` adds a variable, ``cell.library_path`` adds folders of libraries,
``cell.launcher`` adds words before the program, and ``cell.cores`` pins the program to cores, such as
``0,2-3``. ``cell.slurm`` adds sbatch options, such as ``--gres=gpu:1``. ``cell.nodes`` and
``cell.tasks_per_node`` run the cell as several tasks: the ranks of a training, or agents that share inputs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferometer.agent.inference.registry import Registry
from inferometer.evaluators.plans.cells import CELL, NODES, TASKS, Cell, shown, tasks_of
from inferometer.evaluators.plans.plan import (
    Container,
    ContainerSoftware,
    Engine,
    Interpreter,
    Plan,
    Software,
    items_of,
)
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line, suggestion

SOFTWARE, IMAGE = f"{CELL}software", f"{CELL}container"
LAUNCHER, CORES, VARIABLE = f"{CELL}launcher", f"{CELL}cores", f"{CELL}env."
SLURM, LIBRARIES = f"{CELL}slurm", f"{CELL}library_path"
OF_CELL = (SOFTWARE, IMAGE, LIBRARIES, LAUNCHER, CORES, SLURM, NODES, TASKS)
"""The parameters that set how a cell runs, except those that begin with ``VARIABLE``."""
SRUN = "srun"
"""The program that starts the tasks of a cell on the nodes of its job."""
_MOST_CORES = 65536
TRAINING = ("bench", "training")
"""The command whose work several tasks share, as ranks."""


def _software_of(cell: Cell, plan: Plan) -> Software:
    """Returns the interpreter or container that a cell runs in, with the cell's folders of libraries.

    Without ``cell.software``, this is the image of ``cell.container``, or else the interpreter of the plan's
    jobs, or else that of this process.

    Raises:
        ConfigurationError: The plan has no software of this name.
    """
    wanted = shown(cell.parameters.get(SOFTWARE))
    found: Software
    if wanted:
        if wanted not in plan.software:
            raise ConfigurationError(f'unknown software "{wanted}"; {suggestion(wanted, plan.software)}')
        found = plan.software[wanted]
    elif image := shown(cell.parameters.get(IMAGE)):
        found = ContainerSoftware(container=Container(image=image))
    else:
        found = Interpreter(python=plan.slurm.python if plan.slurm else "")
    given = items_of(cell.parameters.get(LIBRARIES))
    folders = [folder for each in given for folder in shown(each).split(":") if folder]
    return found.with_libraries(folders) if folders else found


def _absolute(folders: Sequence[str]) -> list[str]:
    """Returns absolute paths of folders."""
    return [str(Path(each).expanduser().absolute()) for each in folders]


def _environment_of(software: Interpreter, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables, with an interpreter's folders put before those of libraries and modules."""
    found = dict(environment)
    paths = {"LD_LIBRARY_PATH": software.library_path, "PYTHONPATH": software.python_path}
    for name, folders in paths.items():
        if folders:
            present = found.get(name, os.environ.get(name, ""))
            found[name] = ":".join([*_absolute(folders), *([present] if present else [])])
    return found


def _variables_of(cell: Cell) -> dict[str, str]:
    """Returns the variables that a cell adds; a parameter without a value adds none.

    Raises:
        ConfigurationError: A name is not a valid variable name.
    """
    found = {}
    for parameter, value in cell.parameters.items():
        if parameter.startswith(VARIABLE) and value is not None:
            name = parameter.removeprefix(VARIABLE)
            if not (name.isidentifier() and name.isascii()):
                raise ConfigurationError(
                    f'{parameter}: "{name}" is not a valid variable name, such as OMP_NUM_THREADS'
                )
            found[name] = shown(value)
    return found


def sbatch_options_of(cell: Cell, plan: Plan) -> tuple[str, ...]:
    """Returns the sbatch options that a cell adds to those of its plan: its own, and those of several tasks.

    Raises:
        ConfigurationError: An option is not a line that begins with -, or the plan does not run on Slurm.
    """
    options = tuple(word for word in _words_of(cell, SLURM) if word)
    if options and plan.slurm is None:
        raise ConfigurationError(
            f"{SLURM}: the plan has no section slurm, so its cells are not jobs; add one, such as slurm: {{}}"
        )
    for option in options:
        if not option.startswith("-") or option.splitlines() != [option] or "\0" in option:
            raise ConfigurationError(
                f"{SLURM}: {option!r} is not a single-line option of sbatch, such as --gres=gpu:1"
            )
    nodes, tasks = tasks_of(cell)
    if plan.slurm is None or nodes * tasks == 1:
        return options
    return (*options, f"--nodes={nodes}", f"--ntasks-per-node={tasks}")


def _words_of(cell: Cell, parameter: str) -> tuple[str, ...]:
    """Returns the words of a parameter: a list of them, or a text that is split as in a shell.

    Raises:
        ConfigurationError: A quotation is not closed.
    """
    given = cell.parameters.get(parameter)
    if isinstance(given, list):
        return tuple(shown(each) for each in given)
    try:
        return tuple(shlex.split(shown(given)))
    except ValueError as error:
        raise ConfigurationError(f'{parameter}: "{shown(given)}" cannot be split: {error}') from error


def _cores_of(cell: Cell, *, here: bool = True) -> str:
    """Returns the cores to which a cell is pinned, in the form ``0,2-3``; empty for all.

    Raises:
        ConfigurationError: The value is not a list of cores, or the cell runs ``here`` and this process may
            not use one of them.
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
            raise ConfigurationError(f'{CORES}: "{written}" is not a list of cores, such as 0,2-3')
        low, high = (int(each) for each in numbers)
        if not low <= high < _MOST_CORES:
            raise ConfigurationError(f'{CORES}: "{part}" is not a range of cores, such as 2-3')
        wanted.update(range(low, high + 1))
    usable = os.sched_getaffinity(0)
    if here and (missing := sorted(wanted - usable)):
        several = ", ".join(str(each) for each in sorted(usable))
        raise ConfigurationError(f"{CORES}: this process may not use core {missing[0]}; it may use {several}")
    return text


_ANSWER_S = 60.0
AGENT = "agent"
_LIMIT_S = 120.0
"""The maximum time, in seconds, that an interpreter may take to import the frameworks."""
_PINNING = "taskset"
_WITHOUT_FOLDER = "import sys; sys.path[0] or sys.path.pop(0); "
"""Keeps modules from being imported from the working folder, which may hold another build of the program."""
_MAIN = f"{_WITHOUT_FOLDER}from inferometer.client.cli.main import main; main()"
_ASKED = f"""{_WITHOUT_FOLDER}
import json
told = {{}}
try:
    from inferometer.agent.inference.registry import Registry
    from inferometer.manifests.errors import InferometerError
except Exception as error:
    told[""] = "has no inferometer that works: %s; install it there with pip" % error
else:
    registry = Registry.discover()
    for name in sys.argv[1:]:
        try:
            registry.find(name).load()
        except InferometerError as error:
            told[name] = str(error)
print()
print(json.dumps(told))
"""
"""Prints the problem with each framework named in the arguments; an empty name stands for all of them."""


def _container_words(
    container: Container,
    words: Sequence[str],
    environment: Mapping[str, str],
    cores: str = "",
    name: str = "",
    shared: Sequence[str] = (),
) -> tuple[str, ...]:
    """Returns the words that run a program in a container and remove the container afterwards.

    The words take the place of the image's entry point. Apptainer ignores the cores and the name: its
    container is a child of this process, which the caller can pin. Shared files are mounted at the same
    paths, writable.
    """
    variables, folders = dict(environment), _absolute(container.library_path)
    if container.library_path:
        variables["LD_LIBRARY_PATH"] = ":".join(folders)
    mounts = [f"{folder}:{folder}:ro" for folder in folders] + [f"{path}:{path}" for path in shared]
    mounted = "--bind" if container.engine is Engine.APPTAINER else "--volume"
    options = [word for mount in mounts for word in (mounted, mount)]
    options += [word for each in variables.items() for word in ("--env", "=".join(each))]
    if container.engine is Engine.APPTAINER:
        return ("apptainer", "exec", *options, *container.arguments, container.image, *words)
    named = ["--name", name] if name else []
    named += ["--cpuset-cpus", cores] if cores else []
    program, *arguments = words
    return (
        *(container.engine.value, "run", "--rm", *named, *options, *container.arguments),
        *("--entrypoint", program, container.image, *arguments),
    )


def _image_problem(container: Container) -> str | None:
    """Returns why a container cannot start: its engine is not installed, or the image does not exist."""
    engine, image = container.engine.value, container.image
    if shutil.which(engine) is None:
        return f"{engine} is not installed, or not on PATH"
    if container.engine is Engine.APPTAINER:
        missing = "://" not in image and not Path(image).exists()
        return (
            f"there is no image {image}; apptainer takes a file, a folder or an address" if missing else None
        )
    answer = _answer_of((engine, "image", "inspect", image))
    if isinstance(answer, str):
        return f"{engine} image inspect {image}: {answer}"
    if answer.returncode == 0:
        return None
    if "no such" in answer.stderr.lower() or "not known" in answer.stderr.lower():
        return f"{engine} has no image {image}; get it with: {engine} pull {image}"
    return f"{engine} image inspect {image} failed: {_last_line(answer.stderr)}"


def container_process(words: Sequence[str]) -> int | None:
    """Returns the process id of a container, which the command prints; None if there is no id or command."""
    answer = _answer_of(words) if words else ""
    if isinstance(answer, str) or answer.returncode or not answer.stdout.strip().isdecimal():
        return None
    return int(answer.stdout) or None


def _answer_of(
    words: Sequence[str], environment: Mapping[str, str] | None = None, limit_s: float = _ANSWER_S
) -> subprocess.CompletedProcess[str] | str:
    """Returns the output of a program, or the reason why there is none, such as the time limit."""
    try:
        return subprocess.run(  # noqa: S603 - the words come from the user's plan
            list(words),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {limit_s:g} s"
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"


def _last_line(text: str) -> str:
    """Returns the last line of a program's output, which usually states the error."""
    lines = text.strip().splitlines()
    return one_line(lines[-1]) if lines else "it said nothing"


@dataclass(frozen=True, slots=True)
class CellCommand:
    """The command that starts a cell.

    Attributes:
        argv: The program and its arguments.
        environment: The variables that the process gets in addition to those of this one. They take
            precedence.
        stop: The command that ends the container, since killing the engine's client does not; empty without a
            container.
        container_pid: The command that prints the process id of the container, which is not a child of the
            client; empty without a container.
        slurm: The sbatch options of the job in addition to those of the plan.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    container_pid: tuple[str, ...] = ()
    slurm: tuple[str, ...] = ()


def command_of(
    cell: Cell,
    plan: Plan,
    *,
    variables: Mapping[str, str] | None = None,
    name: str = "",
    shared: Sequence[str] = (),
    here: bool = True,
) -> CellCommand:
    """Returns the command that starts a cell.

    Args:
        cell: The cell.
        plan: Its plan.
        variables: Further variables. They take precedence over those of the software and the cell.
        name: The name of the container, unique among running containers; if it is empty, so are
            ``stop`` and ``container_pid``.
        shared: Folders and files that a container mounts at the same paths, writable.
        here: Whether the cell runs on this machine; its cores are then checked against those of this process.

    Raises:
        ConfigurationError: The plan has no such software, or a parameter that begins with ``cell.`` is wrong.
    """
    software = _software_of(cell, plan)
    environment = {**software.environment, **_variables_of(cell), **(variables or {})}
    launcher = (*software.launcher, *_words_of(cell, LAUNCHER))
    cores, slurm = _cores_of(cell, here=here), sbatch_options_of(cell, plan)
    nodes, tasks = tasks_of(cell)
    trains = nodes * tasks > 1 and cell.words[:2] == TRAINING
    in_step = trains and plan.slurm is not None
    words = (*cell.argv, *([f"--num_ranks={tasks}"] if trains and not in_step else []))
    if isinstance(software, ContainerSoftware):
        if in_step:
            software, name = software.of_step(), ""
        found = _contained(software, (*launcher, AGENT, *words), environment, cores, name, shared)
    else:
        argv = (*_pinning(cores), *launcher, *_program(software.executable), *words)
        found = CellCommand(argv, _environment_of(software, environment))
    # one lost rank ends the others, which would wait for it
    step = (SRUN, "--kill-on-bad-exit=1") if in_step else ()
    return replace(found, argv=(*step, *found.argv), slurm=slurm)


def check_software(
    plan: Plan,
    cells: Iterable[Cell],
    *,
    here: bool = True,
    on_agents: bool = False,
    limit_s: float = _LIMIT_S,
) -> tuple[str, ...]:
    """Returns one line for each distinct problem with the software that the cells run in.

    Each interpreter and each image imports the frameworks of its cells once, in a separate process. This
    process imports none: for its own interpreter, it looks up the installed packages.

    Args:
        plan: The plan.
        cells: Its cells.
        here: Whether they run on this machine; their cores are then checked against those of this process.
        on_agents: Whether agents run the models; the packages installed here do not matter then.
        limit_s: How long an interpreter may take to answer.
    """
    found: dict[str, None] = {}
    groups: dict[str, tuple[str, Software, dict[str, None]]] = {}
    for cell in cells:
        try:
            software = _software_of(cell, plan)
            sbatch_options_of(cell, plan)
            found |= dict.fromkeys(_missing_programs(cell, software, here=here))
        except ConfigurationError as error:
            found[str(error)] = None
            continue
        name = shown(cell.parameters.get(SOFTWARE))
        _, _, frameworks = groups.setdefault(software.model_dump_json(), (name, software, {}))
        frameworks |= {shown(each): None for each in items_of(cell.options.get("framework_name")) if each}
    for name, software, frameworks in groups.values():
        if not name and on_agents:
            continue
        if not name and software == Interpreter():
            found |= dict.fromkeys(_not_installed(frameworks))
            continue
        problems = _folder_problems(software) or _problems(software, frameworks, limit_s)
        where = f"software {name}: " if name else ""
        found |= {f"{where}{each}": None for each in problems}
    return tuple(found)


def _missing_programs(cell: Cell, software: Software, *, here: bool) -> list[str]:
    """Returns a message for each missing launcher program; raises ConfigurationError for a bad cell."""
    launcher = _words_of(cell, LAUNCHER)
    programs = [_PINNING] if _cores_of(cell, here=here) else []
    _variables_of(cell)
    if isinstance(software, Interpreter):
        programs += [*software.launcher[:1], *launcher[:1]]
    elif software.container.engine is not Engine.APPTAINER:
        programs = []
    return [f"{each} is not installed, or not on PATH" for each in programs if not shutil.which(each)]


def _not_installed(frameworks: Iterable[str]) -> Iterator[str]:
    registry = Registry.discover()
    for name in frameworks:
        try:
            registry.find(name).require_installed()
        except InferometerError as error:
            yield str(error)


def _folder_problems(software: Software) -> list[str]:
    if isinstance(software, ContainerSoftware):
        folders = _absolute(software.container.library_path)
    else:
        folders = _absolute([*software.library_path, *software.python_path])
    return [f"there is no folder {each}" for each in folders if not Path(each).exists()]


def _problems(software: Software, frameworks: Iterable[str], limit_s: float) -> list[str]:
    """Returns the problems that an interpreter or a container reports."""
    if isinstance(software, Interpreter):
        python = software.executable
        if not os.access(python, os.X_OK) or Path(python).is_dir():
            return [f"there is no interpreter {python}"]
        environment = {**os.environ, **_environment_of(software, software.environment)}
        return _told(_answer_of((python, "-c", _ASKED, *frameworks), environment, limit_s), python)
    container = software.container
    if (problem := _image_problem(container)) is not None:
        return [problem]
    if "://" in container.image:
        return []  # asking it would download it
    name = f"inferometer-check-{uuid.uuid4().hex}"
    words = _container_words(
        container, ("python", "-c", _ASKED, *frameworks), software.environment, name=name
    )
    answer = _answer_of(words, limit_s=limit_s)
    if isinstance(answer, str) and (stop := _stop(container, name)):
        _answer_of(stop)
    return _told(answer, f"image {container.image}")


def _told(answer: subprocess.CompletedProcess[str] | str, who: str) -> list[str]:
    """Returns the problems that an interpreter has printed, or the reason why it printed none."""
    if isinstance(answer, str):
        return [f"{who}: {answer}"]
    try:
        told = json.loads(answer.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError, RecursionError):
        return [f"{who} ended with exit code {answer.returncode}: {_last_line(answer.stderr)}"]
    return [f"{who}: {problem}" if name else f"{who} {problem}" for name, problem in told.items()]


def _contained(
    software: ContainerSoftware,
    words: Sequence[str],
    environment: Mapping[str, str],
    cores: str,
    name: str,
    shared: Sequence[str],
) -> CellCommand:
    container = software.container
    argv = _container_words(container, words, environment, cores, name, shared)
    if container.engine is Engine.APPTAINER:
        return CellCommand(argv=(*_pinning(cores), *argv))
    if not name:
        return CellCommand(argv=argv)
    return CellCommand(
        argv=argv,
        stop=_stop(container, name),
        container_pid=(container.engine.value, "inspect", "--format", "{{.State.Pid}}", name),
    )


def _stop(container: Container, name: str) -> tuple[str, ...]:
    """Returns the command that ends a container; killing the client of docker or podman leaves it running."""
    return () if container.engine is Engine.APPTAINER else (container.engine.value, "kill", name)


def _program(python: str) -> tuple[str, ...]:
    """Returns the words that start this program: its script next to the interpreter, or its main function."""
    script = Path(python).with_name(AGENT)
    return (python, str(script)) if script.is_file() else (python, "-c", _MAIN)


def _pinning(cores: str) -> tuple[str, ...]:
    return (_PINNING, "--cpu-list", cores) if cores else ()
