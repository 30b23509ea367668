"""Runs a job for the command line: prints progress, announcements and summaries, and gives the exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from inferometer.client.cli.exit_codes import INTERRUPTED, INVALID, SUCCESS, exit_code
from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.console import Console, print_rows, say, stability_code
from inferometer.client.evaluating.load_summary import invalid_load, load_rows
from inferometer.client.evaluating.pictures import Pictures
from inferometer.client.evaluating.progress import LiveLine, ProgressBar
from inferometer.client.evaluating.summary import (
    conditions_rows,
    failures_line,
    full_rows,
    print_failures,
    print_predictions,
    process_rows,
    trace_rows,
)
from inferometer.client.systems import Systems
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.evaluate import evaluate
from inferometer.evaluators.jobs.load import LoadJob
from inferometer.evaluators.jobs.requests import EvaluationRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.jobs.resources import JobCallbacks, JobPart, JobStart
from inferometer.evaluators.jobs.sweep import SweepCell, sweep
from inferometer.evaluators.load.issuer import IssuerProgress
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.precision.processes import process_groups
from inferometer.evaluators.reports.sweep import COLUMNS, rows_of
from inferometer.evaluators.reports.writer import Format, write

_Progress = TypeVar("_Progress", Progress, IssuerProgress)
FAILED_INPUTS = 1
"""The exit code of an evaluation that finished although some of its inputs failed."""
_log = logging.getLogger(__name__)


def run_evaluation(
    invocation: Invocation,
    request: EvaluationRequest,
    *,
    publish: bool,
    publish_predictions: bool,
    show_inputs: bool,
    require_stable: bool = False,
    pictures: Pictures | None = None,
    on_shown: Callable[[Evaluation], None] = lambda _: None,
) -> int:
    """Evaluates, publishes each evaluation and prints its summary; then calls ``on_shown`` with it.

    ``pictures`` gets those of predictions; of shown inputs, the data directory gets them otherwise.

    Returns:
        The exit code.

    Raises:
        InferometerError: The evaluation cannot be run, or not be published.
    """
    name = request.system.model_name
    bar = ProgressBar(name)
    with Console(invocation, publish, publish_predictions, bar, "stopping after this batch") as console:

        def begin(part: JobPart) -> None:
            # a fresh process draws bars of its own
            console.begin(part, f"opening {name}" if request.repeat == 1 else "")

        def start(what: JobStart) -> None:
            console.start(what)
            if publish_predictions and what.system.manifest.output.type == "raw":
                say("--publish_predictions keeps nothing: the model's output has no classes")

        worst = SUCCESS
        callbacks = JobCallbacks(begin, start, console.progress(bar), console.say, console.stop)
        group = []
        with closing(evaluate(request, Systems(invocation), callbacks)) as evaluations:
            for evaluation in evaluations:
                place = pictures
                if place is None and show_inputs and publish:
                    place = Pictures(invocation.data_directory / "predictions" / evaluation.id)
                draw = partial(_draw, evaluation, request, invocation, place)
                console.publish(evaluation, partial(_show, evaluation, draw, on_shown, inputs=show_inputs))
                worst = max(worst, _exit_code(evaluation, published=publish))
                worst = max(worst, stability_code(evaluation, required=require_stable))
                if evaluation.process is not None:
                    group.append(replace(evaluation, spans=()))
        print_rows(*process_rows(process_groups(group)))
        console.print_group()
    return worst


def run_sweep(
    invocation: Invocation,
    requests: Sequence[EvaluationRequest],
    *,
    publish: bool,
    publish_predictions: bool,
    require_stable: bool = False,
) -> int:
    """Evaluates one request after the other, publishes each evaluation, and prints one table on stdout.

    The table also has those that failed, and is printed when the sweep is interrupted.

    Returns:
        The exit code: the highest if several evaluations have different ones.

    Raises:
        InferometerError: The evaluations cannot be run, or not be published.
    """
    bar, cells, worst = ProgressBar(requests[0].system.model_name), list[SweepCell](), SUCCESS
    stops = "stopping after this batch"
    with Console(invocation, publish, publish_predictions, bar, stops, aside=True) as console:

        def begin(part: JobPart) -> None:
            console.begin(part, f"opening {requests[0].system.model_name}")

        callbacks = JobCallbacks(begin, console.start, console.progress(bar), console.say, console.stop)
        try:
            with closing(sweep(requests, Systems(invocation), callbacks)) as found:
                for cell in found:
                    cells.append(cell)
                    if cell.evaluation is None:
                        console.say(f"failed: {cell.error}")
                        worst = max(worst, FAILED_INPUTS if cell.error is None else exit_code(cell.error))
                        continue
                    cells[-1] = SweepCell(cell.request, replace(cell.evaluation, spans=()))
                    console.publish(cell.evaluation, lambda: None)
                    worst = max(worst, _exit_code(cell.evaluation, published=publish))
                    worst = max(worst, stability_code(cell.evaluation, required=require_stable))
        finally:
            bar.close()
            invocation.waiting.close()
            if cells:
                write(COLUMNS, rows_of(cells), Format.TABLE, sys.stdout)
        console.print_group()
    return worst


def run_load(
    invocation: Invocation,
    request: WorkloadRequest | MaxQpsRequest,
    *,
    publish: bool,
    allow_invalid: bool = False,
    require_stable: bool = False,
) -> int:
    """Puts a load on a system, publishes each evaluation and prints its summary.

    Returns:
        The exit code: the highest if several evaluations have different ones.

    Raises:
        InferometerError: The load cannot be run, or not be published.
    """
    with invocation.waiting.during("measuring what this machine can send"):
        job = LoadJob(request)
    worst = SUCCESS
    line = LiveLine(search=isinstance(request, MaxQpsRequest))
    with Console(invocation, publish, False, line, "stopping, without waiting for the answers") as console:
        opening = f"opening {request.system.model_name}"
        begin = partial(console.begin, opening=opening)
        callbacks = JobCallbacks(begin, console.start, console.progress(line), console.say, console.stop)
        with closing(job.run(Systems(invocation), callbacks)) as evaluations:
            for evaluation in evaluations:
                if evaluation.status is Status.INTERRUPTED:
                    line.close()
                    print_rows(("INTERRUPTED", "not published; measured until then:"), *load_rows(evaluation))
                    return INTERRUPTED
                rows = (*load_rows(evaluation), *conditions_rows(evaluation), *trace_rows(evaluation))
                console.publish(evaluation, partial(print_rows, *rows, ("evaluation", evaluation.id)))
                if evaluation.status is Status.FAILED:
                    say("failed: no query was answered; reports leave the evaluation out")
                    worst = max(worst, FAILED_INPUTS)
                elif invalid_load(evaluation) and not allow_invalid:
                    worst = max(worst, INVALID)
                worst = max(worst, stability_code(evaluation, required=require_stable))
        console.print_group()
    return worst


def _draw(
    evaluation: Evaluation[BatchMeasurement],
    request: EvaluationRequest,
    invocation: Invocation,
    pictures: Pictures | None,
) -> None:
    """Writes the pictures of predictions, and prints where they are."""
    if pictures is None:
        return
    written = pictures.write(evaluation, request.dataset, invocation)
    if written:
        print_rows(("pictures", f"{len(written)} in {pictures.folder}, {written[0].name} is the first"))


def _show(
    evaluation: Evaluation[BatchMeasurement],
    draw: Callable[[], None],
    on_shown: Callable[[Evaluation], None],
    *,
    inputs: bool,
) -> None:
    """Prints the summary, and before it the predictions and failures of single inputs, if requested."""
    if inputs:
        print_predictions(evaluation)
        print_failures(evaluation)
    print_rows(*full_rows(evaluation))
    draw()
    on_shown(evaluation)


def _exit_code(evaluation: Evaluation[BatchMeasurement], *, published: bool) -> int:
    """The exit code, and one line on stderr where it is not zero."""
    if evaluation.status is Status.INTERRUPTED:
        measured = evaluation.measurement
        what = f"interrupted: {measured.predicted_inputs} inputs in {len(measured.times.sizes)} batches were"
        say(
            f"{what} kept; reports leave the evaluation out unless they get --include_interrupted"
            if published
            else f"{what} measured; nothing was published"
        )
        return INTERRUPTED
    if failures := evaluation.measurement.failures:
        say(failures_line(failures, every=evaluation.status is Status.FAILED))
        return FAILED_INPUTS
    return SUCCESS
