"""What every job prints on the command line, and how its evaluations are kept and published."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Self

from inferometer.client.cli.exit_codes import NOT_STABLE, SUCCESS
from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import echo, name_width
from inferometer.client.cli.stopping import StopRequest
from inferometer.client.evaluating.progress import LiveLine, ProgressBar
from inferometer.client.evaluating.running_now import RunningFile
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation, measures
from inferometer.evaluators.jobs.resources import JobPart, JobStart
from inferometer.evaluators.load.issuer import IssuerProgress
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.store.json_text import write_spool
from inferometer.manifests.errors import StoreError, printable

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

_Progress = TypeVar("_Progress", Progress, IssuerProgress)
_log = logging.getLogger(__name__)


class Console:
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
            say(f"{part.number} of {part.count}{', ' if what else ''}{what}:")
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
            say(line)

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
                say(f"not published: {kept}")
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


def say(line: str) -> None:
    """Prints a line that the user should know on stderr."""
    echo(printable(line), err=True)


def print_rows(*rows: tuple[str, str]) -> None:
    """Prints rows of a name and a text; a row without a name belongs to the one above."""
    width = name_width(rows)
    for name, value in rows:
        echo(printable(f"{name:<{width}}{value}"), indent=width)


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


def stability_code(evaluation: Evaluation, *, required: bool) -> int:
    """The exit code of the conditions, and one line on stderr where they had to be stable and were not."""
    conditions = evaluation.conditions
    if not required or (conditions is not None and conditions.stability is Stability.STABLE):
        return SUCCESS
    say(f"--require_stable: the conditions were not stable: {conditions or 'not known'}")
    return NOT_STABLE
