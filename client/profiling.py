"""The profile that ``--profile`` writes."""

from __future__ import annotations

import cProfile
import os
from collections.abc import Callable
from typing import TypeVar

import click

from client.invocation import current_invocation
from manifests.errors import OutputError

_Result = TypeVar("_Result")


def profiled(name: str, function: Callable[[], _Result]) -> _Result:
    """Runs ``function`` under Python's profiler and writes a file that ``python -m pstats`` opens.

    Raises:
        OutputError: The file cannot be written.
    """
    profile = cProfile.Profile()
    directory = current_invocation().data_directory / "profiles"
    path = directory / f"{name.replace(' ', '-')}-{os.getpid()}.prof"
    try:
        return profile.runcall(function)
    finally:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            profile.dump_stats(path)
        except OSError as error:
            raise OutputError(
                f"the profile cannot be written to {path}: {error.strerror or error}"
            ) from error
        click.echo(f"profile: {path} (python -m pstats {path})", err=True)
