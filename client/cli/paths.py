"""Click parameter types for files and folders."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""The type of options that name a file."""


class InputPath(click.Path):
    """The type of options that name a file or a folder that the command reads."""


INPUT = InputPath(path_type=Path)
"""Such a type; the command itself says what is wrong with a file."""
