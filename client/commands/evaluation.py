"""Stored evaluations: the options that select them, ``agent info evaluation``, ``compare`` and ``database``.

``agent info evaluation`` reports on published evaluations, ``agent compare`` compares them, and ``agent
database`` publishes evaluations from files. Modules that the options do not need are imported within
functions, so that help and completion are fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import (
    COUNT,
    FILE,
    WEIGHTS,
    WHOLE_NUMBER,
    Command,
    FiniteFloatRange,
    Group,
    boolean,
    current_invocation,
    database_options,
    evaluations_argument,
    option,
    options,
)
from inferometer.client.cli.output import (
    OUTPUT_NAMES,
    as_tables,
    echo,
    on_a_page,
    output_options,
    picture_of,
    print_rows,
    print_tables,
    report_options,
    say_drawn,
)
from inferometer.evaluators.jobs.options import ACCURACY_THRESHOLD, THRESHOLD
from inferometer.evaluators.kinds.registry import find_plot, find_report, known_reports, report_named
from inferometer.evaluators.reports.base import Report, Row
from inferometer.manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.kinds.reports import TraceReport
    from inferometer.evaluators.store.evaluation_store import EvaluationStore


filter_options = options(
    database_options,
    option("--model_name", metavar="NAME", help="Only this model."),
    option("--model_version", metavar="VERSION", help="Only this version of the model."),
    option("--framework_name", metavar="NAME", help="Only this framework."),
    option("--framework_version", metavar="VERSION", help="Only this version of the framework."),
    option("--arch", metavar="NAME", help="Only machines of this architecture, such as x86_64."),
    option("--hostname", metavar="NAME", help="Only this machine."),
    option("--batch_size", type=WHOLE_NUMBER, metavar="N", help="Only this batch size."),
    option("--weights", type=WEIGHTS, help="Only evaluations with these weights."),
    option("--limit", type=int, default=-1, metavar="N", help="The newest N evaluations; -1 for all."),
    boolean("--include_interrupted", help="Also show interrupted and failed evaluations."),
    option(
        "--id",
        "evaluation_id",
        metavar="ID",
        help="Only this evaluation, or those of this group; a unique prefix of the id is enough.",
    ),
    heading="Evaluations",
)
"""Adds the options that choose evaluations; an omitted option means any."""


class ChosenEvaluations:
    """The evaluations that ``filter_options`` select; the arguments are named after the options."""

    def __init__(
        self,
        *,
        arch: str | None,
        batch_size: int | None,
        weights: str | None,
        limit: int,
        include_interrupted: bool,
        evaluation_id: str | None,
        **names: str | None,
    ) -> None:
        from inferometer.agent.hardware.environment import Weights
        from inferometer.evaluators.store.evaluation_store import EvaluationFilter

        if limit != -1 and limit < 1:
            raise ConfigurationError(f"limit is {limit}; it must be at least 1, or -1 for all")
        self._wanted = EvaluationFilter(
            architecture=arch,
            batch_size=batch_size or None,
            weights=Weights(weights.lower()) if weights else None,
            limit=None if limit == -1 else limit,
            include_interrupted=include_interrupted or evaluation_id is not None,
            evaluation_id=evaluation_id,
            kinds=None,
            stability=None,
            offset=0,
            **names,
        )

    def find(
        self,
        store: EvaluationStore,
        report: Report[Any],
        on_unreadable: Callable[[StoreError], None] = lambda _: None,
    ) -> Sequence[Evaluation]:
        """Returns the evaluations for a report, newest first, and reports unreadable ones on stderr.

        ``on_unreadable`` is called with the error of each unreadable evaluation after the error is printed.
        """
        from inferometer.client.api.results import whole_id

        given, kinds = self._wanted.evaluation_id, tuple(taken.kind for taken in report.takes) or None
        whole = None if given is None else whole_id(store, given)
        wanted = replace(self._wanted, evaluation_id=whole, kinds=kinds)

        def left_out(error: StoreError) -> None:
            say_left_out(error)
            on_unreadable(error)

        return store.find(wanted, left_out)


def say_left_out(error: StoreError) -> None:
    """Reports on stderr that an evaluation or a trace cannot be read."""
    click.echo(f"warning: left out {error}", err=True)


def say_none(found: Sequence[Evaluation], store: EvaluationStore) -> None:
    """Reports on stderr if no evaluation was found."""
    if not found:
        echo(f"no evaluation in {store.location} matches", err=True)


def rows_of(report: Report[Any], evaluations: Sequence[Evaluation], store: EvaluationStore) -> Iterator[Row]:
    """Yields the rows of a report, reading the spans that it needs; reports traces that cannot be read."""
    from inferometer.evaluators.kinds.reports import TraceReport

    if isinstance(report, TraceReport):
        from inferometer.client.api.results import readable_spans

        return report.rows_of(evaluations, readable_spans(store, say_left_out))
    return report.rows(evaluations)


def undisturbed(evaluations: Sequence[Evaluation], heading: str = "") -> Sequence[Evaluation]:
    """Returns the evaluations that ran without a profiler; reports the number of others after a heading."""
    kept = [evaluation for evaluation in evaluations if not evaluation.profiled]
    if left_out := len(evaluations) - len(kept):
        echo(
            f"{heading}left out {left_out} of {len(evaluations)} evaluations: they ran under a profiler, "
            "which slows the model down (--include_profiled shows them)",
            err=True,
        )
    return kept


def explain(
    report: TraceReport[Any], evaluations: Sequence[Evaluation], rows: int, heading: str = ""
) -> None:
    """Prints on stderr, after a heading, the reasons why a report on traces lacks rows."""
    for reason in _reasons(report, evaluations, rows):
        echo(f"{heading}{reason}", err=True)


def _reasons(report: TraceReport[Any], evaluations: Sequence[Evaluation], rows: int) -> Iterator[str]:
    traced = [e for e in evaluations if e.trace is not None and e.trace_level >= report.level]
    if evaluations and not traced:
        yield (
            f"none of the {len(evaluations)} evaluations was traced deep enough; "
            f"evaluate with --trace_level={report.level.name}"
        )
    short = [e for e in report.taken(traced) if not len(e.measurement.full_ns)]
    if report.of_full_batches and short:
        yield (
            f"left out {len(short)} of {len(evaluations)} evaluations: none of their batches held the full "
            "batch size; evaluate with a smaller --batch_size"
        )
    elif traced and not rows:
        notes = dict.fromkeys(note for e in traced if e.trace for note in e.trace.notes)
        yield from notes or (f"the traces of {len(traced)} evaluations contain nothing of this kind",)


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
        found = super().get_command(ctx, cmd_name)
        if found is not None or (report := report_named(cmd_name)) is None:
            return found
        from inferometer.evaluators.kinds.reports import TraceReport

        command: click.Command = Command(
            cmd_name, callback=lambda **given: _report(cmd_name, **given), help=f"Show {report.summary}."
        )
        options(filter_options, _plot_option, report_options(*report.layouts))(command)
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
        "all": ("inferometer.client.commands.show:all_reports", "Write every report into a folder."),
        "show": ("inferometer.client.commands.show:show", "Show one evaluation."),
    },
)
def evaluation() -> None:
    """Reports on published evaluations."""


@click.command(cls=Command)
@filter_options
@output_options
def evaluations(**given: Any) -> None:
    """List the evaluations of every kind, the newest first, with their main figures and the verdict.

    To show one: agent info evaluation show ID
    """
    from inferometer.evaluators.kinds.reports import OverviewReport

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
    from inferometer.evaluators.kinds.load.report import ProbesReport
    from inferometer.evaluators.kinds.reports import LayerRunsReport, TraceReport

    if raw and (top_layers is not None or plot is not None):
        raise ConfigurationError("--raw shows single runs: leave out --top_layers and --plot")
    if probes and plot is not None:
        raise ConfigurationError("--probes shows single runs: leave out --plot, which draws them without it")
    printing = {key: given.pop(key) for key in OUTPUT_NAMES}
    wanted, picture = ChosenEvaluations(**given), picture_of(plot, printing)
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
            count = print_rows(paged.columns, printed, layouts=paged.layouts, **printing)
        if isinstance(report, TraceReport):
            explain(report, evaluations, count)
        if picture is not None:
            with invocation.waiting.during("drawing"):
                held = list(shown)
                drawing = find_plot(report).draw(evaluations, held)
                drawn = picture.write(report, drawing, held, datetime.now(timezone.utc))
            say_drawn(picture, drawn)
        say_none(found, store)


def _heaviest(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """Yields, for each evaluation, the ``count`` rows with the largest shares, in their original order."""
    for _, group in itertools.groupby(rows, key=lambda row: row["id"]):
        of_one = list(group)
        ranked = sorted(range(len(of_one)), key=lambda place: -float(of_one[place]["share_percent"] or 0))
        yield from (of_one[place] for place in sorted(ranked[:count]))


@click.command(cls=Command)
@evaluations_argument("a", metavar="A")
@evaluations_argument("b", metavar="B")
@option(
    "--noise",
    metavar="RUNS",
    help="Two or more evaluations of one system, whose differences become the threshold of each figure.",
)
@option(
    "--threshold",
    type=FiniteFloatRange(0, 10),
    metavar="SHARE",
    help=f"Largest difference that counts as the same, such as 0.05 for 5 %.  [default: {THRESHOLD:g}]",
)
@option(
    "--accuracy_threshold",
    type=FiniteFloatRange(0, 10),
    default=ACCURACY_THRESHOLD,
    metavar="SHARE",
    help="Largest difference of top-1 that counts as the same.",
)
@option(
    "--figures",
    metavar="NAMES",
    help="Figures to compare, separated by commas: p50 and other percentiles, throughput, max_qps, top1; of "
    "generation ttft_p50, tpot_p50, e2e_p50 and others, tokens, throughput, goodput.  [default: p50,p90,p99,"
    "throughput and top1; of generation two percentiles of each time, and rates; of searches max_qps]",
)
@boolean("--fail_on_undecided", help="Exit with 1 also if a figure is undecided.")
@output_options
@database_options
def compare(**given: Any) -> None:
    """Compare the evaluations B with the evaluations A and report whether B is worse.

    A, B and RUNS are ids of evaluations or groups, or unique prefixes of ids; separate several with commas.
    The exit code is 1 if a figure of B is worse than A's by more than the threshold, and 0 otherwise.
    """
    # Imported here because the help does not need it.
    from inferometer.client.evaluating.running import run_comparison

    printing = {name: given.pop(name) for name in OUTPUT_NAMES}
    click.get_current_context().exit(run_comparison(current_invocation(), **given, printing=printing))


@click.group(cls=Group)
def database() -> None:
    """Publish results that are kept in files."""


@database.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE…")
@database_options
def import_(files: tuple[Path, ...]) -> None:
    """Publish evaluations that could not be published when they ended.

    All files are read before the first one is published. Published evaluations are not published again.
    """
    from inferometer.evaluators.store.evaluation_store import read_spool

    evaluations = [read_spool(path) for path in files]
    with closing(current_invocation().open_store()) as store:
        for path, evaluation in zip(files, evaluations, strict=True):
            if store.save(evaluation):
                click.echo(f"published   {evaluation.id} from {path} to {store.location}")
            else:
                click.echo(f"unchanged   {evaluation.id} from {path} is in {store.location} already")
