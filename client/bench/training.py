"""Runs a training for the command line: prints its progress and summary, and gives the exit code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from inferometer.client.bench.jobs import trainings
from inferometer.client.cli.exit_codes import INTERRUPTED, SUCCESS
from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.console import Console, print_rows, say, stability_code
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.client.evaluating.summary import conditions_rows, failures_line, process_rows, trace_rows
from inferometer.client.evaluating.training_summary import training_rows
from inferometer.client.systems import Systems
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.jobs.training_requests import TrainingRequest
from inferometer.evaluators.measurements.measurement import TimedMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement
from inferometer.evaluators.precision.processes import process_groups
from inferometer.evaluators.training.ranks import RankRequest

_FAILED_INPUTS = 1


@dataclass(frozen=True, slots=True)
class Publication:
    """What becomes of an evaluation beside its summary, and how many there are.

    Attributes:
        publish: Whether it goes to the database.
        require_stable: Whether unstable conditions have an exit code of their own.
        repeat: How often to repeat all of it.
        on_shown: Called with the evaluation after its summary is printed.
    """

    publish: bool = True
    require_stable: bool = False
    repeat: int = 1
    on_shown: Callable[[Evaluation], None] = lambda _: None


def run_training(
    invocation: Invocation,
    request: TrainingRequest,
    ranks: RankRequest,
    publication: Publication,
) -> int:
    """Trains, publishes each evaluation and prints its summary; of repetitions, also that of all processes.

    Returns:
        The exit code.

    Raises:
        InferometerError: The model cannot be trained, or the evaluation not be published.
    """
    name, worst = request.system.model_name, SUCCESS
    group: list[Evaluation[TimedMeasurement]] = []
    bar = ProgressBar(name)
    with Console(invocation, publication.publish, False, bar, "stopping after this step") as console:
        opening = (
            f"opening {name}" if publication.repeat == 1 else ""
        )  # fresh processes draw bars of their own
        callbacks = JobCallbacks(
            partial(console.begin, opening=opening),
            console.start,
            console.progress(bar),
            console.say,
            console.stop,
        )
        found = trainings(request, ranks, Systems(invocation), callbacks, publication.repeat)
        with closing(found) as evaluations:
            for evaluation in evaluations:
                console.publish(evaluation, partial(_show, evaluation, publication))
                worst = max(worst, _exit_code(evaluation, published=publication.publish))
                worst = max(worst, stability_code(evaluation, required=publication.require_stable))
                group.append(replace(evaluation, spans=()))
        print_rows(*process_rows(process_groups(group)))
        console.print_group()
    return worst


def _show(evaluation: Evaluation[TrainingMeasurement], publication: Publication) -> None:
    print_rows(*training_rows(evaluation), *conditions_rows(evaluation), *trace_rows(evaluation))
    print_rows(("evaluation", evaluation.id))
    publication.on_shown(evaluation)


def _exit_code(evaluation: Evaluation[TrainingMeasurement], *, published: bool) -> int:
    """The exit code, and one line on stderr where it is not zero."""
    measured = evaluation.measurement
    if evaluation.status is Status.INTERRUPTED:
        steps = f"interrupted: {measured.times.samples.shape[1]} steps were"
        say(
            f"{steps} kept; reports leave the evaluation out unless they get --include_interrupted"
            if published
            else f"{steps} measured; nothing was published"
        )
        return INTERRUPTED
    if measured.failures:
        say(failures_line(measured.failures))
        return _FAILED_INPUTS
    return SUCCESS
