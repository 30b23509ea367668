"""The jobs behind ``predict dataset`` and ``predict urls``: evaluations of a model over a dataset.

A sweep is several evaluations that run one after the other as a group. Its table has one row for each of
them, including those that failed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.hardware.environment import process_resource
from inferometer.agent.tracing.recorder import (
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
    traced,
)
from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.evaluation import Evaluation, M, Status, SystemUnderTest, TraceSummary
from inferometer.evaluators.jobs.job import DatasetChoice, Job, JobCallbacks, JobPart, JobResources, JobStart
from inferometer.evaluators.jobs.linked_process import in_turn
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.report import LatencyReport, score_values
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    SCORE_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    Column,
    Row,
    Value,
    describe_names,
)
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, InferometerError

if TYPE_CHECKING:
    from inferometer.agent.tracing.exporting import TraceExport


class EvaluationTrace:
    """The trace of one evaluation, down to a trace level; at NO_TRACE nothing is recorded.

    If an address is given, the spans are also sent there, and ``close`` reports to ``notify`` what was
    delivered. ``url`` is the URL at which users find traces; None derives it from the address.

    Raises:
        ConfigurationError: The address or the URL is invalid, or the exporter is not installed.
    """

    def __init__(
        self,
        level: TraceLevel,
        address: str | None,
        group_id: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
        url: str | None = None,
    ) -> None:
        self._recorder = SpanRecorder(TraceContext.new(), level) if level > TraceLevel.NO_TRACE else None
        self._group_id = group_id
        self._notify = notify
        self._export: TraceExport | None = None
        self._link: Callable[[str], str] | None = None
        if address is not None or url is not None:
            from inferometer.agent.tracing.exporting import TraceAddress, TraceExport, TraceLink

            parsed = None if address is None else TraceAddress.parse(address)
            if url is not None:
                self._link = TraceLink.parse(url).of
            elif parsed is not None:
                self._link = parsed.trace_url
            if parsed is not None and self._recorder is not None:
                self._export = TraceExport.open(parsed)

    @classmethod
    def of_load(cls, request: Any, notify: Callable[[str], None], group_id: str | None = None) -> Self:
        """Returns the trace of a load, whose ``request`` is a ``SampledTraces`` with ``TraceOptions``."""
        level = TraceLevel.MODEL_TRACE if request.traced_share else TraceLevel.NO_TRACE
        return cls(level, request.tracer_address, group_id, notify, request.trace_url)

    def root(self, model_name: str) -> AbstractContextManager[TraceScope | None]:
        """Records the root span of the evaluation; the context value is None if nothing is recorded."""
        kind = SpanKind.of(
            "evaluation", TraceLevel.APPLICATION_TRACE, model_name=model_name, group_id=self._group_id
        )
        return traced(None if self._recorder is None else TraceScope.top(self._recorder), kind)

    def kept(self, evaluation: Evaluation[M]) -> Evaluation[M]:
        """Returns the evaluation with its trace, and starts to send the spans. Call this after ``root``."""
        recorder = self._recorder
        if recorder is None:
            return evaluation
        own = process_resource()
        chunks = tuple(
            chunk if chunk.resource else replace(chunk, resource=own) for chunk in recorder.chunks()
        )
        trace_id = recorder.context.trace_id
        if self._export is not None:
            self._export.send(trace_id, chunks)
        summary = TraceSummary(
            trace_id=trace_id,
            span_count=len(recorder),
            dropped=recorder.dropped,
            notes=recorder.notes,
            url=self._link(trace_id) if self._link else None,
        )
        return replace(evaluation, trace=summary, spans=chunks, trace_level=recorder.level)

    def close(self) -> None:
        """Waits for pending spans while the collector accepts them, and reports what it did not accept."""
        export, self._export = self._export, None
        if export is not None:
            report = export.close()
            if report.undelivered or report.delivered:
                self._notify(str(report))


_log = logging.getLogger(__name__)


def evaluate(
    request: EvaluationRequest,
    resources: JobResources,
    callbacks: JobCallbacks | None = None,
    *,
    group_id: str | None = None,
) -> Generator[Evaluation[BatchMeasurement], None, None]:
    """Evaluates the model, and yields each evaluation as soon as it is complete.

    Everything that can be checked without the model is checked before the model is loaded. Several
    evaluations share a group id; a single one has ``group_id``. With ``repeat``, each evaluation runs in a
    fresh process. No evaluation follows an interrupted one. Close the iterator to end the job early.

    Raises:
        EvaluationFailed: An input failed, and the options stop on failures; or a fresh process was killed.
        EvaluationInterrupted: The job was stopped before a batch was measured, or between two evaluations.
        InferometerError: The dataset or the model cannot be opened, or a remote agent's connection was lost.
    """
    callbacks = callbacks or JobCallbacks()
    levels, fresh = request.trace_levels, request.repeat > 1
    if group_id is None and len(levels) > 1:
        group_id = str(uuid.uuid4())
    if fresh:
        _ = resources.catalog  # says here, once, which manifests are left out
    works = [(partial(_evaluate_part, request, level, group_id, resources), level) for level in levels]
    yield from in_turn(works, callbacks, fresh=fresh, group_id=group_id, numbered=fresh)


def evaluation_job(request: EvaluationRequest) -> Job[Evaluation[BatchMeasurement]]:
    """Returns the job of a request; see ``evaluate``."""
    name = request.system.model_name
    # a fresh process draws bars of its own
    return Job(partial(evaluate, request), name, opening="" if request.repeat > 1 else f"opening {name}")


def _evaluate_part(
    request: EvaluationRequest,
    level: TraceLevel,
    group_id: str | None,
    resources: JobResources,
    callbacks: JobCallbacks,
) -> Generator[Evaluation[BatchMeasurement], None, None]:
    """Yields the evaluation at one trace level, then waits until its trace has been sent to the collector."""
    trace = EvaluationTrace(level, request.tracer_address, group_id, callbacks.on_warning, request.trace_url)
    with closing(trace):
        with trace.root(request.system.model_name) as scope:
            evaluation = _evaluate_once(request, level, resources, callbacks, scope)
        yield trace.kept(evaluation)


def evaluate_open_system(
    system: SystemUnderTest,
    choice: DatasetChoice,
    options: BatchOptions,
    catalog: Catalog,
    cache: ArtifactCache | None,
    callbacks: JobCallbacks,
) -> Evaluation[BatchMeasurement]:
    """Evaluates, without a trace, a model that the caller has opened; see ``evaluate``."""
    with closing(choice.open_for(system.description.manifest, catalog, cache)) as dataset:
        return _run(system, dataset, options, callbacks)


def _evaluate_once(
    request: EvaluationRequest,
    level: TraceLevel,
    resources: JobResources,
    callbacks: JobCallbacks,
    scope: TraceScope | None,
) -> Evaluation[BatchMeasurement]:
    """Opens the dataset and the model, and runs the evaluation."""
    choice, catalog, cache = request.dataset, resources.catalog, resources.cache
    session = replace(request.system.session, feature_limit=request.options.feature_limit)
    wanted = replace(request.system, session=session)
    model = resources.check_system(wanted)
    with ExitStack() as opened:
        dataset = choice.open_for(model, catalog, cache) if model else choice.open_early(catalog, cache)
        if dataset is not None:
            opened.enter_context(closing(dataset))
        with traced(scope, SpanKind("open", TraceLevel.APPLICATION_TRACE)) as opening:
            warm_up = request.options.warmup_num_file_parts > 0
            system = resources.open_system(
                wanted, warm_up=warm_up, notify=callbacks.on_warning, trace=opening
            )
            opened.enter_context(closing(system))
        if dataset is None:
            dataset = choice.open_for(system.description.manifest, catalog, cache)
            opened.enter_context(closing(dataset))
        options = request.options_at(level)
        return _run(system, dataset, options, callbacks, request.keep_most, level, scope)


def _run(
    system: SystemUnderTest,
    dataset: Dataset,
    options: BatchOptions,
    callbacks: JobCallbacks,
    keep_most: int | None = 0,
    level: TraceLevel = TraceLevel.APPLICATION_TRACE,
    scope: TraceScope | None = None,
) -> Evaluation[BatchMeasurement]:
    description, identity = system.description, dataset.identity
    callbacks.on_start(JobStart(description, identity.name, len(dataset)))
    checksums = ", ".join(f"{key} {value}" for key, value in description.checksums.items())
    _log.info("manifest %s, with %s", description.manifest.source, checksums)
    _log.info("dataset of category %s, %s", identity.category, identity.checksum or "a folder")
    when = "beside" if description.overlap else "between predictions"
    _log.info("%d threads preprocess, %s", description.preprocess_threads, when)
    with Watch(system.description, None if system.in_process else system) as watch:
        evaluation = DatasetRun(
            system,
            dataset,
            options,
            keep_most=keep_most,
            callbacks=callbacks,
            trace_level=level,
            trace=scope,
            on_measure=watch.begin,
        ).run()
        return replace(evaluation, conditions=watch.end(evaluation.measurement.full_ns, options.batch_size))


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One evaluation of a sweep, or the reason why there is none.

    Attributes:
        request: The request of the evaluation.
        evaluation: The evaluation; None if it failed.
        error: The reason why it failed; None if it did not.
    """

    request: EvaluationRequest
    evaluation: Evaluation[BatchMeasurement] | None
    error: InferometerError | None = None

    @property
    def name(self) -> str:
        """A short name of the request; see ``name_of``."""
        return name_of(self.request)


def name_of(request: EvaluationRequest) -> str:
    """Returns a short name that distinguishes an evaluation from the others in a sweep."""
    system, session = request.system, request.system.session
    framework = f" on {system.framework_name}" if system.framework_name else ""
    threads = "" if session.threads is None else f", threads {session.threads}"
    precision = "" if session.precision is None else f", {session.precision.value}"
    device = f" ({session.device})" if session.device.is_gpu else ""
    size = f"batch size {request.options.batch_size}"
    return f"{system.model_name}{framework}{device}, {size}{threads}{precision}"


def sweep(
    requests: Sequence[EvaluationRequest], resources: JobResources, callbacks: JobCallbacks | None = None
) -> Generator[SweepCell, None, None]:
    """Evaluates each request in this process, and yields its cell as soon as it is complete.

    An evaluation that fails yields a cell with its error, and the sweep goes on. Several evaluations share a
    group id. No evaluation follows an interrupted one.

    Raises:
        ConfigurationError: There is no request, or a request itself asks for several evaluations.
        EvaluationInterrupted: The job was stopped before a batch was measured, or between two evaluations.
    """
    callbacks = callbacks or JobCallbacks()
    if not requests:
        raise ConfigurationError("a sweep needs at least one value for each option")
    if any(len(request.trace_levels) > 1 for request in requests):
        raise ConfigurationError(
            "repeat and leveled apply to one evaluation, but a sweep has several; leave them out, or "
            "evaluate one batch_size at a time"
        )
    count, group_id = len(requests), str(uuid.uuid4()) if len(requests) > 1 else None
    for number, request in enumerate(requests, start=1):
        callbacks.on_part(JobPart(number, count, name=name_of(request)))
        try:
            quiet = replace(callbacks, on_part=lambda _: None)  # each evaluation is a part of the sweep
            with closing(evaluate(request, resources, quiet, group_id=group_id)) as evaluations:
                evaluation = next(evaluations)
        except EvaluationInterrupted:
            raise
        except InferometerError as error:
            yield SweepCell(request, None, error)
            continue
        stopped = callbacks.stop_requested()  # in the last batch, which leaves nothing to interrupt
        yield SweepCell(request, evaluation)
        if evaluation.status is Status.INTERRUPTED:
            return
        if stopped and number < count:
            raise EvaluationInterrupted(f"stopped after {number} of {count} evaluations")


def sweep_job(requests: Sequence[EvaluationRequest]) -> Job[SweepCell]:
    """Returns the job of several requests; see ``sweep``."""
    name = requests[0].system.model_name if requests else ""
    return Job(partial(sweep, requests), name, opening=f"opening {name}")


_SHOWN = ("model_name", "framework_name", "framework_version", "weights", "threads", "precision")
COLUMNS = (
    *(column for column in EVALUATION_COLUMNS if column.key in _SHOWN),
    Column("device", "device", detail=True),
    Column("batch_size", "batch size"),
    Column("latency_ms_p50", "p50 (ms)"),
    Column("latency_ms_p50_low", "low"),
    Column("latency_ms_p50_high", "high"),
    Column("throughput_inputs_per_s", "inputs/s", decimals=1),
    STABILITY_COLUMN,
    Column("top1_accuracy", "top-1", decimals=4, detail=True),
    Column("measured_batches", "batches", detail=True),
    STATUS_COLUMN,
    Column("id", "id", is_id=True),
    Column("failure", "failure"),
    *SCORE_COLUMNS,
)
"""The columns of a sweep: p50 is that of full batches, with its 95 % interval; ``failure`` is the reason."""
_KEYS = {column.key for column in COLUMNS}


def rows_of(cells: Sequence[SweepCell]) -> Iterator[Row]:
    """Yields one row with the columns in ``COLUMNS`` for each cell."""
    nothing: Row = dict.fromkeys(column.key for column in COLUMNS)
    for cell in cells:
        yield {**nothing, **(_asked(cell) if cell.evaluation is None else _measured(cell.evaluation))}


def _asked(cell: SweepCell) -> dict[str, Value]:
    system, session = cell.request.system, cell.request.system.session
    return {
        "model_name": system.model_name,
        "framework_name": system.framework_name,
        "weights": session.weights.value,
        "threads": session.threads,
        "precision": session.precision.value if session.precision else None,
        "device": str(session.device),
        "batch_size": cell.request.options.batch_size,
        "failure": str(cell.error),
    }


def _measured(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    accuracy = evaluation.measurement.accuracy
    [latency] = LatencyReport().rows([evaluation])
    return {
        **{key: value for key, value in latency.items() if key in _KEYS},
        "device": str(evaluation.system.device),
        "stability": describe_names(evaluation)["stability"],
        "top1_accuracy": accuracy.top1_share if accuracy else None,
        **score_values(evaluation.measurement.task_result),
    }
