"""``agent info evaluation``: the reports on published evaluations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from agent.predictor import Weights
from client.command import Command, Group, boolean, database_options
from client.invocation import current_invocation
from client.output import output_options, print_rows
from client.plot_option import draw, open_picture, plot_option
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Row
from evaluators.reports.registry import ALIASES, REPORTS, find_report
from evaluators.reports.trace_report import TraceReport
from evaluators.store.base import EvaluationFilter
from manifests.errors import ConfigurationError


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose evaluations; each left out means any."""
    options = (
        click.option("--model_name", metavar="NAME", help="Only this model."),
        click.option("--model_version", metavar="VERSION", help="Only this version of the model."),
        click.option("--framework_name", metavar="NAME", help="Only this framework."),
        click.option("--framework_version", metavar="VERSION", help="Only this version of the framework."),
        click.option("--arch", metavar="NAME", help="Only machines of this architecture, such as x86_64."),
        click.option("--hostname", metavar="NAME", help="Only this machine."),
        click.option(
            "--batch_size", type=click.IntRange(min=0), default=0, metavar="N", help="Only this batch size."
        ),
        click.option(
            "--weights",
            type=click.Choice([w.value for w in Weights], case_sensitive=False),
            help="Only evaluations of such weights.",
        ),
        click.option(
            "--limit",
            type=int,
            default=-1,
            show_default=True,
            metavar="N",
            help="The newest N evaluations; -1 for all.",
        ),
        boolean("--include_interrupted", help="Show evaluations that were stopped, too."),
        click.option("--id", "evaluation_id", metavar="ID", help="Only this evaluation."),
    )
    for option in reversed(options):
        function = option(function)
    return database_options(function)


class ReportGroup(Group):
    """A group with a command for each report of the registry."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The reports' names."""
        return sorted(REPORTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a report."""
        if cmd_name not in REPORTS and cmd_name not in ALIASES:
            return None
        report = find_report(cmd_name)
        command: click.Command = Command(
            cmd_name, callback=lambda **given: _report(cmd_name, **given), help=f"Show {report.summary}."
        )
        output_options(plot_option(filter_options(command)))
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


def _report(
    name: str,
    *,
    arch: str | None,
    batch_size: int,
    limit: int,
    database_address: str | None,
    database_name: str | None,
    model_name: str | None,
    model_version: str | None,
    framework_name: str | None,
    framework_version: str | None,
    hostname: str | None,
    weights: str | None,
    include_interrupted: bool,
    evaluation_id: str | None,
    top_layers: int | None = None,
    plot: Path | None,
    **output: Any,
) -> None:
    """Finds the evaluations and prints the report on them."""
    if limit != -1 and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1, or -1 for all")
    wanted = EvaluationFilter(
        model_name=model_name,
        model_version=model_version,
        framework_name=framework_name,
        framework_version=framework_version,
        architecture=arch,
        hostname=hostname,
        batch_size=batch_size or None,
        weights=Weights(weights.lower()) if weights else None,
        limit=None if limit == -1 else limit,
        include_interrupted=include_interrupted or evaluation_id is not None,
        evaluation_id=evaluation_id,
    )
    picture, output["overwrite"] = open_picture(
        plot, output["output"], overwrite=output["overwrite"], append=output["append"]
    )
    store = current_invocation().open_store(database_address, database_name)
    try:
        evaluations = store.find(wanted, lambda error: click.echo(f"warning: left out {error}", err=True))
        report = find_report(name)
        if isinstance(report, TraceReport):
            rows = list(report.rows_of(evaluations, store.spans))
            shown = rows if top_layers is None else _heaviest(rows, top_layers)
            print_rows(report.columns, shown, **output)
            _explain(report, evaluations, rows)
        else:
            shown = list(report.rows(evaluations))
            print_rows(report.columns, shown, **output)
        draw(picture, report, evaluations, shown)
        if not evaluations:
            click.echo(f"no evaluation in {store.location} matches", err=True)
    finally:
        store.close()


def _heaviest(rows: Sequence[Row], count: int) -> list[Row]:
    """The rows of each evaluation with the largest shares, in the order that they have."""
    chosen: list[Row] = []
    for _, group in itertools.groupby(rows, key=lambda row: row["id"]):
        of_one = list(group)
        ranked = sorted(range(len(of_one)), key=lambda place: -float(of_one[place]["share_percent"] or 0))
        chosen += (of_one[place] for place in sorted(ranked[:count]))
    return chosen


def _explain(report: TraceReport, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> None:
    """Says why there are no rows, and what the traces that there are cannot give."""
    traced = [e for e in evaluations if e.trace is not None and e.options.trace_level >= report.level]
    if evaluations and not traced:
        click.echo(
            f"none of the {len(evaluations)} evaluations was traced deep enough; "
            f"evaluate with --trace_level={report.level.name}",
            err=True,
        )
    if not rows:
        for note in dict.fromkeys(note for e in traced if e.trace for note in e.trace.notes):
            click.echo(note, err=True)
