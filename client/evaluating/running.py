"""Runs a job for the command line: prints progress, announcements and summaries, and gives the exit code."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Self

from inferometer.client.cli.exit_codes import INTERRUPTED, INVALID, NOT_STABLE, SUCCESS, exit_code
from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import echo
from inferometer.client.cli.stopping import StopRequest
from inferometer.client.evaluating.load_summary import invalid_load, load_rows
from inferometer.client.evaluating.progress import LiveLine, ProgressBar
from inferometer.client.evaluating.running_now import RunningFile
from inferometer.client.evaluating.summary import (
    conditions_rows,
    failure_line,
    full_rows,
    print_failures,
    print_predictions,
    process_rows,
)
from inferometer.client.systems import Systems
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation, Status, measures
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
from inferometer.evaluators.store.json_text import write_spool
from inferometer.manifests.errors import StoreError, printable

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

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
) -> int:
    """Evaluates, publishes each evaluation and prints its summary.

    Returns:
        The exit code.

    Raises:
        InferometerError: The evaluation cannot be run, or not be published.
    """
    name = request.system.model_name
    bar = ProgressBar(name)
    with _Console(invocation, publish, publish_predictions, bar, "stopping after this batch") as console:

        def begin(part: JobPart) -> None:
            # a fresh process draws bars of its own
            console.begin(part, f"opening {name}" if request.repeat == 1 else "")

        def start(what: JobStart) -> None:
            console.start(what)
            if publish_predictions and what.system.manifest.output.type != "classification":
                _say("--publish_predictions keeps nothing: the model's output has no classes")

        worst = SUCCESS
        callbacks = JobCallbacks(begin, start, console.progress(bar), console.say, console.stop)
        group = []
        with closing(evaluate(request, Systems(invocation), callbacks)) as evaluations:
            for evaluation in evaluations:
                console.publish(evaluation, partial(_show, evaluation, inputs=show_inputs))
                worst = max(worst, _exit_code(evaluation, published=publish))
                worst = max(worst, _stability_code(evaluation, required=require_stable))
                if evaluation.process is not None:
                    group.append(replace(evaluation, spans=()))
        _print(*process_rows(process_groups(group)))
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
    with _Console(invocation, publish, publish_predictions, bar, stops, aside=True) as console:

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
                    worst = max(worst, _stability_code(cell.evaluation, required=require_stable))
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
    with _Console(invocation, publish, False, line, "stopping, without waiting for the answers") as console:
        opening = f"opening {request.system.model_name}"
        begin = partial(console.begin, opening=opening)
        callbacks = JobCallbacks(begin, console.start, console.progress(line), console.say, console.stop)
        with closing(job.run(Systems(invocation), callbacks)) as evaluations:
            for evaluation in evaluations:
                if evaluation.status is Status.INTERRUPTED:
                    line.close()
                    _print(("INTERRUPTED", "not published; measured until then:"), *load_rows(evaluation))
                    return INTERRUPTED
                rows = (*load_rows(evaluation), *conditions_rows(evaluation))
                console.publish(evaluation, partial(_print, *rows, ("evaluation", evaluation.id)))
                if invalid_load(evaluation) and not allow_invalid:
                    worst = max(worst, INVALID)
                worst = max(worst, _stability_code(evaluation, required=require_stable))
        console.print_group()
    return worst


class _Console:
    """What both kinds of job print, and the store that they publish to, which is open while this is entered.

    ``display`` shows the progress of each evaluation; ``stops`` is printed when a signal requests to stop.
    With ``aside``, stdout has something else, and the lines go to stderr.
    """

    def __init__(
        self,
        invocation: Invocation,
        publish: bool,
        predictions: bool,
        display: ProgressBar | LiveLine,
        stops: str,
        *,
        aside: bool = False,
    ) -> None:
        self.stop = StopRequest()
        self._aside = aside
        self._stops = stops
        self._invocation = invocation
        self._publish = publish
        self._predictions = predictions
        self._display = display
        self._running = RunningFile(invocation.data_directory if publish else None)
        self._store: EvaluationStore | None = None
        self._group_id: str | None = None

    def __enter__(self) -> Self:
        if self._publish:
            self._store = self._invocation.open_store()
            _log.info("the evaluation will be published to %s", self._store.location)
        self.stop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._invocation.waiting.close()
        self.stop.__exit__(kind, error, trace)
        self._display.close()
        self._running.close()
        if self._store:
            self._store.close()

    def begin(self, part: JobPart, opening: str) -> None:
        """Announces one evaluation of several; ``opening`` is shown until the model is open, if not empty."""
        what = part.name if part.trace_level is None else part.trace_level.name
        if part.count > 1:
            _say(f"{part.number} of {part.count}{', ' if what else ''}{what}:")
        if opening:
            self._invocation.waiting.begin(opening)

    def start(self, what: JobStart) -> None:
        """Prints what is measured above its figures, so that a default that was not meant is seen.

        Where stdout cannot be written, the evaluation goes on, and its figures fail after it is kept.
        """
        self._invocation.waiting.close()
        self.stop.begin(self._stops)
        self._display.begin()
        self._running.begin(what)
        with suppress(OSError):
            echo(printable(_start_line(what)), err=self._aside, indent=2)

    def say(self, line: str) -> None:
        """Prints a line that the user should know on stderr."""
        with self._invocation.waiting.hidden():
            _say(line)

    def progress(self, display: Callable[[_Progress], None]) -> Callable[[_Progress], None]:
        """Returns what takes the progress: it shows it here, and tells it to other processes."""

        def take(progress: _Progress) -> None:
            display(progress)
            self._running(progress)

        return take

    def publish(self, evaluation: Evaluation, show: Callable[[], None]) -> None:
        """Keeps an evaluation in a file, shows it and publishes it; then the file is removed.

        Ctrl-C loses nothing: it waits for the file, and for no batch. Where there can be no file, the
        evaluation is published although a stop was requested.

        Raises:
            StoreError: It was not published; the message names the file.
            KeyboardInterrupt: The same, by Ctrl-C.
        """
        self._display.close()
        self._running.close()
        self._group_id = evaluation.group_id
        if self._store is None:
            self.stop.end()
            show()
            return
        if not self._predictions and measures(evaluation, BatchMeasurement):
            without = replace(evaluation.measurement, predictions=())
            evaluation = replace(evaluation, measurement=without)
        self.stop.begin("stopping once the evaluation is in a file")
        path, kept = spooled(self._invocation, evaluation)
        try:
            show()
        finally:  # it is published although stdout is closed
            try:
                if self.stop.end() and path is not None:
                    raise KeyboardInterrupt
                self._store.save(evaluation)
            except StoreError as error:
                raise StoreError(f"{error}; {kept}") from error
            except KeyboardInterrupt:
                _say(f"not published: {kept}")
                raise
        if path is not None:
            with suppress(OSError):  # publishing it again later changes nothing
                path.unlink()
                path.parent.rmdir()  # if no other evaluation waits there
        echo(f"published   {evaluation.id} to {self._store.location}", err=self._aside, indent=12)

    def print_group(self) -> None:
        """Prints the id that several published evaluations have in common."""
        if self._store and self._group_id:
            echo(f"group       {self._group_id}", err=self._aside, indent=12)


def spooled(invocation: Invocation, evaluation: Evaluation) -> tuple[Path | None, str]:
    """Writes an evaluation to a file; returns its path, and what has become of the evaluation."""
    try:
        path = write_spool(evaluation, invocation.data_directory / "unpublished")
    except StoreError as error:
        return None, f"the evaluation is lost, because it could not be kept in a file either: {error}"
    return path, (
        f"the evaluation was kept in {path}: publish it later, with the same --database_address and "
        f"--database_name, by: agent database import {shlex.quote(str(path))}"
    )


def _say(line: str) -> None:
    echo(printable(line), err=True)


def _print(*rows: tuple[str, str]) -> None:
    for name, value in rows:
        echo(printable(f"{name:<12}{value}"), indent=12)


def _show(evaluation: Evaluation[BatchMeasurement], *, inputs: bool) -> None:
    """Prints the summary, and before it the predictions and failures of single inputs, if requested."""
    if inputs:
        print_predictions(evaluation)
        print_failures(evaluation)
    _print(*full_rows(evaluation))


def _start_line(what: JobStart) -> str:
    """What is measured in one line: the model, what it runs on, and its inputs or its load."""
    d = what.system
    framework = f"{d.manifest.framework.name} {d.framework_version}"
    threads = f", threads: {d.threads}" if d.threads and not d.device.is_gpu else ""
    weights = ", random weights" if d.weights.value == "random" else ""
    lower = d.precision is not None and d.precision.value != "float32"
    precision = f", {d.precision.value}" if d.precision and lower else ""
    where = f"({d.device}{threads}{weights}{precision}, {d.agent})"
    inputs = f"over {what.inputs}, {what.input_count} inputs"
    work = f": {what.work}" if what.work else ""
    return f"{d.manifest.name} {d.manifest.version} on {framework} {where} {inputs}{work}"


def _exit_code(evaluation: Evaluation[BatchMeasurement], *, published: bool) -> int:
    """The exit code, and one line on stderr where it is not zero."""
    if evaluation.status is Status.INTERRUPTED:
        measured = evaluation.measurement
        what = f"interrupted: {measured.predicted_inputs} inputs in {len(measured.times.sizes)} batches were"
        _say(
            f"{what} kept; reports leave the evaluation out unless they get --include_interrupted"
            if published
            else f"{what} measured; nothing was published"
        )
        return INTERRUPTED
    if failures := evaluation.measurement.failures:
        _say(f"failed inputs: {len(failures)}; the first: {failure_line(failures[0])}")
        return FAILED_INPUTS
    return SUCCESS


def _stability_code(evaluation: Evaluation, *, required: bool) -> int:
    """The exit code of the conditions, and one line on stderr where they had to be stable and were not."""
    conditions = evaluation.conditions
    if not required or (conditions is not None and conditions.stability is Stability.STABLE):
        return SUCCESS
    _say(f"--require_stable: the conditions were not stable: {conditions or 'not known'}")
    return NOT_STABLE
