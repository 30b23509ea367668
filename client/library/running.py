"""The running of a job for the library: its progress, Ctrl-C, and the store that its evaluations go to."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Self

from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.stopping import StopRequest
from inferometer.client.evaluating.console import spooled
from inferometer.client.evaluating.running_now import RunningFile
from inferometer.client.library.progress import Display
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.resources import JobCallbacks, JobStart
from inferometer.evaluators.measurements.measurement import Measurement
from inferometer.manifests.errors import StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

M = TypeVar("M", bound=Measurement)
_log = logging.getLogger(__name__)


class Running:
    """Shows the progress of a job while it is entered, on the page too; the first Ctrl-C requests a stop.

    Args:
        invocation: The configuration.
        display: Shows the progress.
        publish: Whether evaluations are kept in the database.
        stops: Printed when a stop is requested.

    Raises:
        StoreError: On entering: the database cannot be reached.
    """

    def __init__(self, invocation: Invocation, display: Display, *, publish: bool, stops: str) -> None:
        self._invocation = invocation
        self._display = display
        self._publish = publish
        self._stops = stops
        self._stack = ExitStack()
        self._store: EvaluationStore | None = None
        self._told = RunningFile(invocation.data_directory if publish else None)
        self.stop = StopRequest()

    def __enter__(self) -> Self:
        if self._publish:
            self._store = self._stack.enter_context(closing(self._invocation.open_store()))
        for each in (self._display.close, self._told.close, self._invocation.waiting.close):
            self._stack.callback(each)
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            self._stack.enter_context(self.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def callbacks(self) -> JobCallbacks[Any]:
        """Returns the callbacks of the job."""
        return JobCallbacks(
            on_part=lambda _: self._invocation.waiting.begin("opening the model"),
            on_start=self._start,
            on_progress=self._progress,
            on_warning=_log.warning,
            stop_requested=self.stop,
        )

    def publish(self, evaluation: Evaluation[M]) -> Evaluation[M]:
        """Keeps an evaluation in the database, if that is wanted, and returns it.

        Raises:
            StoreError: It was not published; the message names the file that keeps it.
        """
        if self._store is not None:
            try:
                self._store.save(evaluation)
            except StoreError as error:  # what was measured is not lost
                raise StoreError(f"{error}; {spooled(self._invocation, evaluation)[1]}") from error
        return evaluation

    def _start(self, what: JobStart) -> None:
        self._invocation.waiting.close()
        self.stop.begin(self._stops)
        self._display.begin()
        self._told.begin(what)

    def _progress(self, progress: Any) -> None:
        self._display(progress)
        self._told(progress)
