"""The job, which turns a frozen request and its caller's resources into evaluations.

Requests are checked when they are made. Messages give the name of an option on the command line, without its
dashes: ``duration`` for ``duration_s``. Resources give access to systems and datasets; callbacks report
progress. Every front end runs a job in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.inference.given_models import GivenModel
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import TraceLevel, TraceScope
from inferometer.evaluators.datasets.opening import DatasetChoice as DatasetChoice
from inferometer.evaluators.evaluation import Evaluation, SystemUnderTest, TensorSystem
from inferometer.evaluators.evaluation import Progress as Progress
from inferometer.evaluators.jobs import options as defaults
from inferometer.evaluators.load.streams import GenerationSystem
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, NotFoundError
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.schema import ModelManifest

SYNTHETIC_INPUTS = 64
"""The minimum number of random tensors in a batch-by-batch evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRequest:
    """A model and where it runs.

    Attributes:
        model_name: The model.
        model_version: A version or a constraint; None means the highest version that has the weights.
        framework_name: The framework; None means the first installed one that has the model.
        agents: The addresses of the agents that run the model; empty for this process.
        session: The options for opening the model.
        open_timeout_s: How long an agent may take to open the model, including downloads.
        answer_timeout_s: How long an agent may take to answer one batch.
        shared_memory: Whether tensors are passed through shared memory to a server of the Open Inference
            Protocol.
        priority: The priority of requests at a server of the Open Inference Protocol; 0 for its default.
        given: The model as a file or an object in memory, instead of one from a manifest; it runs in this
            process.

    Raises:
        ConfigurationError: ``given`` and ``agents`` are both set.
    """

    model_name: str = defaults.MODEL
    model_version: str | None = None
    framework_name: str | None = None
    agents: tuple[str, ...] = ()
    session: SessionOptions = SessionOptions()  # noqa: RUF009 - frozen
    open_timeout_s: float = defaults.OPEN_TIMEOUT_S
    answer_timeout_s: float = defaults.ANSWER_TIMEOUT_S
    shared_memory: defaults.SharedMemoryUse = defaults.SharedMemoryUse.AUTO
    priority: int = 0
    given: GivenModel | None = None

    def __post_init__(self) -> None:
        if self.given is not None and self.agents:
            raise ConfigurationError(
                f"model {self.given.manifest.name} has no manifest and runs only in this process; an "
                "agent runs only the models in its manifests; create one with agent manifest init"
            )

    def check_batches(self, batch_size: int) -> None:
        """Raises ConfigurationError if a given model does not accept batches of this size."""
        fixed = self.given and self.given.fixed_batch
        if self.given and fixed and fixed != batch_size:
            raise ConfigurationError(
                f"model {self.given.manifest.name} takes batches of {fixed} only; found {batch_size}"
            )


def default_batch_size(system: SystemRequest, dataset: DatasetChoice, catalog: Catalog) -> int:
    """Returns the default batch size.

    It is a given model's fixed size, 1 for a model of images of any size, or else what the inputs can fill.
    """
    if system.given is not None and system.given.fixed_batch is not None:
        return system.given.fixed_batch
    if any(tensor.same_size for tensor in _tensors_of(system, catalog)):
        return 1
    samples = defaults.BATCH_SIZE if dataset.samples is None else dataset.samples
    return max(1, min(defaults.BATCH_SIZE, samples))


def _tensors_of(system: SystemRequest, catalog: Catalog) -> tuple[TensorSpec, ...]:
    """Returns the tensors of the model if a local manifest defines them; an agent may have its own."""
    if system.given is not None:
        return system.given.manifest.tensors
    try:
        named = catalog.find_models(system.model_name, system.model_version)
    except NotFoundError:  # it is reported when the model is opened
        return ()
    wanted = (system.framework_name or "").casefold()
    return next((m.tensors for m in named if wanted in {"", m.framework.name.casefold()}), ())


def inputs_for(
    system: SystemRequest,
    dataset: DatasetChoice,
    *,
    synthetic: bool,
    batch_size: int,
    seed: int,
    least: int = 0,
) -> DatasetChoice:
    """Returns the inputs of a batch-by-batch evaluation.

    They are random tensors if these are requested, or if a model without a manifest has no other inputs: at
    least ``least``, and enough that every batch is full.

    Raises:
        ConfigurationError: A dataset is named as well.
    """
    none_given = system.given is not None and not dataset.is_named and dataset.array is None
    if not (synthetic or none_given):
        return dataset
    count = -(-max(SYNTHETIC_INPUTS, least) // batch_size) * batch_size
    return replace(dataset, synthetic=count, seed=seed)


Notify = Callable[[str], None]
"""A callback that receives one line of text for the user."""


class JobResources(Protocol):
    """Opens the systems and datasets of requests; implemented by ``client.api.runner.Systems``."""

    @property
    def catalog(self) -> Catalog:
        """The catalog of manifests."""

    @property
    def cache(self) -> ArtifactCache | None:
        """The cache that downloads files from URLs; None if all files are on this machine."""

    @property
    def registry(self) -> Registry:
        """The registry of frameworks."""

    @property
    def architectures(self) -> Architectures:
        """The architectures that manifests of code-defined models can name."""

    @property
    def data_directory(self) -> Path:
        """The folder in which LoadGen's logs and unpublished evaluations are stored."""

    def stored(self, evaluation_id: str) -> Evaluation:
        """Returns the evaluation with an id, or a unique prefix of an id, from the database.

        Raises:
            UnknownEvaluationError: There is no such evaluation, or there are several.
            StoreError: The database cannot be read.
        """

    def open_system(
        self, request: SystemRequest, *, warm_up: bool, notify: Notify, trace: TraceScope | None
    ) -> SystemUnderTest:
        """Opens a model in this process, on an agent, or on several agents that share the batches.

        Args:
            request: The model, and where it runs.
            warm_up: Whether the first run only warms up.
            notify: Called for each agent that is left out, with the reason.
            trace: The parent of the spans for opening the model; None records none.

        Raises:
            InferometerError: The model cannot be opened.
        """

    def find_model(self, request: SystemRequest) -> ModelManifest:
        """Returns the manifest of the requested model as it is, without the labels of a ``features_url``.

        Raises:
            InferometerError: There is no such manifest, or no installed framework runs the model.
        """

    def check_system(self, request: SystemRequest) -> ModelManifest | None:
        """Checks everything that needs no model file, such as the device, before anything is downloaded.

        Returns:
            The manifest of a model that runs in this process, needed to open its dataset; None if the model
            runs elsewhere.

        Raises:
            InferometerError: The model cannot run here as requested.
        """

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> TensorSystem:
        """Opens a model in this process or on one agent, ready to be put under load.

        Raises:
            InferometerError: The model cannot be opened.
        """

    def open_generator(
        self, request: SystemRequest, max_batch_size: int, *, notify: Notify
    ) -> GenerationSystem:
        """Opens a model that generates text, in this process or on a server of OpenAI's protocol.

        Args:
            request: The model, and where it runs; an empty name is the only model that the server has.
            max_batch_size: The largest number of requests in a step in this process.
            notify: Called with the name of the model if it was not given.

        Raises:
            InferometerError: The model cannot be opened.
        """


@dataclass(frozen=True, slots=True)
class JobPart:
    """One evaluation of a job, which may have several.

    Attributes:
        number: The number of the evaluation, from 1.
        count: The number of evaluations in the job.
        trace_level: Its trace level; None under load and in a sweep.
        name: The name that distinguishes it from the other evaluations of a sweep; empty for other jobs.
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
        work: A one-line description of the load; empty for a batch-by-batch evaluation.
    """

    system: SystemDescription
    inputs: str
    input_count: int
    work: str = ""


@dataclass(frozen=True, slots=True)
class JobCallbacks:
    """Functions that a job calls from the thread that runs it.

    Attributes:
        on_part: Called before each evaluation.
        on_start: Called before the warm-up. An exception here ends the job.
        on_progress: Called after each batch, or four times a second under load.
        on_warning: Called with a one-line warning for the user that is not stored in the evaluation.
        stop_requested: Called after each batch, or four times a second under load. Once it returns True, the
            job ends with an interrupted evaluation of what has been measured.
        agreed: Whether ``stop_requested`` first returns True at the same call in all processes that work in
            step.
    """

    on_part: Callable[[JobPart], None] = lambda _: None
    on_start: Callable[[JobStart], None] = lambda _: None
    on_progress: Callable[[Progress], None] = lambda _: None
    on_warning: Notify = lambda _: None
    stop_requested: Callable[[], bool] = lambda: False
    agreed: bool = False


class Found(Protocol):
    """A job's result that is not itself an evaluation, such as a cell of a sweep."""

    @property
    def evaluation(self) -> Evaluation[Any] | None:
        """The evaluation; None if it failed."""


F_co = TypeVar("F_co", bound="Evaluation[Any] | Found", covariant=True)


@dataclass(frozen=True, slots=True)
class Job(Generic[F_co]):
    """Requested work that is ready to run.

    Attributes:
        run: Yields each evaluation as soon as it is complete. Closing the iterator ends the work early.
        title: The title of its progress display.
        opening: The activity shown before the first progress; empty if fresh processes report it themselves.
        stops: The message after a stop request, which says what work is still being finished.
        has_total: Whether its progress is a share of a known total, which a bar can show.
        starts_at_once: Whether it accepts a stop request before it reports what it measures.
    """

    run: Callable[[JobResources, JobCallbacks], Generator[F_co, None, None]]
    title: str
    opening: str = ""
    stops: str = "stopping after this batch"
    has_total: bool = True
    starts_at_once: bool = False
