"""Requests: frozen descriptions of what a job does, checked when they are made.

Messages name an option as the command line does, without its dashes: ``duration`` is ``duration_s`` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from inferometer.agent.inference.given_models import GivenModel
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.tracing.span import TraceLevel
from inferometer.evaluators.datasets.choice import DatasetChoice as DatasetChoice
from inferometer.evaluators.jobs import defaults, ranges
from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.evaluators.kinds.load.measurement import LoadOptions, Scenario
from inferometer.evaluators.load.arrivals import ArrivalProcess, Extent, arrival_process
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, NotFoundError
from inferometer.manifests.inputs import TensorSpec

SYNTHETIC_INPUTS = 64
"""The least number of random tensors of an evaluation batch by batch."""
_DISTURBING = (TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE)
"""Levels of which each takes times that those below it would change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRequest:
    """A model and where it runs.

    Attributes:
        model_name: The model.
        model_version: A version or a constraint; None means the highest that has the weights.
        framework_name: The framework; None means the first installed one that has the model.
        agents: The addresses of the agents that run the model; empty for this process.
        session: What the model is opened with.
        open_timeout_s: How long an agent may take to open the model, with its downloads.
        answer_timeout_s: How long an agent may take to answer one batch.
        shared_memory: Whether tensors travel through shared memory, to a server of the Open Inference
            Protocol.
        given: A file or an object in memory that is the model, instead of one of a manifest; it runs in this
            process.

    Raises:
        ConfigurationError: A given model is to run on an agent.
    """

    model_name: str = defaults.MODEL
    model_version: str | None = None
    framework_name: str | None = None
    agents: tuple[str, ...] = ()
    session: SessionOptions = SessionOptions()  # noqa: RUF009 - frozen
    open_timeout_s: float = defaults.OPEN_TIMEOUT_S
    answer_timeout_s: float = defaults.ANSWER_TIMEOUT_S
    shared_memory: defaults.SharedMemoryUse = defaults.SharedMemoryUse.AUTO
    given: GivenModel | None = None

    def __post_init__(self) -> None:
        if self.given is not None and self.agents:
            raise ConfigurationError(
                f"model {self.given.manifest.name} has no manifest and runs in this process; an agent runs "
                "the models of its manifests, which agent manifest init writes"
            )

    def check_batches(self, batch_size: int) -> None:
        """Raises ConfigurationError if a given model takes no batches of this size."""
        fixed = self.given and self.given.fixed_batch
        if self.given and fixed and fixed != batch_size:
            raise ConfigurationError(
                f"model {self.given.manifest.name} takes batches of {fixed} only; found {batch_size}"
            )


def default_batch_size(system: SystemRequest, dataset: DatasetChoice, catalog: Catalog) -> int:
    """Returns the batch size where none is given.

    That is the only one of a given model, 1 for a model of images of any size, or what inputs can fill.
    """
    if system.given is not None and system.given.fixed_batch is not None:
        return system.given.fixed_batch
    if any(tensor.same_size for tensor in _tensors_of(system, catalog)):
        return 1
    samples = defaults.BATCH_SIZE if dataset.samples is None else dataset.samples
    return max(1, min(defaults.BATCH_SIZE, samples))


def _tensors_of(system: SystemRequest, catalog: Catalog) -> tuple[TensorSpec, ...]:
    """The tensors of the model, as far as a manifest here tells them; an agent may have one of its own."""
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
    """Returns the inputs of an evaluation batch by batch.

    They are random tensors if those are asked for, or if a model without a manifest has no other inputs:
    ``least`` or more, of which every batch is full.

    Raises:
        ConfigurationError: A dataset is named too.
    """
    none_given = system.given is not None and not dataset.is_named and dataset.array is None
    if not (synthetic or none_given):
        return dataset
    count = -(-max(SYNTHETIC_INPUTS, least) // batch_size) * batch_size
    return replace(dataset, synthetic=count, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """A model over a dataset, batch by batch.

    Attributes:
        system: The model.
        dataset: The dataset.
        options: How much of it, in which batches; also how many classes are kept of each prediction.
        trace_level: How deep to look.
        leveled: Whether to evaluate also at each shallower level that a deeper one would disturb.
        repeat: How often to repeat all of it, each time in a fresh process; once is in this one.
        measure_enough: Whether to go through the whole dataset again, until p50 is known to
            ``TARGET_CI_PERCENT``, where the options say neither how much nor how long. URLs, which are of
            others' servers, and traces deeper than APPLICATION_TRACE, which would grow, are gone through
            once.
        keep_predictions: Whether the evaluation holds each input's prediction.
        keep_most: How many predictions it holds then at most, the first ones; None means all.
        tracer_address: Where spans are sent; None sends none.
        trace_url: Where a person finds the trace: the URL of a Jaeger, or one with ``{trace_id}``; None is as
            the address implies.

    Raises:
        ConfigurationError: Only one level is left of a leveled evaluation, or nothing is repeated that a time
            budget could end; the model takes no such batches; or it is in memory, which is of no use to fresh
            processes.
    """

    system: SystemRequest = SystemRequest()
    dataset: DatasetChoice = DatasetChoice()  # noqa: RUF009 - frozen
    options: BatchOptions = BatchOptions(defaults.BATCH_SIZE, defaults.BATCH_SIZE)  # noqa: RUF009 - frozen
    trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE
    leveled: bool = False
    repeat: int = 1
    measure_enough: bool = True
    keep_predictions: bool = False
    keep_most: int | None = None
    tracer_address: str | None = None
    trace_url: str | None = None

    def __post_init__(self) -> None:
        self.system.check_batches(self.options.batch_size)
        if self.repeat > 1 and self.system.given is not None and self.system.given.in_memory is not None:
            raise ConfigurationError(
                "repeat starts fresh processes, and a model in memory is in this one only; save it to a file"
            )
        if self.leveled and self.trace_level < TraceLevel.FRAMEWORK_TRACE:
            raise ConfigurationError(
                f"leveled down to {self.trace_level.name} is one level only; "
                "name FRAMEWORK_TRACE or a deeper trace_level, or leave it out"
            )
        options = self.options
        if options.time_budget_s is not None and not self.options_at(self.trace_level).repeats:
            raise ConfigurationError(
                "time_budget limits how long the dataset is repeated, and here it is gone through once; "
                "give target_ci, min_batches or min_duration too"
            )

    def options_at(self, level: TraceLevel) -> BatchOptions:
        """The options of the evaluation at a trace level: how long it measures by default depends on it."""
        options = self.options
        chosen = not self.measure_enough or options.repeats or options.num_file_parts > 0
        if chosen or self.dataset.urls_path is not None or level > TraceLevel.APPLICATION_TRACE:
            return options
        return replace(options, target_ci_percent=defaults.TARGET_CI_PERCENT)

    @property
    def trace_levels(self) -> Sequence[TraceLevel]:
        """The trace level of each evaluation in order, the shallowest first in each repetition."""
        deepest = self.trace_level
        shallower = (level for level in _DISTURBING if level < deepest) if self.leveled else ()
        return (*shallower, deepest) * self.repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A model under load: what a workload and a search have in common.

    The attributes that are not listed are those of ``LoadOptions``; batches are for a model in this process.

    Attributes:
        system: The model. In this process, it leaves ``SPARE_CORES`` to the thread that sends the queries.
        dataset: The inputs.
        synthetic: Whether the inputs are random tensors instead.
        include_preprocess: Whether inputs are preprocessed under load, and not before.
        initial_qps: Queries per second: the rate, or the first one of a search; None means the default.
        arrival: The arrival process, such as ``gamma:cv=2``; None means the default.
        min_duration_s: The minimum duration; None means the default.
        min_queries: The minimum number of queries; None means the default.
        repeat: How often to repeat all of it, opening the model anew.
        force: Whether to send even more than this machine can send on time.
        tracer_address: Where the spans of the queries that are traced are sent; None sends none.
        trace_url: Where a person finds the trace; as in ``EvaluationRequest``.
        trace_sample: The share of the queries that are traced; None means the default with a
            ``tracer_address``, and else none.

    Raises:
        ConfigurationError: Two options exclude each other, or a number is out of its range.
    """

    default_min_duration_s: ClassVar[float]
    default_min_queries: ClassVar[int]

    system: SystemRequest = SystemRequest()
    dataset: DatasetChoice = DatasetChoice()  # noqa: RUF009 - frozen
    synthetic: bool = False
    include_preprocess: bool = False
    max_batch_size: int = 1
    max_queue_delay_ms: float = 0.0
    initial_qps: float | None = None
    arrival: str | None = None
    percentile: float = defaults.PERCENTILE
    latency_bound_ms: float | None = None
    min_duration_s: float | None = None
    min_queries: int | None = None
    timeout_ms: float = defaults.QUERY_TIMEOUT_MS
    warm_up_queries: int = defaults.WARM_UP_QUERIES
    seed: int = 0
    repeat: int = 1
    force: bool = False
    tracer_address: str | None = None
    trace_url: str | None = None
    trace_sample: float | None = None

    def __post_init__(self) -> None:
        ranges.check(self, ranges.LOAD)
        if self.synthetic and (self.dataset.path or self.dataset.name):
            raise ConfigurationError("synthetic needs no dataset; leave out dataset_name and dataset_path")
        self.system.check_batches(self.max_batch_size)
        if len(self.system.agents) > 1:
            raise ConfigurationError(
                f"{len(self.system.agents)} agents are named, but a load is for one; name one, or any"
            )
        if self.system.agents and (self.max_batch_size > 1 or self.max_queue_delay_ms):
            raise ConfigurationError(
                "max_batch_size and max_queue_delay_ms are for a model in this process; leave them out"
            )

    @property
    def traced_share(self) -> float:
        """The share of the queries that are traced."""
        if self.trace_sample is None:
            return defaults.TRACE_SAMPLE if self.tracer_address else 0.0
        return self.trace_sample

    @property
    def process(self) -> ArrivalProcess:
        """How queries arrive.

        Raises:
            ConfigurationError: There is no such process.
        """
        return arrival_process(self.arrival or defaults.ARRIVAL)

    @property
    def rate_qps(self) -> float:
        """The rate, or the first one of a search."""
        return self.initial_qps or defaults.INITIAL_QPS

    @property
    def least_duration_s(self) -> float:
        """How long queries are sent at the least."""
        return self.default_min_duration_s if self.min_duration_s is None else self.min_duration_s

    def load_options(self) -> LoadOptions:
        """What an evaluation keeps of the request."""
        return LoadOptions(
            arrival=str(self.process),
            rate_qps=self.rate_qps,
            percentile=self.percentile,
            latency_bound_ms=self.latency_bound_ms,
            timeout_ms=self.timeout_ms,
            min_duration_s=self.least_duration_s,
            min_queries=self.min_queries or self.default_min_queries,
            seed=self.seed,
            max_batch_size=self.max_batch_size,
            max_queue_delay_ms=self.max_queue_delay_ms,
            include_preprocess=self.include_preprocess,
            warm_up_queries=self.warm_up_queries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest(LoadRequest):
    """Queries as they arrive in production; by default, the arrival process draws them.

    Attributes:
        duration_s: The exact duration; None for a minimum duration and number of queries.
        schedule: A file with the offset of each query.
        write_schedule: A new file that the schedule is written to.
        concurrency: The number of queries to keep in flight instead of a schedule.
        scenario: A scenario of MLPerf that LoadGen sends instead.
    """

    default_min_duration_s: ClassVar[float] = defaults.WORKLOAD_MIN_DURATION_S
    default_min_queries: ClassVar[int] = defaults.WORKLOAD_MIN_QUERIES

    duration_s: float | None = None
    schedule: Path | None = None
    write_schedule: Path | None = None
    concurrency: int | None = None
    scenario: Scenario | None = None

    def __post_init__(self) -> None:
        LoadRequest.__post_init__(self)
        least, drawn = ("min_duration_s", "min_queries"), ("initial_qps", "arrival", "write_schedule")
        not_of_mlperf = ("arrival", "schedule", "write_schedule", "concurrency", "duration_s")
        self._refuse("duration_s", "sets the whole duration", *least)
        self._refuse("scenario", "leaves it to MLPerf's LoadGen when queries are sent", *not_of_mlperf)
        self._refuse("scenario", "has LoadGen send the queries", "tracer_address", "trace_sample")
        self._refuse("concurrency", "sends a query when a response arrives", "schedule", *drawn)
        self._refuse("schedule", "sets when each query is due", *drawn, "duration_s", *least)

    def _refuse(self, name: str, reason: str, *excluded: str) -> None:
        """Refuses the options that another one excludes, if that is given."""
        if getattr(self, name) is None:
            return
        if given := [other.removesuffix("_s") for other in excluded if getattr(self, other) is not None]:
            raise ConfigurationError(f"{name.removesuffix('_s')} {reason}; leave out {' and '.join(given)}")

    def load_options(self) -> LoadOptions:
        """What an evaluation keeps of the request; see ``LoadRequest``."""
        kept = LoadRequest.load_options(self)
        return replace(kept, max_duration_s=self.duration_s, concurrency=self.concurrency)

    @property
    def extent(self) -> Extent:
        """How long queries are sent, and how many.

        Raises:
            ConfigurationError: A number is out of range.
        """
        if self.duration_s is not None:
            return Extent(self.duration_s, 1, self.duration_s)
        return Extent(self.least_duration_s, self.min_queries or self.default_min_queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxQpsRequest(LoadRequest):
    """A search for the highest rate at which a latency percentile stays within the bound.

    Attributes:
        tolerance: Target for half the width of the answer's interval by this search alone, as a share of the
            rate.
        time_budget_s: The time limit of the search.
    """

    default_min_duration_s: ClassVar[float] = defaults.PROBE_MIN_DURATION_S
    default_min_queries: ClassVar[int] = defaults.PROBE_MIN_QUERIES

    latency_bound_ms: float | None = defaults.LATENCY_BOUND_MS
    tolerance: float = defaults.TOLERANCE
    time_budget_s: float = defaults.TIME_BUDGET_S

    def load_options(self) -> LoadOptions:
        """What an evaluation keeps of the request; see ``LoadRequest``."""
        kept = LoadRequest.load_options(self)
        return replace(kept, tolerance=self.tolerance, time_budget_s=self.time_budget_s)
