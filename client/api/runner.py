"""Runs a job for any front end: opens its systems, shows progress, stops on Ctrl-C, and saves evaluations.

Systems under test are opened in this process, on agents, or on a KServe server. SIGINT and SIGTERM
request a stop. Evaluations are written to a file, and then to the database.
"""

from __future__ import annotations

import logging
import shlex
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from typing_extensions import Self

from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, check_model, open_session, select_model
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.progress import RunningFile, display_of
from inferometer.client.remote.address import is_kserve, is_openai
from inferometer.evaluators.evaluation import Evaluation, M, Progress, Status, SystemUnderTest, TensorSystem
from inferometer.evaluators.jobs.job import Found, Job, JobCallbacks, JobPart, JobStart, Notify, SystemRequest
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.store.evaluation_store import write_spool
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, StoreError
from inferometer.manifests.schema import ModelManifest

if TYPE_CHECKING:
    from inferometer.client.remote.connection import RemoteOptions
    from inferometer.client.remote.native.agent import RemoteAgent
    from inferometer.client.remote.openai.server import OpenAISystem
    from inferometer.evaluators.load.local_streams import LocalGeneration
    from inferometer.evaluators.store.evaluation_store import EvaluationStore


class StopRequest:
    """A context manager that raises KeyboardInterrupt on SIGINT and SIGTERM.

    Between ``begin`` and ``end``, the first signal requests a stop instead.
    """

    def __init__(self) -> None:
        self._stops: str | None = None
        self._requested = False
        self._before: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        """Returns whether a stop was requested."""
        return self._requested

    def begin(self, stops: str) -> None:
        """Clears an earlier request, and marks the start of work that may finish after the next request.

        ``stops`` is printed on stderr when a stop is requested, such as "stopping after this batch".
        """
        self._requested = False
        self._stops = stops

    def end(self) -> bool:
        """Returns whether a stop was requested; after this call, a signal interrupts at once."""
        requested, self._requested, self._stops = self._requested, False, None
        return requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # it came from signal.signal itself

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._requested or self._stops is None:
            raise KeyboardInterrupt
        self._requested = True
        click.echo(f"{self._stops} (again to stop at once)", err=True)


class Systems:
    """Opens the systems that requests name: the ``JobResources``. Loads gRPC only for remote systems."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation

    @property
    def catalog(self) -> Catalog:
        """Returns the catalogue of manifests."""
        return self._invocation.catalog

    @property
    def cache(self) -> ArtifactCache:
        """Returns the cache that downloads files from URLs."""
        return self._invocation.cache

    @property
    def registry(self) -> Registry:
        """Returns the registry of frameworks."""
        return self._invocation.registry

    @property
    def architectures(self) -> Architectures:
        """Returns the architectures that manifests of code-defined models can name."""
        return self._invocation.architectures

    @property
    def data_directory(self) -> Path:
        """Returns the folder of the program's data."""
        return self._invocation.data_directory

    def stored(self, evaluation_id: str) -> Evaluation:
        """Reads an evaluation from the database; see ``JobResources``."""
        from inferometer.client.api.results import find_one

        with closing(self._invocation.open_store()) as store:
            return find_one(store, evaluation_id)

    def open_system(
        self, request: SystemRequest, *, warm_up: bool, notify: Notify, trace: TraceScope | None
    ) -> SystemUnderTest:
        """Opens a model; see ``JobResources``."""
        if len(request.agents) < 2 or is_kserve(request.agents[0]):
            return self._open_one(request, notify, trace)
        from inferometer.client.remote.pool import open_agent_pool

        return open_agent_pool(
            request.agents,
            lambda address: self._open_remote(request, address, trace),
            warm_up=warm_up,
            say=notify,
        )

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> TensorSystem:
        """Opens a model for a load test; see ``JobResources``."""
        return self._open_one(request, notify, None)

    def open_generator(
        self, request: SystemRequest, max_batch_size: int, *, notify: Notify
    ) -> OpenAISystem | LocalGeneration:
        """Opens a model that generates text; see ``JobResources``."""
        if not request.agents:
            from inferometer.agent.generation.opening import open_engine
            from inferometer.evaluators.load.local_streams import LocalGeneration

            manifest, options = self._find_model(request), request.session.predictor
            opened = open_engine(manifest, self.registry, self.cache, options, max_batch_size=max_batch_size)
            return LocalGeneration(*opened)
        from inferometer.client.remote.openai.server import open_openai

        [address], model = request.agents, request.model_name or None
        return open_openai(address, model, self._remote_options(request), notify)

    def find_model(self, request: SystemRequest) -> ModelManifest:
        """Returns the manifest of the model that a request names; see ``JobResources``."""
        found = self._find_model(request)
        found.require_predictions()  # before a dataset is asked for
        return found

    def _find_model(self, request: SystemRequest) -> ModelManifest:
        invocation = self._invocation
        return select_model(
            invocation.catalog,
            invocation.registry,
            request.model_name,
            request.model_version,
            request.framework_name or invocation.configuration.framework,
            request.session.weights,
        )

    def check_system(self, request: SystemRequest) -> ModelManifest | None:
        """Checks the framework and the device of a model that runs in this process; see ``JobResources``."""
        if request.agents:
            return None
        given, session = request.given, request.session
        manifest = self.find_model(request) if given is None else given.manifest
        if session.device.is_gpu or session.precision is not None:  # otherwise it can wait for its import
            in_memory = given is not None and given.in_memory is not None
            check_model(manifest, session, self._invocation.registry, in_memory=in_memory)
        return manifest

    def _open_one(self, request: SystemRequest, notify: Notify, trace: TraceScope | None) -> TensorSystem:
        if not request.agents:
            return self._open_here(request, trace)
        if is_kserve(request.agents[0]):
            return self._open_kserve(request, notify)
        if is_openai(request.agents[0]):
            raise ConfigurationError(
                f"{request.agents[0]}: a server of OpenAI's protocol generates text; "
                "measure it by agent measure generation"
            )
        return self._open_remote(request, request.agents[0], trace)

    def _open_here(self, request: SystemRequest, trace: TraceScope | None) -> Session:
        invocation, given = self._invocation, request.given
        manifest = self.find_model(request) if given is None else given.manifest
        return open_session(
            manifest,
            request.session,
            invocation.registry,
            architectures=invocation.architectures,
            cache=invocation.cache,
            # The user names the URLs, so private and local addresses are allowed.
            fetch=partial(fetch_image, allow_private=True),
            trace=trace,
            given=given,
        )

    def _open_remote(self, request: SystemRequest, address: str, trace: TraceScope | None) -> RemoteAgent:
        from inferometer.client.remote.native.agent import open_remote_agent

        invocation = self._invocation
        return open_remote_agent(
            address,
            request.model_name,
            request.model_version,
            request.framework_name or invocation.configuration.framework,
            request.session,
            self._remote_options(request),
            trace=trace,
        )

    def _open_kserve(self, request: SystemRequest, notify: Notify) -> TensorSystem:
        from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve

        invocation = self._invocation
        return open_kserve(
            request.agents[0],
            invocation.catalog,
            # The configured framework applies only to models in this process.
            ModelChoice(request.model_name, request.model_version, request.framework_name),
            request.session,
            self._remote_options(request),
            cache=invocation.cache,
            fetch=partial(fetch_image, allow_private=True),
            say=notify,
        )

    def _remote_options(self, request: SystemRequest) -> RemoteOptions:
        from inferometer.client.remote.connection import RemoteOptions

        secret, tls = self._invocation.secret, self._invocation.agent_tls
        return RemoteOptions(
            *(secret, tls, request.open_timeout_s, request.answer_timeout_s, request.shared_memory),
            request.priority,
        )


F = TypeVar("F", bound="Evaluation[Any] | Found")
_log = logging.getLogger(__name__)


class Door:
    """The callbacks with which a front end displays a job. The base class shows nothing and logs messages."""

    def part(self, part: JobPart) -> None:
        """Receives the evaluation that begins, if a job has several."""

    def start(self, what: JobStart) -> None:
        """Receives a description of the measurement once the system is open."""

    def say(self, line: str) -> None:
        """Receives one line of text for the user."""
        _log.warning("%s", line)

    def show(self, evaluation: Evaluation) -> None:
        """Receives an evaluation after it has been written to a file and before it is published."""

    def published(self, evaluation: Evaluation, location: str) -> None:
        """Receives an evaluation after it has been published."""


class Runner:
    """Runs jobs, and reports each running job to other processes on this machine."""

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
                    self.say("--publish_predictions stores nothing: the model's output has no classes")

            def progress(how_far: Progress) -> None:
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
        """Passes a line to the front end while progress displays are hidden."""
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
        """Writes an evaluation to a file; returns its path, if written, and a text that says where it is."""
        try:
            path = write_spool(evaluation, self._invocation.data_directory / "unpublished")
        except StoreError as error:
            lost = "the evaluation is lost, because it could not be kept in a file either"
            return None, f"{lost}: {error}"
        return path, (
            f"the evaluation was kept in {path}: publish it later, with the same --database_address and "
            f"--database_name, by: agent database import {shlex.quote(str(path))}"
        )


def measured(invocation: Invocation, job: Job[Evaluation[M]], *, publish: bool) -> Evaluation[M]:
    """Runs a job that has one evaluation, showing only its progress, and returns the evaluation."""
    with closing(Runner(invocation, Door(), publish=publish).run(job)) as found:
        [evaluation] = found
    return evaluation


def measured_group(
    invocation: Invocation, job: Job[Evaluation[M]], *, publish: bool
) -> Sequence[Evaluation[M]]:
    """Runs a job that has one or more evaluations, showing only its progress, and returns the evaluations.

    Ctrl-C between two evaluations ends the job, and the earlier evaluations are returned.
    """
    evaluations: list[Evaluation[M]] = []
    try:
        with closing(Runner(invocation, Door(), publish=publish).run(job)) as found:
            evaluations.extend(found)
    except EvaluationInterrupted:
        if not evaluations:
            raise
    return evaluations
