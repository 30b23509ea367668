"""Cluster profiles of the configuration file, and the time and memory formats that Slurm accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    """Returns whether a text is not empty and contains no NUL and no line break of any kind."""
    return text.splitlines() == [text] and "\0" not in text


def _line(value: Any) -> Any:
    if isinstance(value, str) and not is_one_line(value):
        raise PydanticCustomError("line", "one line of text")
    return value


def _time(value: Any) -> Any:
    """Checks a time and rejects numbers: YAML reads an unquoted 1:00:00 as 3600, and Slurm counts minutes."""
    if not isinstance(value, str) or not TIME.fullmatch(value):
        raise PydanticCustomError("time", f"text in quotes: {TIME_HELP}")
    return value


def _memory(value: Any) -> Any:
    if not isinstance(value, str) or not MEMORY.fullmatch(value):
        raise PydanticCustomError("memory", f"{MEMORY_HELP}")
    return value


def _variable(value: Any) -> Any:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise PydanticCustomError("variable", "names of environment variables")
    return value


_Line = Annotated[str, BeforeValidator(_line)]
_Variable = Annotated[str, BeforeValidator(_variable)]


class ClusterProfile(BaseModel):
    """The settings shared by all job scripts of a cluster. Options of the command override them.

    Attributes:
        account: The accounting group that is charged for the job.
        partition: The partition; None leaves it to the cluster.
        time: The time limit of the job, in Slurm's format.
        memory: The memory of the job on each node, in Slurm's format.
        cpus_per_task: The CPU cores per task, which is also the number of threads per operator.
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
    time: Annotated[str, BeforeValidator(_time)] | None = None
    memory: Annotated[str, BeforeValidator(_memory)] | None = None
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
