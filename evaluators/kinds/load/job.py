"""The job behind ``predict workload`` and ``predict max-qps``: a model is put under load, once or more."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.hardware.environment import DeviceKind, Precision
from inferometer.agent.inference.session import open_preprocessor
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, SystemUnderTest, TensorSystem, utc_now
from inferometer.evaluators.jobs.job import (
    Job,
    JobCallbacks,
    JobPart,
    JobResources,
    JobStart,
    Notify,
    SystemRequest,
)
from inferometer.evaluators.jobs.options import SERVER_STATISTICS_HZ, SPARE_CORES
from inferometer.evaluators.kinds.batches.job import EvaluationTrace
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateSearchMeasurement, lag_reason
from inferometer.evaluators.kinds.load.mlperf import MlperfWork
from inferometer.evaluators.kinds.load.request import BATCHING, LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.load.search import search_max_qps
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import (
    ALLOWED_SHARE,
    ClosedLoop,
    LoadSession,
    LoadTrace,
    calibrate,
    check_load,
    peak_qps,
    reader_of,
)
from inferometer.evaluators.load.local_target import make_load_target
from inferometer.evaluators.load.queries import Outcome, Stop, bound_ns_of
from inferometer.evaluators.load.target import (
    LoadInputs,
    LoadTarget,
    prepare_inputs,
    read_inputs,
    synthetic_payloads,
    synthetic_tensors,
)
from inferometer.evaluators.load.validity import lag_in_percentiles
from inferometer.evaluators.reports.writer import OutputFile
from inferometer.manifests.errors import ArtifactError, ConfigurationError, EvaluationInterrupted
from inferometer.manifests.schema import ModelManifest

MakeTarget: TypeAlias = Callable[[TensorSystem, LoadInputs, Callable[..., TensorSystem]], LoadTarget]
"""Makes a target of a system; the last argument opens it with other threads or in another precision."""


class LoadJob:
    """A planned workload or search, ready to run.

    Args:
        request: The load and the system.
        write: The new file that a subclass writes to; a workload has the one of its schedule.
        make_target: Makes the target; by default, the one that the request describes.

    Raises:
        ConfigurationError: The load is invalid, or higher than this machine can send on time.
        OutputError: The file that is written to exists.
    """

    def __init__(
        self,
        request: WorkloadRequest | MaxQpsRequest,
        write: Path | None = None,
        make_target: MakeTarget | None = None,
    ) -> None:
        self._request = request
        self._make_target = make_target
        self._work: Work = plan_work(request)
        self._file: OutputFile | None = None
        if path := request.write_schedule if isinstance(request, WorkloadRequest) else write:
            self._file = OutputFile(path, appendable=False, replaceable=False)
            self._file.refuse_existing()

    def run(
        self, resources: JobResources, callbacks: JobCallbacks | None = None
    ) -> Generator[Evaluation, None, None]:
        """Puts the load on the system, and yields each evaluation as soon as it is complete.

        Several evaluations share one group id. No evaluation follows an interrupted one.

        Raises:
            EvaluationInterrupted: The job was stopped before a query was measured.
            InferometerError: The inputs or the model cannot be opened.
        """
        callbacks = callbacks or JobCallbacks()
        request, count = self._request, self._request.repeat
        group_id = str(uuid.uuid4()) if count > 1 else None
        for number in range(1, count + 1):
            callbacks.on_part(JobPart(number, count))
            with (
                closing(EvaluationTrace.of_load(request, callbacks.on_warning, group_id)) as trace,
                open_target(request, resources, callbacks, self._make_target) as opened,
            ):
                with trace.root(request.system.model_name) as scope:
                    evaluation = self._run_once(*opened, resources, callbacks, scope)
                # The model is still open: closing it may wait for a prediction that hangs.
                yield replace(trace.kept(evaluation), group_id=group_id)
            if evaluation.status is Status.INTERRUPTED:
                return

    def _run_once(
        self,
        target: LoadTarget,
        inputs: LoadInputs,
        dataset: DatasetIdentity,
        watch: Watch,
        resources: JobResources,
        callbacks: JobCallbacks,
        scope: TraceScope | None,
    ) -> Evaluation:
        request = self._request
        created_at, evaluation_id = utc_now(), str(uuid.uuid4())
        limits = RunLimits(
            request.timeout_ms, stop_requested=callbacks.stop_requested, on_progress=callbacks.on_progress
        )
        trace = LoadTrace(scope, request.traced_share, request.seed) if scope else None
        rate_hz = request.server_statistics_hz
        rate_hz = SERVER_STATISTICS_HZ if rate_hz is None else rate_hz
        reader = reader_of(target, request.metrics_url or "", rate_hz)
        session = LoadSession(target, limits, trace, reader)
        if self._file is not None and isinstance(self._work, Schedule):  # the model is open
            self._file.create(self._work.text())
            self._file = None
        callbacks.on_start(JobStart(target.description, inputs.source, len(inputs), self._described()))
        session.warm_up(request.warm_up_queries)
        watch.begin()
        measurement: LoadMeasurement | RateSearchMeasurement
        if isinstance(self._work, MlperfWork):
            logs = resources.data_directory / "mlperf" / evaluation_id
            measurement, whole = self._work.run(target, len(inputs), logs, limits)
        else:
            measurement, whole = self._measured(session, self._work)
            if not whole and not any(len(run.queries) for run in session.runs):
                raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        for note in reader.notes.values():
            callbacks.on_warning(f"statistics of the server are missing: {note}")
        runs = [measurement.run] if isinstance(measurement, LoadMeasurement) else measurement.probes
        answered = any(run.queries.count(Outcome.ANSWERED) for run in runs)
        return Evaluation(
            id=evaluation_id,
            created_at=created_at,
            status=Status.of(whole=whole, usable=answered),
            system=target.description,
            dataset=dataset,
            measurement=replace(measurement, elapsed_ns=int(session.elapsed_s * 1e9)),
            conditions=watch.end(),
        )

    def _described(self) -> str:
        return described(self._work)

    def _measured(
        self, session: LoadSession, work: Schedule | ClosedLoop | MaxQpsRequest
    ) -> tuple[LoadMeasurement | RateSearchMeasurement, bool]:
        """Returns the measurement, whose duration is not yet set, and whether the run completed."""
        options = self._request.load_options()
        measurement: LoadMeasurement | RateSearchMeasurement
        if isinstance(work, MaxQpsRequest):
            answer = None
            with suppress(EvaluationInterrupted):
                answer = search_max_qps(work, session)
            whole = answer is not None
            bound_ns, share = bound_ns_of(work.latency_bound_ms), work.late_fraction
            judged = (replace(r, invalid=lag_reason(r, bound_ns, share)) for r in session.runs)
            measurement = RateSearchMeasurement(options, tuple(judged), 0, answer)
        else:
            if isinstance(work, ClosedLoop):
                options = replace(options, arrival=str(work), rate_qps=0.0)
                run = session.run_closed(work)
            else:
                options = replace(options, arrival=work.source, rate_qps=work.rate_qps)
                run = session.run(work, options.latency_bound_ns)
            whole = run.stop is not Stop.INTERRUPTED
            lag = lag_in_percentiles(run.queries, run.cut_ns, options.percentile, options.latency_bound_ns)
            measurement = LoadMeasurement(options, replace(run, invalid=lag), 0)
        return measurement, whole


def _reopened(
    resources: JobResources,
    request: SystemRequest,
    threads: int | None = None,
    precision: Precision | None = None,
) -> TensorSystem:
    precision = precision or request.session.precision
    session = replace(request.session, threads=threads, precision=precision)
    return resources.open_loadable(replace(request, session=session), notify=lambda _: None)


@contextmanager
def open_target(
    request: WorkloadRequest | MaxQpsRequest,
    resources: JobResources,
    callbacks: JobCallbacks,
    make_target: MakeTarget | None = None,
) -> Iterator[tuple[LoadTarget, LoadInputs, DatasetIdentity, Watch]]:
    """Opens the model, prepares its inputs before the clock starts, and starts monitoring its hosts."""
    with ExitStack() as opened:
        session, instances = replace(request.system.session, spare_cores=SPARE_CORES), request.instances
        session = session.divided_by(instances)
        if request.pin:
            session = session.pinned(instances)
        wanted = replace(request.system, session=session)
        model, dataset = resources.check_system(wanted), None
        if not request.synthetic:
            choice, found_in = request.dataset, (resources.catalog, resources.cache)
            dataset = choice.open_for(model, *found_in) if model else choice.open_early(*found_in)
        if dataset is not None:
            opened.callback(dataset.close)
        system = resources.open_loadable(wanted, notify=callbacks.on_warning)
        opened.enter_context(_closed(system))
        inputs, identity = _inputs(request, resources, system, dataset)
        if make_target is None:
            batching = {name: getattr(request, name) for name in BATCHING}
            target = make_load_target(system, inputs, **batching)
        else:
            target = make_target(system, inputs, partial(_reopened, resources, wanted))
        opened.enter_context(_closed(target))
        _warn(target, inputs, request, callbacks.on_warning)
        watch = Watch(system.description, None if system.in_process else system)
        yield target, inputs, identity, opened.enter_context(watch)


def _inputs(
    request: WorkloadRequest | MaxQpsRequest,
    resources: JobResources,
    system: SystemUnderTest,
    dataset: Dataset | None,
) -> tuple[LoadInputs, DatasetIdentity]:
    """Returns the queries' inputs, ready before the clock starts, and closes the dataset."""
    manifest = system.description.manifest
    parameters = [each.parameters for each in manifest.inputs]
    if request.synthetic:
        make = synthetic_payloads if request.include_preprocess else synthetic_tensors
        inputs: LoadInputs = make(parameters, request.seed, size=request.dataset.sequence_length)
        return inputs, DatasetIdentity.synthetic(inputs.source, len(inputs))
    if dataset is None:
        dataset = request.dataset.open_for(manifest, resources.catalog, resources.cache)
    with closing(dataset):
        fetch = partial(fetch_image, allow_private=True)
        if request.include_preprocess:
            inputs = read_inputs(dataset, fetch=fetch)
        else:
            inputs = prepare_inputs(dataset, _preprocessor(manifest, resources), fetch=fetch)
        return inputs, dataset.identity


@contextmanager
def _closed(resource: SystemUnderTest | LoadTarget) -> Iterator[None]:
    """Closes a system or a target at the end, unless an immediate stop was requested and closing would wait.

    A system in this process waits for a prediction in progress, which may hang; it ends with the process.
    """
    at_once = False
    try:
        yield
    except KeyboardInterrupt:
        at_once = True
        raise
    finally:
        if not (at_once and resource.in_process):
            resource.close()


def _warn(target: LoadTarget, inputs: LoadInputs, request: LoadRequest, notify: Notify) -> None:
    d, threads = target.description, request.system.session.threads
    cores = d.environment.usable_cores
    given = threads is not None or d.threads is None or d.device.kind is not DeviceKind.CPU
    if target.in_process and not given and cores > (d.threads or 0) * request.instances:
        each = f" in each of {request.instances} instances" if request.instances > 1 else ""
        notify(
            f"threads per operator: {d.threads}{each}; one of {cores} cores is left for sending the queries, "
            "unless threads sets a number"
        )
    if inputs.failures:
        notify(f"left out {len(inputs.failures)} inputs that cannot be read")


Work: TypeAlias = Schedule | ClosedLoop | MlperfWork | MaxQpsRequest


def _preprocessor(manifest: ModelManifest, resources: JobResources) -> ModelPreprocessor:
    """Returns the preprocessor that prepares inputs; raises ConfigurationError if only an agent has it."""
    try:
        return open_preprocessor(manifest, resources.cache)[0]
    except ArtifactError as error:
        if manifest.source is not None:
            raise
        raise ConfigurationError(
            f"model {manifest.name} takes texts, but its tokenizer is only on the agent; "
            "include_preprocess sends the texts, which the agent then tokenizes under load"
        ) from error


def load_job(request: WorkloadRequest | MaxQpsRequest, load: LoadJob | None = None) -> Job[Evaluation[Any]]:
    """Returns the job of a workload or a search, or of another ``load``; see ``LoadJob``."""
    name = request.system.model_name
    stops = "stopping, without waiting for the answers"
    return Job((load or LoadJob(request)).run, name, f"opening {name}", stops, has_total=False)


def plan_work(request: WorkloadRequest | MaxQpsRequest) -> Work:
    """Returns the load of a request; unless ``force`` is set, it is one that this machine can send.

    If it matters, the rate that this machine can send is measured, which takes about a second.

    Raises:
        ConfigurationError: The load is invalid, or higher than this machine can send on time.
    """
    if isinstance(request, MaxQpsRequest):
        if request.force:
            return request
        ceiling_qps = calibrate()
        check_load(request.rate_qps, ceiling_qps)
        return replace(request, max_rate_qps=ceiling_qps * ALLOWED_SHARE)
    if request.scenario is not None:
        return MlperfWork.of(request, request.scenario)
    if request.concurrency is not None:
        return ClosedLoop(request.concurrency, request.extent)
    ceiling_qps = 0.0
    if request.schedule is not None:
        schedule = Schedule.read(request.schedule)
    else:
        process, extent = request.process, request.extent
        if not request.force:  # refused before the memory of its queries is taken
            ceiling_qps = check_load(process.mean_qps(request.rate_qps, extent.min_duration_s))
        schedule = Schedule.drawn(process, request.rate_qps, extent, request.seed)
    if not request.force:
        check_load(peak_qps(schedule), ceiling_qps)
    return schedule


def described(work: Work) -> str:
    """Returns a one-line description of the load."""
    if isinstance(work, Schedule):
        seconds = work.duration_ns / 1e9
        return f"{len(work)} queries at {work.rate_qps:g} queries/s ({work.source}), {seconds:.1f} s"
    if isinstance(work, ClosedLoop):
        return f"{work}, {work.extent.min_duration_s:g} s"
    if isinstance(work, MlperfWork):
        return str(work)
    return f"searching for at most {work.time_budget_s:g} s from {work.rate_qps:g} queries/s"
