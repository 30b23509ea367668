"""Runs the loading of a dataset for the command line: prints its summary, and gives the exit code."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from inferometer.client.bench.jobs import ingestions
from inferometer.client.bench.training import Publication
from inferometer.client.cli.exit_codes import INTERRUPTED, SUCCESS
from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.console import Console, print_rows, say, stability_code
from inferometer.client.evaluating.ingestion_summary import ingestion_rows
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.client.evaluating.summary import conditions_rows, failures_line, process_rows
from inferometer.client.systems import Systems
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.ingest import IngestionRequest
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement
from inferometer.evaluators.measurements.measurement import TimedMeasurement
from inferometer.evaluators.precision.processes import process_groups

_FAILED_INPUTS = 1


def run_ingestion(invocation: Invocation, request: IngestionRequest, publication: Publication) -> int:
    """Loads the batches, publishes each evaluation and prints its summary; see ``run_training``.

    Returns:
        The exit code.

    Raises:
        InferometerError: The dataset cannot be loaded, or the evaluation not be published.
    """
    worst = SUCCESS
    group: list[Evaluation[TimedMeasurement]] = []
    bar = ProgressBar(request.system.model_name)
    with Console(invocation, publication.publish, False, bar, "stopping after this batch") as console:
        opening = "opening the dataset" if publication.repeat == 1 else ""
        callbacks = JobCallbacks(
            partial(console.begin, opening=opening),
            console.start,
            console.progress(bar),
            console.say,
            console.stop,
        )
        found = ingestions(request, Systems(invocation), callbacks, publication.repeat)
        with closing(found) as evaluations:
            for evaluation in evaluations:
                console.publish(evaluation, partial(_show, evaluation, publication))
                worst = max(worst, _exit_code(evaluation, published=publication.publish))
                worst = max(worst, stability_code(evaluation, required=publication.require_stable))
                group.append(evaluation)
        print_rows(*process_rows(process_groups(group)))
        console.print_group()
    return worst


def _show(evaluation: Evaluation[IngestionMeasurement], publication: Publication) -> None:
    print_rows(*ingestion_rows(evaluation), *conditions_rows(evaluation), ("evaluation", evaluation.id))
    publication.on_shown(evaluation)


def _exit_code(evaluation: Evaluation[IngestionMeasurement], *, published: bool) -> int:
    """The exit code, and one line on stderr where it is not zero."""
    measured = evaluation.measurement
    if evaluation.status is Status.INTERRUPTED:
        batches = f"interrupted: {len(measured.times.samples)} batches were"
        say(
            f"{batches} kept; reports leave the evaluation out unless they get --include_interrupted"
            if published
            else f"{batches} measured; nothing was published"
        )
        return INTERRUPTED
    if measured.failures:
        say(failures_line(measured.failures, every=evaluation.status is Status.FAILED))
        return _FAILED_INPUTS
    return SUCCESS
