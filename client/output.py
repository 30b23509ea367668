"""How rows are printed: the options of every command that prints some."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from client.command import boolean
from evaluators.reports.base import Column, Row
from evaluators.reports.writer import Format, write


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how rows are printed, and where."""
    options = (
        click.option(
            "-f",
            "--format",
            "format_name",
            type=click.Choice([f.value for f in Format], case_sensitive=False),
            default=Format.TABLE.value,
            show_default=True,
            help="How rows are printed.",
        ),
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file."
        ),
        boolean("--append", help="Append to the file if it exists."),
        boolean("--overwrite", help="Replace the file if it exists."),
        boolean("--no_header", help="Leave out the heading of a table or csv."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def print_rows(
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    format_name: str,
    output: Path | None,
    append: bool,
    overwrite: bool,
    no_header: bool,
) -> int:
    """Writes rows as the options of ``output_options`` ask, and returns their number."""
    return write(
        columns,
        rows,
        Format(format_name.lower()),
        output or sys.stdout,
        append=append,
        overwrite=overwrite,
        header=not no_header,
    )
