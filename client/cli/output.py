"""Printing of rows, and the options that say how."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from inferometer.client.cli.command import boolean, format_option, option, options
from inferometer.client.cli.paths import FILE
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format, write

output_options = options(
    format_option(*(f.value for f in Format)),
    option("-o", "--output", type=FILE, metavar="FILE", help="Write to this file."),
    boolean("--append", help="Append to the file if it exists."),
    boolean("--overwrite", help="Replace the file if it exists."),
    boolean("--no_header", help="Omit the heading of a table or csv."),
)
"""Adds the options that say how rows are printed, and where."""
OUTPUT_NAMES = ("format_name", "output", "append", "overwrite", "no_header")
"""The names of their values, which ``print_rows`` takes."""


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
