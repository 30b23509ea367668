"""Runs a job for any front end: progress, Ctrl-C, and the file and store that keep its evaluations."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.progress import display_of
from inferometer.client.api.running_now import RunningFile
from inferometer.client.api.stopping import StopRequest
from inferometer.client.api.systems import Systems
from inferometer.evaluators.evaluation import Evaluation, M, Status
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.running.job import Found, Job
from inferometer.evaluators.running.resources import JobCallbacks, JobPart, JobStart
from inferometer.evaluators.store.json_text import write_spool
from inferometer.manifests.errors import StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

F = TypeVar("F", bound="Evaluation[Any] | Found")
_log = logging.getLogger(__name__)


class Door:
    """The callbacks with which a front end displays a job. The base class shows nothing and logs messages."""

    def part(self, part: JobPart) -> None:
        """Receives which evaluation of several begins."""

    def start(self, what: JobStart) -> None:
        """Receives a description of what is measured, once the system is open."""

    def say(self, line: str) -> None:
        """Receives one line of text for the user."""
        _log.warning("%s", line)

    def show(self, evaluation: Evaluation) -> None:
        """Receives an evaluation after it is written to a file and before it is published."""

    def published(self, evaluation: Evaluation, location: str) -> None:
        """Receives an evaluation after it is published."""


class Runner:
    """Runs jobs, and reports each running job to other processes on this machine.

    Args:
        invocation: The configuration.
        door: Displays the job.
        publish: Whether to store evaluations in the database.
        predictions: Whether to store their predictions too.
    """

    def __init__(
        self, invocation: Invocation, door: Door, *, publish: bool = True, predictions: bool = False
    ) -> None:
        self.stop = StopRequest()
        self._invocation = invocation
        self._door = door
        self._publish = publish
        self._predictions = predictions
        self._running = RunningFile(invocation.data_directory if publish else None)
        self._store: EvaluationStore | None = None
        self._close_display: Callable[[], None] = lambda: None

    def run(self, job: Job[F]) -> Generator[F, None, None]:
        """Runs a job, and yields each result as soon as it is stored.

        The first Ctrl-C requests a stop. An interrupted evaluation is yielded even if its kind does not store
        interrupted evaluations. Close the iterator to end the job early.

        Raises:
            StoreError: The database cannot be reached, or an evaluation was not published; the message names
                the file that holds it.
            KeyboardInterrupt: On a second Ctrl-C, or on one while an evaluation is being published; the
                evaluation then remains in a file.
            InferometerError: The job failed.
        """
        with ExitStack() as stack:
            if self._publish:
                self._store = stack.enter_context(closing(self._invocation.open_store()))
                _log.info("the evaluation will be published to %s", self._store.location)
            display = display_of(job)
            self._close_display = display.close
            for close in (display.close, self._running.close, self._invocation.waiting.close):
                stack.callback(close)
            if threading.current_thread() is threading.main_thread():  # Python handles signals only there
                stack.enter_context(self.stop)

            def begin(part: JobPart) -> None:
                display.begin_part(part)
                self._door.part(part)
                if job.opening:
                    self._invocation.waiting.begin(job.opening)

            def start(what: JobStart) -> None:
                self._invocation.waiting.close()
                self.stop.begin(job.stops)
                display.begin()
                self._running.begin(what)
                self._door.start(what)
                if self._predictions and what.system.manifest.output.type == "raw":
                    self.say("--publish_predictions keeps nothing: the model's output has no classes")

            def progress(how_far: Any) -> None:
                display(how_far)
                self._running(how_far)

            if job.starts_at_once:
                self.stop.begin(job.stops)
            callbacks = JobCallbacks(begin, start, progress, self.say, self.stop)
            with closing(job.run(Systems(self._invocation), callbacks)) as found:
                for each in found:
                    evaluation = each if isinstance(each, Evaluation) else each.evaluation
                    if evaluation is not None:
                        self._keep(evaluation)
                    yield each

    def say(self, line: str) -> None:
        """Passes a line to the door, with progress displays hidden."""
        self._close_display()
        with self._invocation.waiting.hidden():
            self._door.say(line)

    def _keep(self, evaluation: Evaluation) -> None:
        """Writes an evaluation to a file, shows it, publishes it, and then removes the file.

        Ctrl-C loses no data: it takes effect after the file is written. If the file cannot be written, the
        evaluation is published even if a stop was requested.
        """
        kind = kind_of(evaluation)
        self._close_display()
        self._running.close()
        dropped = evaluation.status is Status.INTERRUPTED and not kind.keeps_interrupted
        if self._store is None or dropped:
            self.stop.end()
            self._door.show(evaluation)
            return
        kept = evaluation
        if not self._predictions:
            kept = replace(kept, measurement=kind.with_predictions(kept.measurement, ()))
        self.stop.begin("stopping once the evaluation is in a file")
        path, told = self._spooled(kept)
        try:
            self._door.show(evaluation)
        finally:  # publish even if stdout is closed
            try:
                if self.stop.end() and path is not None:
                    raise KeyboardInterrupt
                self._store.save(kept)
            except StoreError as error:
                raise StoreError(f"{error}; {told}") from error
            except KeyboardInterrupt:
                self._door.say(f"not published: {told}")
                raise
        if path is not None:
            with suppress(OSError):  # publishing it again later changes nothing
                path.unlink()
                path.parent.rmdir()  # succeeds only if no other evaluation waits there
        self._door.published(evaluation, self._store.location)

    def _spooled(self, evaluation: Evaluation) -> tuple[Path | None, str]:
        """Writes an evaluation to a file; returns its path, and a text that says where the evaluation is."""
        try:
            path = write_spool(evaluation, self._invocation.data_directory / "unpublished")
        except StoreError as error:
            lost = "the evaluation is lost, because it could not be kept in a file either"
            return None, f"{lost}: {error}"
        return path, (
            f"the evaluation was kept in {path}: publish it later, with the same --database_address and "
            f"--database_name, by: agent database import {shlex.quote(str(path))}"
        )


def measured(
    invocation: Invocation, job: Job[Evaluation[M]], *, publish: bool, door: Door | None = None
) -> Evaluation[M]:
    """Runs a job of one evaluation, showing only its progress, and returns the evaluation.

    Raises:
        InferometerError: See ``Runner.run``.
    """
    with closing(Runner(invocation, door or Door(), publish=publish).run(job)) as found:
        [evaluation] = found
    return evaluation
