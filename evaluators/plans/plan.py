"""The file of a plan: its variables, the command of its cells, and where they run.

::

    name: batch-sizes
    command: predict dataset
    parameters:
      model_name: ResNet50
      exp.most: {val: 16, type: int, desc: the largest batch}
    variables:
      framework_name: [PyTorch, ONNXRuntime]
      batch_size: [1, "${exp.most}"]
    repeat: 3

A name without a dot is an option of the command. A name with a dot is only used by references. The
section ``software`` names the interpreters and container images in which cells can run.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from inferometer.manifests.errors import ConfigurationError, one_line
from inferometer.manifests.loader import parse_yaml


def _words(written: Any) -> Any:
    """Splits words as a shell does; a list of words is unchanged."""
    return shlex.split(written) if isinstance(written, str) else written


def _folders(written: Any) -> Any:
    """Splits folders as in LD_LIBRARY_PATH; a list of folders is unchanged."""
    return [each for each in written.split(":") if each] if isinstance(written, str) else written


def _texts(written: Any) -> Any:
    """Converts the values of variables to texts; YAML reads 1 as a number and true as a truth value."""
    if not isinstance(written, Mapping):
        return written
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in written.items()
        if value is not None
    }


Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_words)]
Folders: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_folders)]
VariableName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Variables: TypeAlias = Annotated[dict[VariableName, str], BeforeValidator(_texts)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Engine(str, Enum):
    """The container engines."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"

    @classmethod
    def installed(cls) -> Engine:
        """Returns the first engine on PATH; without any, Docker."""
        return next((each for each in cls if shutil.which(each.value)), cls.DOCKER)


class Interpreter(_Strict):
    """A Python interpreter with this program and its frameworks.

    Attributes:
        python: The folder of a virtual environment, or an interpreter; empty for the one that runs the plan.
        library_path: Folders to put before those of LD_LIBRARY_PATH, such as those of another build.
        python_path: Folders to put before those of PYTHONPATH.
        launcher: Words before the interpreter, such as ``numactl --cpunodebind=0``.
    """

    python: str = ""
    library_path: Folders = ()
    python_path: Folders = ()
    environment: Variables = Field(default_factory=dict)
    launcher: Words = ()

    @property
    def executable(self) -> str:
        """The path of the interpreter: this process's, or one in a virtual environment or on PATH."""
        if not self.python:
            return sys.executable
        path = Path(self.python).expanduser()
        if path.is_dir():
            return str(path.absolute() / "bin" / "python")
        if "/" not in self.python and not path.exists():
            return shutil.which(self.python) or self.python
        return str(path.absolute())

    def with_libraries(self, folders: Sequence[str]) -> Interpreter:
        """Returns the interpreter with folders before those of its ``library_path``."""
        return self.model_copy(update={"library_path": (*folders, *self.library_path)})


class Container(_Strict):
    """A container image with this program and its frameworks.

    Attributes:
        engine: The engine that runs it; by default, the first of the engines that is installed.
        image: Its name; for apptainer a file, a folder, or an address such as ``docker://NAME``.
        arguments: Words for the engine before the image, such as ``--gpus all`` or ``-v FOLDER:/data``.
        library_path: Folders of this machine that are mounted read-only at the same place; they are the
            container's LD_LIBRARY_PATH.
    """

    engine: Engine = Field(default_factory=Engine.installed)
    image: Annotated[str, Field(pattern=r"^[^-\s]\S*$")]
    arguments: Words = ()
    library_path: Folders = ()


class ContainerSoftware(_Strict):
    """Software in a container.

    Attributes:
        container: The container.
        environment: Environment variables in the container.
        launcher: Words before ``agent`` in the container; the image must contain the programs they name.
    """

    container: Container
    environment: Variables = Field(default_factory=dict)
    launcher: Words = ()

    def with_libraries(self, folders: Sequence[str]) -> ContainerSoftware:
        """Returns the software with folders before those of the container's ``library_path``."""
        return self._with(library_path=(*folders, *self.container.library_path))

    def of_step(self) -> ContainerSoftware:
        """Returns the software for a task of a Slurm step, which has the network and variables of its node.

        Apptainer's containers always have both.
        """
        from inferometer.agent.training.rank_environment import STEP_VARIABLES

        if self.container.engine is Engine.APPTAINER:
            return self
        shared = ("--network=host", *(f"--env={name}" for name in STEP_VARIABLES))
        return self._with(arguments=(*shared, *self.container.arguments))

    def _with(self, **changed: tuple[str, ...]) -> ContainerSoftware:
        return self.model_copy(update={"container": self.container.model_copy(update=changed)})


def _kind(written: Any) -> str:
    contained = "container" in written if isinstance(written, Mapping) else hasattr(written, "container")
    return "<container>" if contained else "<interpreter>"


Software: TypeAlias = Annotated[
    Annotated[Interpreter, Tag("<interpreter>")] | Annotated[ContainerSoftware, Tag("<container>")],
    Discriminator(_kind),
]
"""The software that a cell runs in. No field of a plan is named like a tag, so messages can omit the tags."""


Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | list[Scalar]
"""The value of a parameter; a list gives an option several values."""


def items_of(value: Any) -> list[Any]:
    """Returns a value as a list; a list is unchanged."""
    return value if isinstance(value, list) else [value]


_KINDS = {"Parameter", "bool", "int", "float", "str", "none"}
PLAN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""The pattern for the name of a plan, which is also the name of its folder."""
_MOST_BYTES = 16 * 1024 * 1024


class Parameter(_Strict):
    """A parameter with its type, description and domain.

    Attributes:
        type: The type of the value, after references are resolved.
        desc: A description for people.
        val_domain: The values that it may have; empty for any.
    """

    val: Value
    type: Literal["str", "int", "float", "bool"] | None = None
    desc: str | list[str] = ""
    val_domain: list[Scalar] = Field(default_factory=list)


Given: TypeAlias = Parameter | Value
"""A parameter as written in a plan: alone, or with its type, description and domain."""


class Extension(_Strict):
    """Parameters for the cells that fit a condition, and cases, which make one cell into several.

    Attributes:
        condition: Values by parameter. A cell fits if each parameter equals its value, or one of a list; a
            text is a regular expression for the start of the value. Parameters that the cell lacks fit.
        parameters: Parameters for the cells; ``${__condition.NAME_0}`` is the match, ``_1`` its first group.
        cases: For each cell that replaces a fitting one, its parameters; empty to keep a single cell.
    """

    condition: dict[str, Value] = Field(default_factory=dict)
    parameters: dict[str, Given] = Field(default_factory=dict)
    cases: list[dict[str, Given]] = Field(default_factory=list)


class SlurmOptions(_Strict):
    """How jobs are submitted to a Slurm cluster whose nodes share the folder of the plan.

    Attributes:
        cluster: The profile of the configuration whose options and lines come before those here; empty for
            none. The caller that runs the plan fills them in.
        arguments: Options of sbatch, such as ``--partition=gpu`` and ``--time=01:00:00``.
        setup: Shell commands to run before the run, such as ``module load python``.
        python: The interpreter of the jobs, or the folder of a virtual environment; empty for that of the
            driver. A cell's software defines its own.
        exclusive: Whether a job has its node to itself.
        capacity: How many jobs may be queued at once.
    """

    cluster: str = ""
    arguments: list[str] = Field(default_factory=list)
    setup: list[str] = Field(default_factory=list)
    python: str = ""
    exclusive: bool = True
    capacity: Annotated[int, Field(ge=1)] = 1000


class Rerun(str, Enum):
    """Which cells that have a result run again when a plan is resumed."""

    NEVER = "never"
    ON_FAILURE = "onfail"
    ALWAYS = "always"


class Plan(_Strict):
    """A plan.

    Attributes:
        name: Its name, and that of its folder.
        description: The purpose of the plan.
        command: The words of the command that a cell runs, such as ``predict dataset``.
        arguments: Words that follow the command, such as the operators of ``op run``.
        parameters: The parameters of all cells.
        variables: Values by parameter, whose product is the grid.
        var_order: The slowest-varying variables, slowest first; the others follow in their order.
        include: Cells in addition to the grid, each given by the parameters that differ.
        exclude: Conditions; a cell that fits one, and has all parameters in it, is left out.
        constraints: Comparisons such as ``${batch_size} * ${replicas} <= 256``, which each cell satisfies.
        extensions: The extensions, which are applied to each cell in order.
        repeat: The number of times that each cell runs.
        seed: The seed for the order of the runs; each repetition of all cells comes before the next one.
        timeout_s: The time limit for a cell, in seconds.
        rerun: See ``Rerun``.
        batch_option: The option whose larger values are left out after a cell ran out of memory; empty for
            none.
        slurm: How jobs are submitted to a Slurm cluster; None to run on this machine.
        agents: The addresses of the served agents that run the models of the cells; empty for none.
        monitor_s: The seconds between two samples of the CPU, memory and GPUs of a run; 0 for none.
        software: The interpreters and containers by name; a cell chooses one with ``cell.software``.
    """

    name: Annotated[str, Field(pattern=PLAN_NAME)]
    description: str = ""
    command: Annotated[str, Field(min_length=1)]
    arguments: list[str] = Field(default_factory=list)
    parameters: dict[str, Given] = Field(default_factory=dict)
    variables: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(default_factory=dict)
    var_order: list[str] = Field(default_factory=list)
    include: list[dict[str, Given]] = Field(default_factory=list)
    exclude: list[Annotated[dict[str, Value], Field(min_length=1)]] = Field(default_factory=list)
    constraints: list[str] = Field(default_factory=list)
    extensions: list[Extension] = Field(default_factory=list)
    repeat: Annotated[int, Field(ge=1, le=10_000)] = 1
    seed: int = 0
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    rerun: Rerun = Rerun.NEVER
    batch_option: str = "batch_size"
    slurm: SlurmOptions | None = None
    agents: list[str] = Field(default_factory=list)
    monitor_s: Annotated[float, Field(ge=0)] = 0.0
    software: dict[Annotated[str, Field(pattern=PLAN_NAME)], Software] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, content: Any) -> Any:
        """Wraps the only value of a variable in a list; DLBS also accepts a value without a list."""
        if isinstance(content, Mapping) and isinstance(content.get("variables"), Mapping):
            variables = {name: items_of(values) for name, values in content["variables"].items()}
            return {**content, "variables": variables}
        return content

    @model_validator(mode="after")
    def _one_place(self) -> Plan:
        if self.agents and self.slurm is not None:
            raise PydanticCustomError(
                "places", "agents and slurm are both given, but runs have one place; leave out one of them"
            )
        return self


def read_plan(path: Path) -> Plan:
    """Reads a plan.

    Raises:
        ConfigurationError: The file cannot be read, or is not a plan; the message names the field.
    """
    try:
        if not path.is_file():  # reading a pipe or a device may never end
            raise ConfigurationError(f"{path}: there is no such file")
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_MOST_BYTES} bytes, the limit for a plan")
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # invalid YAML, or invalid UTF-8
        raise ConfigurationError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: is not a mapping with name, command, parameters and variables")
    return plan_of(content, str(path))


def plan_of(content: Mapping[str, Any], where: str) -> Plan:
    """Returns the plan that a mapping describes; the message of an error begins with ``where``."""
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {first_error(error)}") from error


def first_error(error: ValidationError, whole: str = "plan") -> str:
    """Returns the text of the first error after its field (or ``whole``) without pydantic's union members."""
    first = error.errors()[0]
    place = [str(each) for each in first["loc"]]
    told = one_line(first["msg"])
    if place and _is_value(place[-1]):
        told = "takes a text, a number, true, false, null, or a list of them"
    return f"{'.'.join(each for each in place if not _is_kind(each)) or whole}: {told}"


def _is_value(place: str) -> bool:
    return place in _KINDS or place.startswith("list[")


def _is_kind(place: str) -> bool:
    return _is_value(place) or place.startswith(("function-", "union", "<"))
