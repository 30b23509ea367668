"""Clusters that run Slurm: their profiles in the configuration file, and the text of job scripts.

A script runs one command line of ``agent``; the jobs of plans share the setup lines. ``sbatch`` reads quotes
in its directives like a shell, except that a backslash also escapes characters within single quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from inferometer.manifests.errors import ConfigurationError, suggestion

TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
TIME_HELP = "minutes, hours:minutes:seconds or days-hours, such as '1:30:00'"
MEMORY = re.compile(r"\d+[KMGTkmgt]?")
MEMORY_HELP = "memory for each node, such as 8G"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_one_line(text: str) -> bool:
    """Returns whether a text is non-empty and contains neither NUL nor any kind of line break."""
    return text.splitlines() == [text] and "\0" not in text


def _line(value: Any) -> Any:
    if isinstance(value, str) and not is_one_line(value):
        raise PydanticCustomError("line", "one line of text")
    return value


def _fitting(pattern: re.Pattern[str], kind: str, told: str) -> BeforeValidator:
    """Returns a validator for text that matches ``pattern``; its error describes the accepted text."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise PydanticCustomError(kind, told)
        return value

    return BeforeValidator(check)


_Line = Annotated[str, BeforeValidator(_line)]
_Variable = Annotated[str, _fitting(_NAME, "variable", "names of environment variables")]
# YAML reads an unquoted 1:00:00 as the number 3600, and Slurm counts minutes
_Time = Annotated[str, _fitting(TIME, "time", f"text in quotes: {TIME_HELP}")]
_Memory = Annotated[str, _fitting(MEMORY, "memory", MEMORY_HELP)]


class ClusterProfile(BaseModel):
    """The settings shared by all job scripts of a cluster. The options of the command override them.

    Attributes:
        account: The accounting group that is charged for the job.
        partition: The partition; None leaves it to the cluster.
        time: The time limit of the job, in Slurm's format.
        memory: The memory of the job on each node, in Slurm's format.
        cpus_per_task: The number of CPU cores per task, and of threads per operator.
        modules: The environment modules to load.
        virtualenv: An existing virtual environment to activate, instead of a new one on the node's own disk;
            relative to the configuration file.
        wheels: The folder of wheels that a new virtual environment is installed from; relative to the
            configuration file.
        packages: The packages to install from ``wheels``.
        environment: Environment variables of the job.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    account: _Line | None = None
    partition: _Line | None = None
    time: _Time | None = None
    memory: _Memory | None = None
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    modules: tuple[_Line, ...] = ()
    virtualenv: Path | None = None
    wheels: Path | None = None
    packages: tuple[_Line, ...] = ()
    environment: dict[_Variable, _Line] = Field(default_factory=dict)


def profile_of(name: str, clusters: Mapping[str, ClusterProfile]) -> ClusterProfile:
    """Returns the profile with a name.

    Raises:
        ConfigurationError: No profile has this name.
    """
    if not clusters:
        raise ConfigurationError(f'unknown cluster "{name}": the configuration file has no clusters')
    if name not in clusters:
        raise ConfigurationError(f'unknown cluster "{name}"; {suggestion(name, clusters)}')
    return clusters[name]


_PLACE = "${SLURM_TMPDIR:-${TMPDIR:-/tmp}/inferometer-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}}"
"""The folder of a job on a node; the restart count keeps a requeued job's folder apart from earlier ones."""
_BACKSLASH = "\\"
_STRICT = "set -e"
_THREADS = 'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Slurm job that runs one command line of ``agent``.

    Attributes:
        name: The name.
        command: The words after ``agent``.
        settings: The time, memory, cores and wheels, and the other settings from its cluster's profile.
        nodes: The number of nodes; None means one (Slurm's default if ``tasks_per_node`` is None, too).
        tasks_per_node: The number of tasks on each node.
        gpu: Whether each task gets a GPU.
        output: The name pattern of the job's output file; None means Slurm's default.
    """

    name: str
    command: Sequence[str]
    settings: ClusterProfile
    nodes: int | None = None
    tasks_per_node: int | None = None
    gpu: bool = False
    output: str | None = None

    @property
    def tasks(self) -> int:
        """The number of tasks on all nodes."""
        return (self.nodes or 1) * (self.tasks_per_node or 1)


def script_of(job: Job) -> str:
    """Returns the text of a job script.

    The last line replaces the shell with Python, or with ``srun`` for several tasks: SIGTERM then reaches
    them when the job is cancelled or its time limit expires.

    Raises:
        ConfigurationError: A value is empty or contains a line break.
    """
    lines = ["#!/bin/bash", *_directives(job), "", _STRICT, ""]
    if modules := _modules(job.settings):
        lines += [*modules, ""]
    lines += [_THREADS, *_variables(job.settings), "", *_environment(job), "", _last(job), ""]
    return "\n".join(lines)


def options_of(profile: ClusterProfile) -> list[str]:
    """Returns the sbatch options of a profile, each as a separate word."""
    return [f"--{name}={value}" for name, value in _resources(profile).items() if value is not None]


def setup_of(profile: ClusterProfile) -> list[str]:
    """Returns the shell lines that a profile requires before a command; empty if it requires none.

    Operators use one thread per core of the task only if the profile sets ``cpus_per_task``.
    """
    lines = [*_modules(profile), *([_THREADS] if profile.cpus_per_task else []), *_variables(profile)]
    if profile.virtualenv is not None:
        lines.append(_activation(profile.virtualenv))
    return [_STRICT, *lines] if lines else []


def _modules(of: ClusterProfile) -> list[str]:
    return [f"module load {_words(of.modules, '--module')}"] if of.modules else []


def _variables(of: ClusterProfile) -> list[str]:
    return [f"export {name}={_quoted(value, name)}" for name, value in of.environment.items()]


def _activation(virtualenv: Path) -> str:
    return f"source {_quoted(str(virtualenv / 'bin' / 'activate'), '--virtualenv')}"


def _resources(of: ClusterProfile) -> dict[str, str | int | None]:
    """Returns the resources that a job requests, keyed by sbatch option."""
    return {
        "account": of.account,
        "partition": of.partition,
        "cpus-per-task": of.cpus_per_task,
        "mem": of.memory,
        "time": of.time,
    }


def _directives(job: Job) -> Iterator[str]:
    values = {
        "job-name": job.name,
        **_resources(job.settings),
        "nodes": job.nodes if job.nodes or job.tasks_per_node is None else 1,
        "tasks-per-node": job.tasks_per_node if job.tasks_per_node or job.nodes is None else 1,
        "gres": f"gpu:{job.tasks_per_node or 1}" if job.gpu else None,
        "output": job.output,
    }
    for name, value in values.items():
        if value is not None:
            quoted = _quoted(str(value), f"--{name.replace('-', '_')}")
            yield f"#SBATCH --{name}={quoted.replace(_BACKSLASH, _BACKSLASH * 2)}"


def _environment(job: Job) -> Iterator[str]:
    """Yields the lines that activate a virtual environment on each node."""
    settings = job.settings
    if settings.virtualenv is not None:
        yield _activation(settings.virtualenv)
        return
    steps = [
        '[ -n "${SLURM_TMPDIR:-}" ] || mkdir -m 700 "$place"',
        "if command -v virtualenv > /dev/null; then",
        '  virtualenv --no-download "$place/env"',
        "else",
        '  python3 -m venv "$place/env"',
        "fi",
        '"$place/env/bin/pip" install --quiet --disable-pip-version-check --no-index '
        f"--find-links {_quoted(str(settings.wheels), '--wheels')} {_words(settings.packages, '--package')}",
    ]
    yield "# A new environment on the node's own disk. Without SLURM_TMPDIR, it stays there after the job."
    yield f'export place="{_PLACE}"'
    if job.tasks == 1:
        yield from steps
    else:
        yield from ("prepare() {", *(f"  {step}" for step in steps), "}")
        yield 'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\'
        yield '  bash -e -c "$(declare -f prepare); prepare"'
    yield 'source "$place/env/bin/activate"'


def _last(job: Job) -> str:
    command = f"agent {_words(job.command, 'the command')}"
    if job.tasks == 1:
        return f"exec {command}"
    return f'exec srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" {command}'


def _words(words: Sequence[str], what: str) -> str:
    return " ".join(_quoted(word, what, may_be_empty=True) for word in words)


def _quoted(text: str, what: str, *, may_be_empty: bool = False) -> str:
    if not (is_one_line(text) or (may_be_empty and not text)):
        problem = "has a line break, which a job script cannot hold" if text else "is empty; leave it out"
        raise ConfigurationError(f"{what}: {text!r} {problem}" if text else f"{what} {problem}")
    return shlex.quote(text)
