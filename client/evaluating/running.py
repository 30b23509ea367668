"""Runs jobs for the command line: prints their summaries, and gives the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import Runner
from inferometer.client.cli.exit_codes import FAILED_INPUTS, SUCCESS, exit_code
from inferometer.client.evaluating.console import (
    Console,
    evaluation_code,
    print_rows,
    print_summary,
)
from inferometer.client.evaluating.pictures import Pictures
from inferometer.client.evaluating.summary import print_failures, print_predictions
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.requests import EvaluationRequest
from inferometer.evaluators.kinds.batches.job import evaluation_job
from inferometer.evaluators.kinds.batches.sweep import SweepCell, sweep_job
from inferometer.evaluators.kinds.batches.sweep_report import COLUMNS, rows_of
from inferometer.evaluators.kinds.summary import process_rows
from inferometer.evaluators.precision.processes import process_groups
from inferometer.evaluators.reports.writer import Format, write
from inferometer.evaluators.running.job import Job


def run_job(
    invocation: Invocation,
    job: Job[Evaluation[Any]],
    *,
    publish: bool,
    predictions: bool = False,
    allow_invalid: bool = True,
    require_stable: bool = False,
    show: Callable[[Evaluation[Any]], None] = print_summary,
) -> int:
    """Runs a job, publishes each evaluation and prints its summary; of repetitions, also that of all.

    Args:
        invocation: The configuration.
        job: The job.
        publish: Whether evaluations are kept in the database.
        predictions: Whether they keep their predictions there.
        allow_invalid: Whether figures that cannot be trusted have no exit code of their own.
        require_stable: Whether unstable conditions have one.
        show: Prints an evaluation.

    Returns:
        The exit code: the highest if several evaluations have different ones.

    Raises:
        InferometerError: The job cannot be run, or an evaluation not be published.
    """
    worst, group, console = SUCCESS, list[Evaluation[Any]](), Console(show)
    runner = Runner(invocation, console, publish=publish, predictions=predictions)
    with closing(runner.run(job)) as evaluations:
        for evaluation in evaluations:
            code = evaluation_code(
                evaluation, published=publish, allow_invalid=allow_invalid, require_stable=require_stable
            )
            worst = max(worst, code)
            group.append(replace(evaluation, spans=()))
    print_rows(*process_rows(process_groups(group)))
    console.print_group()
    return worst


def run_evaluation(
    invocation: Invocation,
    request: EvaluationRequest,
    *,
    publish: bool,
    predictions: bool,
    show_inputs: bool,
    pictures: Pictures | None = None,
    require_stable: bool = False,
) -> int:
    """Evaluates over a dataset; see ``run_job``.

    ``pictures`` gets those of predictions; of shown inputs, the data directory gets them otherwise.
    """

    def show(evaluation: Evaluation[Any]) -> None:
        if show_inputs:
            print_predictions(evaluation)
            print_failures(evaluation)
        print_summary(evaluation)
        place = pictures
        if place is None and show_inputs and publish:
            place = Pictures(invocation.data_directory / "predictions" / evaluation.id)
        if place is not None and (written := place.write(evaluation, request.dataset, invocation)):
            first = f"{len(written)} in {place.folder}, {written[0].name} is the first"
            print_rows(("pictures", first))

    return run_job(
        invocation,
        evaluation_job(request),
        publish=publish,
        predictions=predictions,
        require_stable=require_stable,
        show=show,
    )


def run_sweep(
    invocation: Invocation,
    requests: Sequence[EvaluationRequest],
    *,
    publish: bool,
    predictions: bool,
    require_stable: bool = False,
) -> int:
    """Evaluates one request after the other, publishes each evaluation, and prints one table on stdout.

    The table also has those that failed, and is printed when the sweep is interrupted.

    Returns:
        The exit code: the highest if several evaluations have different ones.

    Raises:
        InferometerError: The evaluations cannot be run, or not be published.
    """
    cells, worst, console = list[SweepCell](), SUCCESS, Console(None, aside=True)
    runner = Runner(invocation, console, publish=publish, predictions=predictions)
    try:
        with closing(runner.run(sweep_job(requests))) as found:
            for cell in found:
                cells.append(cell)
                if cell.evaluation is None:
                    runner.say(f"failed: {cell.error}")
                    worst = max(worst, FAILED_INPUTS if cell.error is None else exit_code(cell.error))
                    continue
                cells[-1] = SweepCell(cell.request, replace(cell.evaluation, spans=()))
                code = evaluation_code(cell.evaluation, published=publish, require_stable=require_stable)
                worst = max(worst, code)
    finally:
        if cells:
            write(COLUMNS, rows_of(cells), Format.TABLE, sys.stdout)
    console.print_group()
    return worst
