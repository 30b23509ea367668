"""The interface between a job and its caller: access to systems and datasets, and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from inferometer.agent.artifacts.cache import ArtifactCache
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.agent.tracing.span import TraceLevel
from inferometer.agent.training.companion import CompanionsOf
from inferometer.agent.training.trainer import Trainer, TrainerOptions
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.evaluators.system import SystemUnderTest, TensorSystem
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

Notify = Callable[[str], None]
"""Receives one line of text for the user."""


class JobResources(Protocol):
    """Opens what a request names. ``client.api.systems.Systems`` implements it."""

    @property
    def catalog(self) -> Catalog:
        """The catalog of manifests."""
        ...

    @property
    def cache(self) -> ArtifactCache | None:
        """The cache that downloads files from URLs; None if all files are on this machine."""
        ...

    @property
    def registry(self) -> Registry:
        """The registry of frameworks."""
        ...

    @property
    def data_directory(self) -> Path:
        """The folder in which LoadGen's logs and unpublished evaluations are kept."""
        ...

    def open_system(
        self, request: SystemRequest, *, warm_up: bool, notify: Notify, trace: TraceScope | None
    ) -> SystemUnderTest:
        """Opens a model in this process, on an agent, or on several agents that share the batches.

        Args:
            request: The model, and where it runs.
            warm_up: Whether the first run only warms up.
            notify: Called for each agent that is left out, and why.
            trace: The parent of the spans of opening; None records none.

        Raises:
            InferometerError: The model cannot be opened.
        """
        ...

    def find_model(self, request: SystemRequest) -> ModelManifest:
        """Returns the manifest of the model that a request names, with the labels that are on this machine.

        Raises:
            InferometerError: There is none, or no installed framework runs it.
        """
        ...

    def check_system(self, request: SystemRequest) -> ModelManifest | None:
        """Checks everything that needs no model file, such as the device, before anything is downloaded.

        Returns:
            The manifest of a model in this process, by which its dataset can be opened; None if the model
            is elsewhere.

        Raises:
            InferometerError: The model cannot run here as the request asks for.
        """
        ...

    def check_trainer(self, manifest: ModelManifest, options: TrainerOptions) -> None:
        """Checks what a training needs beside the data and the model's files, such as its devices.

        Raises:
            InferometerError: The model cannot be trained here.
        """
        ...

    def describe(
        self, request: SystemRequest, *, preprocess_threads: int, overlap: bool
    ) -> SystemDescription:
        """Describes the model that a request names, and this machine; loads nothing.

        Args:
            request: The model.
            preprocess_threads: How many workers read and preprocess its inputs.
            overlap: Whether they do so ahead.

        Raises:
            InferometerError: There is no such model, or it is not supported.
        """
        ...

    def open_trainer(
        self, manifest: ModelManifest, options: TrainerOptions
    ) -> tuple[Trainer, SystemDescription]:
        """Opens a model in this process, to train it; the caller closes the trainer.

        Raises:
            InferometerError: The model cannot be trained here.
        """
        ...

    def companions(self, request: SystemRequest, communication: str) -> CompanionsOf | None:
        """Returns the factory of the companion processes that ranks of a model need; None if they need none.

        Raises:
            InferometerError: There is no such model, or its framework has no such communication.
        """
        ...

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> TensorSystem:
        """Opens a model in this process or on one agent, to be put under load.

        Raises:
            InferometerError: The model cannot be opened.
        """
        ...


@dataclass(frozen=True, slots=True)
class JobPart:
    """One evaluation of a job, which may have several.

    Attributes:
        number: Counted from 1.
        count: The evaluations of the job.
        trace_level: Its trace level; None under load and in a sweep.
        name: The name that distinguishes it from the others of a sweep; empty for other jobs.
    """

    number: int
    count: int
    trace_level: TraceLevel | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class JobStart:
    """The start of a measurement: the system is open and the inputs are ready.

    Attributes:
        system: The model and what it runs on.
        inputs: The dataset's name, or another source of inputs.
        input_count: The number of inputs.
        work: The load in one line; empty for an evaluation batch by batch.
    """

    system: SystemDescription
    inputs: str
    input_count: int
    work: str = ""


_Progress = TypeVar("_Progress")


@dataclass(frozen=True, slots=True)
class JobCallbacks(Generic[_Progress]):
    """Functions that a job calls from the thread that runs it.

    Attributes:
        on_part: Called before each evaluation.
        on_start: Called before the warm-up. What raises here ends the job.
        on_progress: Called after each batch, or four times a second under load.
        on_warning: Called with one line that the user should know and that the evaluation does not keep.
        stop_requested: Called after each batch, or four times a second. Once it returns True, the job ends
            with an evaluation of what was measured, whose status is interrupted.
        agreed: Whether the same call of ``stop_requested`` returns True first in all processes that work in
            step.
    """

    on_part: Callable[[JobPart], None] = lambda _: None
    on_start: Callable[[JobStart], None] = lambda _: None
    on_progress: Callable[[_Progress], None] = lambda _: None
    on_warning: Notify = lambda _: None
    stop_requested: Callable[[], bool] = lambda: False
    agreed: bool = False
