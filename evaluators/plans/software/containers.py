"""The words that start a container with docker, podman and apptainer, and whether its image exists."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferometer.evaluators.plans.software.cell import absolute
from inferometer.evaluators.plans.software_section import Container, Engine
from inferometer.manifests.errors import one_line

_LIMIT_S = 60.0


def container_words(
    container: Container,
    words: Sequence[str],
    environment: Mapping[str, str],
    cores: str = "",
    name: str = "",
    shared: Sequence[str] = (),
) -> tuple[str, ...]:
    """Returns the words that run a program in a container, which is removed after it.

    Args:
        container: The image and its engine.
        words: The program and its arguments, in place of the image's entry point.
        environment: Its variables.
        cores: The cores that it may use, such as ``0,2-3``; empty for all. Apptainer ignores them: its
            container is a child of this process, which can be pinned.
        name: The container's name, for docker and podman.
        shared: Folders and files of this machine that it has at the same paths, and may write.
    """
    variables, folders = dict(environment), absolute(container.library_path)
    if container.library_path:
        variables["LD_LIBRARY_PATH"] = ":".join(folders)
    mounts = [f"{folder}:{folder}:ro" for folder in folders] + [f"{path}:{path}" for path in shared]
    if container.engine is Engine.APPTAINER:
        options = [word for mount in mounts for word in ("--bind", mount)]
        options += [word for each in variables.items() for word in ("--env", "=".join(each))]
        return ("apptainer", "exec", *options, *container.arguments, container.image, *words)
    options = ["--name", name] if name else []
    options += ["--cpuset-cpus", cores] if cores else []
    options += [word for mount in mounts for word in ("--volume", mount)]
    options += [word for each in variables.items() for word in ("--env", "=".join(each))]
    program, *arguments = words
    engine = container.engine.value
    return (
        *(engine, "run", "--rm", *options, *container.arguments),
        *("--entrypoint", program, container.image, *arguments),
    )


def image_problem(container: Container) -> str | None:
    """Returns why a container cannot start: its engine is not installed, or the image does not exist."""
    engine, image = container.engine.value, container.image
    if shutil.which(engine) is None:
        return f"{engine} is not installed, or not on PATH"
    if container.engine is Engine.APPTAINER:
        missing = "://" not in image and not Path(image).exists()
        return (
            f"there is no image {image}; apptainer takes a file, a folder or an address" if missing else None
        )
    answer = answer_of((engine, "image", "inspect", image))
    if isinstance(answer, str):
        return f"{engine} image inspect {image}: {answer}"
    if answer.returncode == 0:
        return None
    if "no such" in answer.stderr.lower() or "not known" in answer.stderr.lower():
        return f"{engine} has no image {image}; get it with: {engine} pull {image}"
    return f"{engine} image inspect {image} failed: {last_line(answer.stderr)}"


def container_process(words: Sequence[str]) -> int | None:
    """Returns the process id of a container that has started; None while there is none.

    Args:
        words: What prints the id; none without a container.
    """
    answer = answer_of(words) if words else ""
    if isinstance(answer, str) or answer.returncode or not answer.stdout.strip().isdecimal():
        return None
    return int(answer.stdout) or None


def answer_of(
    words: Sequence[str], environment: Mapping[str, str] | None = None, limit_s: float = _LIMIT_S
) -> subprocess.CompletedProcess[str] | str:
    """Returns what a program answers, or why there is no answer, such as the time limit."""
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


def last_line(text: str) -> str:
    """Returns the last line of what a program wrote, where its error is."""
    lines = text.strip().splitlines()
    return one_line(lines[-1]) if lines else "it said nothing"
