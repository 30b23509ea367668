"""Runs a benchmark of operators for the command line: progress, the rows, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferometer.client.cli.exit_codes import INTERRUPTED, SUCCESS
from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import on_a_page, print_rows
from inferometer.client.evaluating.console import Console, say, stability_code
from inferometer.client.evaluating.operator_summary import counts_text
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.client.op.from_evaluation import explained_lines, traced_lines
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.operators import OperatorProgress, benchmark_operators
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.measurements.operators import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.evaluators.operators.cases import OperatorRequest
from inferometer.evaluators.operators.from_trace import TracedOperators
from inferometer.evaluators.reports.operators import OperatorsReport, reported_operators, shapes_text

JOURNAL = "operators"
"""The folder in the data directory that keeps the rows of a run in progress, and the machine's peaks."""
_FAILED_ROWS = 1
_BAD = (RowStatus.FAILED, RowStatus.WRONG)


@dataclass(frozen=True, slots=True)
class Kept:
    """What becomes of the evaluations beside their rows.

    Attributes:
        publish: Whether they go to the database.
        require_stable: Whether unstable conditions have an exit code of their own.
        resume: Whether the newest interrupted run of the same goes on.
    """

    publish: bool = True
    require_stable: bool = False
    resume: bool = False


def run_operators(
    invocation: Invocation,
    request: OperatorRequest,
    kept: Kept,
    printing: Mapping[str, Any],
    traced: TracedOperators | None = None,
) -> int:
    """Measures, publishes the evaluation of each framework, and prints the rows of all on stdout.

    Everything else goes to stderr, with ``traced`` also how much of a model's time the rows explain. Rows are
    printed although an evaluation cannot be published.

    Returns:
        The exit code.

    Raises:
        InferometerError: A framework is unknown or not installed, or an evaluation cannot be published.
    """
    bar = ProgressBar("operators")
    evaluations: list[Evaluation[OperatorMeasurement]] = []
    worst = SUCCESS
    stops = "stopping after this operator"
    with Console(invocation, kept.publish, False, bar, stops, aside=True) as console:
        callbacks = JobCallbacks(
            on_progress=partial(_progress, bar, console),
            on_warning=console.say,
            stop_requested=console.stop,
        )
        console.stop.begin(stops)
        for line in traced_lines(traced) if traced else ():
            console.say(line)
        found = benchmark_operators(
            request,
            invocation.registry,
            callbacks,
            resume=kept.resume,
            journal=invocation.data_directory / JOURNAL,
        )
        try:
            with closing(found) as measured:
                for evaluation in measured:
                    evaluations.append(evaluation)
                    console.publish(evaluation, lambda: None)
                    worst = max(worst, stability_code(evaluation, required=kept.require_stable))
        finally:
            bar.close()
            if evaluations:
                report = on_a_page(OperatorsReport(), **printing)
                print_rows(report.columns, report.rows(evaluations), **printing)
        console.print_group()
    if traced:
        for line in explained_lines(traced, [row for each in evaluations for row in each.measurement.rows]):
            say(line)
    return max(worst, _exit_code(evaluations))


def _progress(bar: ProgressBar, console: Console, progress: OperatorProgress) -> None:
    """Shows how far it is, and says at once what failed."""
    row = progress.row
    console.progress(bar)(as_progress(progress))
    if row is not None and row.status in _BAD:
        bar.close()
        console.say(f"{row.status.value}: {row_name(row, progress.framework)}: {row.reason}")


def as_progress(progress: OperatorProgress) -> Progress:
    """Returns the progress as other jobs tell theirs."""
    row = progress.row
    now = "" if row is None else f"{row.operator} in {progress.framework}"
    return Progress(progress.done, progress.total, "rows", now)


def row_name(row: OperatorRow, framework: str) -> str:
    """Returns what a row is of, in a few words."""
    return f"{row.operator} ({shapes_text(row.shapes)}), {row.mode.value}, in {framework} {row.form}".rstrip()


def _exit_code(evaluations: list[Evaluation[OperatorMeasurement]]) -> int:
    """The exit code; says on stderr how many rows ended in which way."""
    told = [each.told.status for e in evaluations for each in reported_operators(e.measurement)]
    say(counts_text(told))
    if any(each.status is Status.INTERRUPTED for each in evaluations):
        say("interrupted: agent op run with the same options and --resume goes on")
        return INTERRUPTED
    return _FAILED_ROWS if set(_BAD) & set(told) else SUCCESS
