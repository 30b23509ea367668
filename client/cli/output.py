"""Prints rows and tables, and defines the output options."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from inferometer.client.cli.command import boolean, format_option, option, options
from inferometer.client.cli.paths import FILE
from inferometer.evaluators.reports.base import Column, Report, Row, Table
from inferometer.evaluators.reports.selection import choose_columns, sort_rows
from inferometer.evaluators.reports.table import folded
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import printable

format_options = options(
    format_option(*(f.value for f in Format)),
    option("-o", "--output", "--output_file", type=FILE, metavar="FILE", help="Write to this file."),
    boolean("--append", help="Append to the file if it exists."),
    boolean("--overwrite", help="Replace the file if it exists."),
    boolean("--no_header", help="Omit the heading of a table, csv or markdown."),
)
"""Adds the options that say how rows are printed, and where."""
_sort_option = option(
    "--sort",
    "order",
    metavar="NAMES",
    help="Sort by these columns; -NAME sorts from the highest value down.",
)
printing_options = options(format_options, _sort_option)
"""Adds the options that say how rows are printed, in which order, and where."""
output_options = options(
    format_options,
    option(
        "--columns",
        "chosen",
        metavar="NAMES",
        help="Only these columns, in this order, with commas between: names of csv and json, or headings.",
    ),
    _sort_option,
)
"""Adds the options that say which rows and columns are printed, how, and where."""
FORMAT_NAMES = ("format_name", "output", "append", "overwrite", "no_header")
PRINTING_NAMES = (*FORMAT_NAMES, "order")
OUTPUT_NAMES = (*PRINTING_NAMES, "chosen")
"""The names of their values, which ``print_rows`` takes."""


def echo(line: str, *, err: bool = False, indent: int = 0) -> None:
    """Prints a line; a terminal shows a long line folded, with ``indent`` spaces before the later lines."""
    if (sys.stderr if err else sys.stdout).isatty():
        lines = folded(line[indent:], shutil.get_terminal_size().columns - indent)
        line = line[:indent] + f"\n{' ' * indent}".join(lines)
    click.echo(line, err=err)


def say(line: str) -> None:
    """Prints a message to the user on stderr."""
    echo(printable(line), err=True)


def on_a_page(
    report: Report[Any], *, format_name: str, chosen: str | None, order: str | None, **_: object
) -> Report[Any]:
    """Returns the report to print: for Markdown its own variant, unless columns or an order are chosen."""
    in_markdown = format_name.lower() == Format.MARKDOWN.value and chosen is None and order is None
    return report.on_a_page() if in_markdown else report


def as_tables(
    report: Report[Any],
    *,
    format_name: str,
    output: Path | None,
    chosen: str | None,
    order: str | None,
    **_: object,
) -> bool:
    """Returns whether to print a report as its tables for people: not to a file, without chosen columns."""
    plain = output is None and chosen is None and order is None
    for_people = (Format.TABLE.value, Format.MARKDOWN.value)
    return report.has_tables and plain and format_name.lower() in for_people


def print_tables(tables: Sequence[Table], **printing: Any) -> int:
    """Prints tables, with titles if there are several, and returns the total number of rows."""
    count = 0
    for place, table in enumerate(tables):
        if len(tables) > 1:
            click.echo(f"\n{table.title}\n" if place else f"{table.title}\n")
        count += print_rows(table.columns, table.rows, **printing)
    return count


def print_rows(
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    format_name: str,
    output: Path | None,
    append: bool,
    overwrite: bool,
    no_header: bool,
    chosen: str | None = None,
    order: str | None = None,
) -> int:
    """Writes rows as the options of ``output_options`` ask, and returns their number.

    Raises:
        ConfigurationError: A column is unknown, or the options exclude each other.
        OutputError: The rows cannot be written.
    """
    shown = columns if chosen is None else choose_columns(columns, chosen)
    return write(
        shown,
        rows if order is None else sort_rows(columns, rows, order),
        Format(format_name.lower()),
        output or sys.stdout,
        append=append,
        overwrite=overwrite,
        header=not no_header,
        every_column=chosen is not None,
    )
