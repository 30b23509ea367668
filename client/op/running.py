"""Runs a benchmark of operators for the command line: progress, the rows, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import Runner
from inferometer.client.cli.exit_codes import INTERRUPTED, SUCCESS
from inferometer.client.cli.output import on_a_page, print_rows, say
from inferometer.client.evaluating.running import Console, evaluation_code
from inferometer.client.op.from_evaluation import explained_lines, traced_lines
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.operators.job import BAD_ROWS, operators_job
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.operators.report import OperatorsReport, reported_operators
from inferometer.evaluators.kinds.operators.summary import counts_text
from inferometer.evaluators.operators.cases import OperatorRequest
from inferometer.evaluators.operators.from_trace import TracedOperators

_FAILED_ROWS = 1


def run_operators(
    invocation: Invocation,
    request: OperatorRequest,
    printing: Mapping[str, Any],
    *,
    publish: bool,
    require_stable: bool,
    resume: bool,
    traced: TracedOperators | None = None,
) -> int:
    """Runs the benchmark, publishes one evaluation per framework, and prints all rows on stdout.

    All other output goes to stderr, including, with ``traced``, how much of a model's time the rows explain.
    Rows are printed even if an evaluation cannot be published.

    Returns:
        The exit code.

    Raises:
        InferometerError: A framework is unknown or not installed, or an evaluation cannot be published.
    """
    evaluations, worst, console = list[Evaluation[OperatorMeasurement]](), SUCCESS, Console(None, aside=True)
    runner = Runner(invocation, console, publish=publish)
    for line in traced_lines(traced) if traced else ():
        say(line)
    try:
        with closing(runner.run(operators_job(request, resume=resume))) as measured:
            for evaluation in measured:
                evaluations.append(evaluation)
                if evaluation.status is not Status.INTERRUPTED:
                    code = evaluation_code(evaluation, published=publish, require_stable=require_stable)
                    worst = max(worst, code)
    finally:
        if evaluations:
            report = on_a_page(OperatorsReport(), **printing)
            print_rows(report.columns, report.rows(evaluations), **printing)
    console.print_group()
    if traced:
        for line in explained_lines(traced, [row for each in evaluations for row in each.measurement.rows]):
            say(line)
    return max(worst, _exit_code(evaluations))


def _exit_code(evaluations: list[Evaluation[OperatorMeasurement]]) -> int:
    """Returns the exit code, and prints on stderr the number of rows per outcome."""
    told = [each.told.status for e in evaluations for each in reported_operators(e.measurement)]
    say(counts_text(told))
    if any(each.status is Status.INTERRUPTED for each in evaluations):
        say("interrupted: agent op run with the same options and --resume goes on")
        return INTERRUPTED
    return _FAILED_ROWS if set(BAD_ROWS) & set(told) else SUCCESS
