"""The output of a command: rows and tables, the options that choose their format, and the exit codes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import FILE, OUTPUT, boolean, format_option, option, options
from inferometer.evaluators.reports.base import Column, Layout, Report, Row, Table
from inferometer.evaluators.reports.table import folded
from inferometer.evaluators.reports.writer import Format, choose_columns, sort_rows, write
from inferometer.manifests import errors
from inferometer.manifests.errors import printable

if TYPE_CHECKING:
    from inferometer.evaluators.drawing.writer import PictureFile

SUCCESS = 0
FAILED_INPUTS = 1
"""An evaluation finished, but some of its inputs failed."""
REGRESSION = 1
"""A comparison found that B is worse, or with ``--fail_on_undecided`` that the data is inconclusive."""
NOT_SERVING = 1
"""The health check of an agent reported that it is not serving."""
NO_DRIVER = 1
"""No driver runs the plan that is to be stopped or watched."""
INTERRUPTED = 130
"""The command was stopped by Ctrl-C or SIGTERM; the code is the one that shells use."""
OUTPUT_FAILED = 7
INVALID = 8
"""A workload or a search was measured and published, but its figures cannot be trusted."""
NOT_STABLE = 9
"""With ``--require_stable``: the conditions of an evaluation were disturbed, unstable or unknown."""

EXIT_CODES: Mapping[type[errors.InferometerError], int] = {
    errors.EvaluationFailed: 1,
    errors.EvaluationInterrupted: INTERRUPTED,
    errors.PredictionError: 1,
    errors.TrainingError: 1,
    errors.InputError: 1,
    errors.ConfigurationError: 2,
    errors.NotFoundError: 2,
    errors.ManifestError: 2,
    errors.FrameworkUnavailableError: 3,
    errors.DeviceError: 3,
    errors.ArtifactError: 4,
    errors.DatasetError: 4,
    errors.StoreError: 5,
    errors.AgentError: 6,
    errors.SessionError: 6,
    errors.HungError: 6,
    errors.QueueFullError: 6,
    errors.RateLimitError: 6,
    errors.MemoryLimitError: 6,
    errors.RequestCancelledError: 6,
    errors.OutputError: OUTPUT_FAILED,
}
"""The exit codes by error class; a class without an entry has the code of its nearest base class."""


def exit_code(error: errors.InferometerError) -> int:
    """Returns the exit code for an error."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)


destination_options = options(
    option("-o", "--output", "--output_file", type=FILE, metavar="FILE", help="Write to this file."),
    boolean("--append", help="Append to the file if it exists."),
    boolean("--overwrite", help="Replace the file if it exists."),
    boolean("--no_header", help="Omit the heading of a table, csv or markdown."),
    heading=OUTPUT,
)
"""Adds the options for the destination of rows."""
_sort_option = option(
    "--sort", "order", metavar="NAMES", help="Sort by these columns; -NAME sorts from the highest value down."
)
_formats = tuple(f.value for f in Format)
printing_options = options(format_option(*_formats), destination_options, _sort_option, heading=OUTPUT)
"""Adds the options for the order, format and destination of rows."""


def report_options(*layouts: str, **more: Any) -> Callable[[Any], Any]:
    """Adds ``output_options``, to whose formats ``layouts`` are added; ``more`` is for ``format_option``."""
    columns = option(
        "--columns",
        "chosen",
        metavar="NAMES",
        help="Only these columns, in this order, with commas between: names of csv and json, or headings.",
    )
    formats = format_option(*_formats, *layouts, **more)
    return options(formats, destination_options, columns, _sort_option, heading=OUTPUT)


output_options = report_options()
"""Adds the options for the columns, order, format and destination of rows."""
FORMAT_NAMES = ("format_name", "output", "append", "overwrite", "no_header")
PRINTING_NAMES = (*FORMAT_NAMES, "order")
OUTPUT_NAMES = (*PRINTING_NAMES, "chosen")
"""The names of the options' values, for ``print_rows``."""


def echo(line: str, *, err: bool = False, indent: int = 0) -> None:
    """Prints a line; on a terminal, a long line is wrapped, with ``indent`` spaces before the later lines."""
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
    """Returns the report to print: for Markdown, its own variant, unless columns or an order are chosen.

    Raises:
        ConfigurationError: Columns or an order are chosen for a format that has its own.
    """
    name, whole = format_name.lower(), chosen is None and order is None
    if name in report.layouts and not whole:
        raise errors.ConfigurationError(
            f"format {name} has fixed columns in a fixed order; leave out --columns and --sort"
        )
    return report.on_a_page() if whole and name in (Format.MARKDOWN.value, *report.layouts) else report


def as_tables(
    report: Report[Any],
    *,
    format_name: str,
    output: Path | None,
    chosen: str | None,
    order: str | None,
    **_: object,
) -> bool:
    """Returns whether to print a report as tables for people: no file, columns or order may be chosen."""
    plain = output is None and chosen is None and order is None
    for_people = (Format.TABLE.value, Format.MARKDOWN.value)
    return report.has_tables and plain and format_name.lower() in for_people


def is_plain(printing: Mapping[str, Any]) -> bool:
    """Returns whether the options of the output are those of a whole table on the screen."""
    chosen = any(printing[name] for name in ("output", "chosen", "order", "no_header"))
    return printing["format_name"].lower() == Format.TABLE.value and not chosen


def print_tables(tables: Sequence[Table], **printing: Any) -> int:
    """Prints tables, with titles if there are several, and returns the total number of rows."""
    count = 0
    for place, table in enumerate(tables):
        if len(tables) > 1:
            click.echo(f"\n{table.title}\n" if place else f"{table.title}\n")
        count += print_rows(table.columns, table.rows, **printing)
    return count


def print_rows(columns: Sequence[Column], rows: Iterable[Row], **printing: Any) -> int:
    """Writes rows as the options specify, and returns their number; see ``printer_of``."""
    return printer_of(columns, **printing)(rows)


def printer_of(
    columns: Sequence[Column],
    *,
    format_name: str,
    output: Path | None,
    append: bool,
    overwrite: bool,
    no_header: bool,
    chosen: str | None = None,
    order: str | None = None,
    layouts: Mapping[str, Layout] = MappingProxyType({}),
) -> Callable[[Iterable[Row]], int]:
    """Returns the function that writes rows as the options specify, and returns their number.

    It checks the options, so a command calls it before it measures the rows. ``layouts`` are the formats of
    the report that has the rows.

    Raises:
        ConfigurationError: A column is unknown, or the options exclude each other.
        OutputError: The rows cannot be written; the function raises it, too.
    """
    shown, name = columns if chosen is None else choose_columns(columns, chosen), format_name.lower()
    put = partial(
        write,
        shown,
        output_format=layouts[name] if name in layouts else Format(name),
        destination=output or sys.stdout,
        append=append,
        overwrite=overwrite,
        header=not no_header,
        every_column=chosen is not None,
    )
    if order is not None:
        sort_rows(columns, (), order)
    put(rows=None)
    return lambda rows: put(rows=rows if order is None else sort_rows(columns, rows, order))


def picture_of(plot: Path | None, printing: dict[str, Any]) -> PictureFile | None:
    """Returns the file of a picture, checked before anything is read; None without ``plot``.

    ``--overwrite`` also applies to the picture. Without a file for the rows, it applies only to the picture,
    and is then off in ``printing``.

    Raises:
        ConfigurationError: The rows go to the same file, the options exclude each other, or the picture
            cannot be drawn.
        OutputError: The file cannot be written.
    """
    if plot is None:
        return None
    output, overwrite = printing["output"], printing["overwrite"]
    if output is not None and plot.resolve() == output.resolve():
        raise errors.ConfigurationError(
            f'the picture and the rows cannot both go to "{plot}"; name two files'
        )
    if overwrite and printing["append"]:
        raise errors.ConfigurationError("append and overwrite exclude each other; choose one")
    from inferometer.evaluators.drawing.writer import PictureFile

    printing["overwrite"] = overwrite and output is not None
    return PictureFile(plot, overwrite=overwrite)


def say_drawn(picture: PictureFile, drawn: bool) -> None:
    """Reports on stderr whether there was anything to draw."""
    say(f"drawn to {picture}" if drawn else f"nothing to draw: {picture} is not written")
