"""``agent info evaluation``: the reports on published evaluations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from client.command import Command, Group, boolean
from client.output import output_options, print_rows
from client.reports.all_reports import all_reports
from client.reports.evaluation_filter import (
    ChosenEvaluations,
    explain,
    filter_options,
    rows_of,
    say_none,
    undisturbed,
)
from client.reports.plot_option import draw, open_picture, plot_option
from client.reports.show import show
from evaluators.reports.base import Row
from evaluators.reports.layer_runs import LayerRunsReport
from evaluators.reports.probes import ProbesReport
from evaluators.reports.registry import ALIASES, REPORTS, find_report
from evaluators.reports.trace_report import TraceReport
from manifests.errors import ConfigurationError


class ReportGroup(Group):
    """A group with a command for each report of the registry."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The reports' names, and the commands beside them."""
        return sorted([*REPORTS, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a report, or one of those beside them."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in REPORTS and cmd_name not in ALIASES:
            return None
        report = find_report(cmd_name)
        command: click.Command = Command(
            cmd_name, callback=lambda **given: _report(cmd_name, **given), help=f"Show {report.summary}."
        )
        output_options(plot_option(filter_options(command)))
        if report.undisturbed:
            boolean("--include_profiled", help="Show evaluations that ran under a profiler, too.")(command)
        if report.name in {"layers", "layer_tree"}:
            boolean("--raw", help="Show every time that a layer ran.")(command)
        if report.name == "max_qps":
            boolean("--probes", help="Show every probe of the searches.")(command)
        if isinstance(report, TraceReport) and "share_percent" in {column.key for column in report.columns}:
            click.option(
                "--top_layers",
                type=click.IntRange(min=1),
                metavar="N",
                help="Only the N rows of each evaluation that took longest.",
            )(command)
        return command


@click.group(cls=ReportGroup)
def evaluation() -> None:
    """Reports on published evaluations."""


evaluation.add_command(show)
evaluation.add_command(all_reports)


def _report(
    name: str,
    *,
    top_layers: int | None = None,
    include_profiled: bool = False,
    raw: bool = False,
    probes: bool = False,
    plot: Path | None,
    format_name: str,
    output: Path | None,
    append: bool,
    overwrite: bool,
    no_header: bool,
    **chosen: Any,
) -> None:
    """Finds the evaluations and prints the report on them."""
    if raw and (top_layers is not None or plot is not None):
        raise ConfigurationError("--raw shows single runs: leave out --top_layers and --plot")
    if probes and plot is not None:
        raise ConfigurationError("--probes shows single runs: leave out --plot, which draws them without it")
    wanted = ChosenEvaluations(**chosen)
    picture, overwrite = open_picture(plot, output, overwrite=overwrite, append=append)
    with wanted.open_store() as store:
        report = LayerRunsReport() if raw else ProbesReport() if probes else find_report(name)
        found = evaluations = wanted.find(store, report.kind)
        if report.undisturbed and not include_profiled:
            evaluations = undisturbed(found)
        rows = rows_of(report, evaluations, store)
        if top_layers is not None:
            rows = _heaviest(rows, top_layers)
        shown = iter(rows) if picture is None else list(rows)  # a picture takes them a second time
        count = print_rows(
            report.columns,
            shown,
            format_name=format_name,
            output=output,
            append=append,
            overwrite=overwrite,
            no_header=no_header,
        )
        if isinstance(report, TraceReport):
            explain(report, evaluations, count)
        draw(picture, report, evaluations, shown if isinstance(shown, list) else ())
        say_none(found, store)


def _heaviest(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """The rows of each evaluation with the largest shares, in the order that they have."""
    for _, group in itertools.groupby(rows, key=lambda row: row["id"]):
        of_one = list(group)
        ranked = sorted(range(len(of_one)), key=lambda place: -float(of_one[place]["share_percent"] or 0))
        yield from (of_one[place] for place in sorted(ranked[:count]))
