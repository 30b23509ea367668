"""The section ``software`` of a plan: the interpreters and container images that its cells may run in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag


def _words(written: Any) -> Any:
    """Words that are written as in a shell, or one by one."""
    return shlex.split(written) if isinstance(written, str) else written


def _folders(written: Any) -> Any:
    """Folders that are written as in LD_LIBRARY_PATH, or one by one."""
    return [each for each in written.split(":") if each] if isinstance(written, str) else written


def _texts(written: Any) -> Any:
    """Values of variables; YAML reads 1 as a number and true as a truth value."""
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
    """What runs containers."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"


class Interpreter(_Strict):
    """A Python interpreter with this program and its frameworks.

    Attributes:
        python: The folder of a virtual environment, or an interpreter; empty for the one that runs the plan.
        library_path: Folders before those of LD_LIBRARY_PATH, such as those of another build.
        python_path: Folders before those of PYTHONPATH.
        environment: Variables.
        launcher: Words before the interpreter, such as ``numactl --cpunodebind=0``.
    """

    python: str = ""
    library_path: Folders = ()
    python_path: Folders = ()
    environment: Variables = Field(default_factory=dict)
    launcher: Words = ()


class Container(_Strict):
    """A container image with this program and its frameworks.

    Attributes:
        engine: What runs it.
        image: Its name; for apptainer a file, a folder, or an address such as ``docker://NAME``.
        arguments: Words for the engine before the image, such as ``--gpus all`` or ``-v FOLDER:/data``.
        library_path: Folders of this machine that are mounted read-only at the same place; they are the
            container's LD_LIBRARY_PATH.
    """

    engine: Engine = Engine.DOCKER
    image: Annotated[str, Field(pattern=r"^[^-\s]\S*$")]
    arguments: Words = ()
    library_path: Folders = ()


class ContainerSoftware(_Strict):
    """Software in a container.

    Attributes:
        container: The container.
        environment: Variables in the container.
        launcher: Words before ``agent`` in the container; the image has their programs.
    """

    container: Container
    environment: Variables = Field(default_factory=dict)
    launcher: Words = ()


def _kind(written: Any) -> str:
    contained = "container" in written if isinstance(written, Mapping) else hasattr(written, "container")
    return "<container>" if contained else "<interpreter>"


Software: TypeAlias = Annotated[
    Annotated[Interpreter, Tag("<interpreter>")] | Annotated[ContainerSoftware, Tag("<container>")],
    Discriminator(_kind),
]
"""What a cell runs in. The tags are in no name that a plan can have, so that messages leave them out."""
