"""``agent info evaluation``: reports on published evaluations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import COUNT, Command, Group, boolean, option
from inferometer.client.cli.current import current_invocation
from inferometer.client.cli.output import (
    OUTPUT_NAMES,
    as_tables,
    on_a_page,
    output_options,
    print_rows,
    print_tables,
)
from inferometer.client.cli.paths import FILE
from inferometer.client.reports.evaluation_filter import (
    ChosenEvaluations,
    explain,
    filter_options,
    rows_of,
    say_none,
    undisturbed,
)
from inferometer.evaluators.reports.base import Report, Row
from inferometer.evaluators.reports.registry import ALIASES, find_report, known_reports
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:  # a picture needs Matplotlib, which only --plot loads
    from inferometer.evaluators.plots.writer import PictureFile


_READING = "reading evaluations"
_plot_option = option(
    "--plot", type=FILE, metavar="FILE", help="Plot the rows to this file: .html, .svg or .png."
)


class ReportGroup(Group):
    """A group with one command for each report in the registry."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the reports and of the other commands."""
        return sorted([*known_reports(), *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of a report, or one of the other commands."""
        if cmd_name not in ALIASES and cmd_name not in known_reports():
            return super().get_command(ctx, cmd_name)
        from inferometer.evaluators.reports.trace_report import TraceReport

        report = find_report(cmd_name)
        command: click.Command = Command(
            cmd_name, callback=lambda **given: _report(cmd_name, **given), help=f"Show {report.summary}."
        )
        output_options(_plot_option(filter_options(command)))
        if report.undisturbed:
            boolean("--include_profiled", help="Also show evaluations that ran under a profiler.")(command)
        if report.name in {"layers", "layer_tree"}:
            boolean("--raw", help="Show every execution of a layer.")(command)
        if report.name == "max_qps":
            boolean("--probes", help="Show every probe of the searches.")(command)
        if isinstance(report, TraceReport) and "share_percent" in {column.key for column in report.columns}:
            option(
                "--top_layers", type=COUNT, metavar="N", help="Only the N heaviest rows of each evaluation."
            )(command)
        return command


@click.group(
    cls=ReportGroup,
    lazy={
        "all": ("inferometer.client.reports.all_reports:all_reports", "Write every report into a folder."),
        "show": ("inferometer.client.reports.show:show", "Show one evaluation."),
    },
)
def evaluation() -> None:
    """Reports on published evaluations."""


@click.command(cls=Command)
@filter_options
@output_options
def evaluations(**given: Any) -> None:
    """List the evaluations of every kind, the newest first, with their main figures and the verdict.

    Once one is named: agent info evaluation show ID
    """
    from inferometer.evaluators.reports.overview import OverviewReport

    printing = {key: given.pop(key) for key in OUTPUT_NAMES}
    wanted, report = ChosenEvaluations(**given), OverviewReport()
    invocation = current_invocation()
    with closing(invocation.open_store()) as store:
        with invocation.waiting.during(_READING):
            found = wanted.find(store, report)
        print_rows(report.columns, report.rows(found), **printing)
        say_none(found, store)


def _report(
    name: str,
    *,
    plot: Path | None,
    top_layers: int | None = None,
    include_profiled: bool = False,
    raw: bool = False,
    probes: bool = False,
    **given: Any,
) -> None:
    """Finds the evaluations and prints the report on them."""
    from inferometer.evaluators.kinds.load.report import ProbesReport
    from inferometer.evaluators.reports.layers import LayerRunsReport
    from inferometer.evaluators.reports.trace_report import TraceReport

    if raw and (top_layers is not None or plot is not None):
        raise ConfigurationError("--raw shows single runs: leave out --top_layers and --plot")
    if probes and plot is not None:
        raise ConfigurationError("--probes shows single runs: leave out --plot, which draws them without it")
    printing = {key: given.pop(key) for key in OUTPUT_NAMES}
    output, overwrite = printing["output"], printing["overwrite"]
    wanted = ChosenEvaluations(**given)
    picture: PictureFile | None = None
    if plot is not None:  # check that the picture can be drawn and written before reading anything
        if output is not None and plot.resolve() == output.resolve():
            raise ConfigurationError(f'the picture and the rows cannot both go to "{plot}"; name two files')
        if overwrite and printing["append"]:
            raise ConfigurationError("append and overwrite exclude each other; choose one")
        from inferometer.evaluators.plots.writer import PictureFile

        picture = PictureFile(plot, overwrite=overwrite)
        # without an output file, --overwrite applies only to the picture
        printing["overwrite"] = overwrite and output is not None
    invocation = current_invocation()
    with closing(invocation.open_store()) as store:
        report: Report[Any] = LayerRunsReport() if raw else ProbesReport() if probes else find_report(name)
        with invocation.waiting.during(_READING):
            found = evaluations = wanted.find(store, report)
        if report.undisturbed and not include_profiled:
            evaluations = undisturbed(found)
        rows = rows_of(report, evaluations, store)
        if top_layers is not None:
            rows = _heaviest(rows, top_layers)
        shown = rows if picture is None else list(rows)  # a picture iterates over them again
        paged = on_a_page(report, **printing)
        printed = shown if paged is report else paged.rows(evaluations)
        if as_tables(report, **printing):
            count = print_tables(report.tables(evaluations), **printing)
        else:
            count = print_rows(paged.columns, printed, **printing)
        if isinstance(report, TraceReport):
            explain(report, evaluations, count)
        if picture is not None:
            with invocation.waiting.during("drawing"):
                drawn = picture.write(report, evaluations, list(shown), datetime.now(timezone.utc))
            click.echo(
                f"drawn to {picture}" if drawn else f"nothing to draw: {picture} is not written", err=True
            )
        say_none(found, store)


def _heaviest(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """Yields the ``count`` rows with the largest shares of each evaluation, in their original order."""
    for _, group in itertools.groupby(rows, key=lambda row: row["id"]):
        of_one = list(group)
        ranked = sorted(range(len(of_one)), key=lambda place: -float(of_one[place]["share_percent"] or 0))
        yield from (of_one[place] for place in sorted(ranked[:count]))
