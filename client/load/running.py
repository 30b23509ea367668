"""``predict workload`` and ``predict max-qps`` from their options to the published evaluation."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click
import numpy as np

from agent.device import DeviceKind
from agent.fetching import fetch_image
from agent.session import Session
from agent.trace_level import TraceLevel
from client.agents.choosing import choose_one_agent
from client.dataset_selection import dataset_of_model
from client.exit_codes import INTERRUPTED, SUCCESS
from client.invocation import Invocation
from client.load.live_line import LiveLine
from client.load.mlperf import MlperfWork
from client.load.request import LoadRequest
from client.load.summary import print_interrupted, print_load_summary
from client.load.work import Work, ceiling_for_mean, within_ceiling, work_of
from client.publishing import publish
from client.stopping import StopRequest
from client.system_opening import agent_address, open_system
from evaluators.datasets.base import Dataset, DatasetIdentity
from evaluators.datasets.opening import open_dataset, open_path
from evaluators.evaluation import BatchTimes, Evaluation, EvaluationOptions, Status
from evaluators.loadgen.closed_loop import ClosedLoop
from evaluators.loadgen.load_session import LoadSession
from evaluators.loadgen.local_target import LocalTarget
from evaluators.loadgen.max_qps import search_max_qps
from evaluators.loadgen.max_qps_options import MaxQpsOptions
from evaluators.loadgen.prepared_inputs import (
    LoadInputs,
    prepare_inputs,
    read_inputs,
    synthetic_payloads,
    synthetic_tensors,
)
from evaluators.loadgen.record import LoadKind, LoadRecord, RateAnswer
from evaluators.loadgen.run_watch import Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.target import LoadTarget
from evaluators.reports.output_file import OutputFile
from evaluators.store.base import EvaluationStore
from evaluators.system import SystemUnderTest
from manifests.errors import ConfigurationError, EvaluationInterrupted

if TYPE_CHECKING:
    from client.remote.agent import RemoteAgent

_Closed = TypeVar("_Closed", bound=SystemUnderTest | LoadTarget)
_NS_PER_S = 1_000_000_000


def put_load(invocation: Invocation, request: LoadRequest) -> int:
    """Runs the workload or the search, publishes it and prints its summary.

    Returns:
        The exit code.

    Raises:
        InferscopeError: Whatever keeps it from running, or from being published.
    """
    request.check()
    ceiling = ceiling_for_mean(request)
    work = work_of(request)
    request = replace(request, agent_address=choose_one_agent(invocation, request))
    if agent_address(invocation, request) and (request.max_batch_size > 1 or request.max_queue_delay_ms):
        raise ConfigurationError(
            "--max_batch_size and --max_queue_delay_ms are for a model in this process; leave them out"
        )
    work = within_ceiling(work, request.force, ceiling)
    group_id = str(uuid.uuid4()) if request.repeat > 1 else None
    with ExitStack() as resources:
        store = None
        if request.publish:
            store = invocation.open_store(request.database_address, request.database_name)
            resources.callback(store.close)
        if file := _schedule_file(request):
            file.refuse_existing()
        for number in range(1, request.repeat + 1):
            if group_id:
                click.echo(f"{number} of {request.repeat}:", err=True)
            if code := _put_once(invocation, request, work, store, group_id):
                return code
            request = replace(request, write_schedule=None)
    if group_id and store:
        click.echo(f"group       {group_id}")
    return SUCCESS


def _put_once(
    invocation: Invocation,
    request: LoadRequest,
    work: Work,
    store: EvaluationStore | None,
    group_id: str | None,
) -> int:
    """Opens the model, puts the load on it and publishes what it gave; see ``put_load``."""
    with ExitStack() as resources:
        stop = resources.enter_context(StopRequest("stopping, without waiting for the answers"))
        system = resources.enter_context(_closed(open_system(invocation, request)))
        inputs, identity = _inputs(invocation, request, system)
        target = resources.enter_context(_closed(_target(system, inputs, request)))
        created_at, evaluation_id = datetime.now(timezone.utc), str(uuid.uuid4())
        live = LiveLine(search=request.kind is LoadKind.MAX_QPS)
        session = LoadSession(target, request.timeout_ms, stop_requested=stop, on_progress=live)
        stop.begin_batches()
        if isinstance(work, Schedule) and (file := _schedule_file(request)):
            file.create(work.text())
        _announce(system, inputs, work, request)
        try:
            session.warm_up(request.warm_up_queries)
            if isinstance(work, MlperfWork):
                logs = invocation.data_directory / "mlperf" / evaluation_id
                record, whole = work.run(target, len(inputs), logs, stop, live)
            else:
                record, whole = _measured(session, request, work)
        finally:
            live.clear()
        if not whole:
            print_interrupted(record)
            return INTERRUPTED
        evaluation = Evaluation(
            id=evaluation_id,
            created_at=created_at.replace(microsecond=created_at.microsecond // 1000 * 1000),
            status=Status.COMPLETE,
            system=system.description,
            dataset=identity,
            options=EvaluationOptions(
                request.max_batch_size,
                request.max_batch_size,
                warmup_num_file_parts=0,
                trace_level=TraceLevel.NO_TRACE,
            ),
            batches=BatchTimes(*[np.empty(0, np.int64)] * 5),
            elapsed_ns=int(session.elapsed_s * 1e9),
            accuracy=None,
            failures=(),
            load=record,
            group_id=group_id,
        )
        show = partial(print_load_summary, evaluation)
        if store:
            publish(evaluation, store, invocation.data_directory, show)
        else:
            show()
        return SUCCESS


def _schedule_file(request: LoadRequest) -> OutputFile | None:
    """The file that the schedule is to be written to; None for none."""
    if request.write_schedule is None:
        return None
    return OutputFile(request.write_schedule, appendable=False, replaceable=False)


@contextmanager
def _closed(resource: _Closed) -> Iterator[_Closed]:
    """Closes a system or a target at the end; once a stop at once is asked for, only what does not wait.

    A session waits for a prediction under way, which may hang. It is left to the end of the process then.
    """
    at_once = False
    try:
        yield resource
    except KeyboardInterrupt:
        at_once = True
        raise
    finally:
        if not (at_once and isinstance(resource, Session | LocalTarget)):
            resource.close()


def _measured(
    session: LoadSession, request: LoadRequest, work: Schedule | ClosedLoop | MaxQpsOptions
) -> tuple[LoadRecord, bool]:
    """What was measured, and whether it came to its end.

    Raises:
        EvaluationInterrupted: It was stopped before there was anything to tell of.
    """
    if isinstance(work, MaxQpsOptions):
        answer = None
        with suppress(EvaluationInterrupted):
            found = search_max_qps(work, session)
            answer = RateAnswer(
                found.rate_qps, found.low_qps, found.high_qps, found.method.value, found.reason
            )
        if answer is None and not any(len(run.queries) for run in session.runs):
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        return LoadRecord(request.load_options(None), tuple(session.runs), answer), answer is not None
    options = request.load_options(work)
    if isinstance(work, ClosedLoop):
        issued = session.run_closed(work, options.latency_bound_ns)
    else:
        issued = session.run(work, options.latency_bound_ns)
    whole = issued.stop is not Stop.INTERRUPTED
    if not whole and not len(session.runs[0].queries):
        raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
    return LoadRecord(options, tuple(session.runs)), whole


def _inputs(
    invocation: Invocation, request: LoadRequest, system: SystemUnderTest
) -> tuple[LoadInputs, DatasetIdentity]:
    """The inputs of the queries, ready before the clock starts."""
    manifest = system.description.manifest
    parameters = manifest.inputs[0].parameters
    if request.synthetic:
        make = synthetic_payloads if request.include_preprocess else synthetic_tensors
        inputs: LoadInputs = make(parameters, request.seed)
        return inputs, DatasetIdentity("synthetic", inputs.source, None, None, len(inputs))
    with closing(_dataset(invocation, request, system)) as dataset:
        fetch = partial(fetch_image, allow_private=True)
        if request.include_preprocess:
            inputs = read_inputs(dataset, fetch=fetch)
        else:
            inputs = prepare_inputs(dataset, parameters, fetch=fetch)
        return inputs, dataset.identity


def _dataset(invocation: Invocation, request: LoadRequest, system: SystemUnderTest) -> Dataset:
    if request.dataset_path:
        return open_path(request.dataset_path, "vision")
    if request.dataset_name:
        return open_dataset(invocation.catalog.find_dataset(request.dataset_name), invocation.cache)
    return dataset_of_model(invocation.catalog, system.description.manifest, None, invocation.cache)


def _target(
    system: Session | RemoteAgent, inputs: LoadInputs, request: LoadRequest
) -> LocalTarget | LoadTarget:
    if system.description.device.kind is DeviceKind.REMOTE:  # gRPC, which others do not need
        from client.remote.kserve.load_target import KServeTarget
        from client.remote.kserve.session import KServeSession

        if isinstance(system, KServeSession):
            return KServeTarget(system, inputs)
    if isinstance(system, Session):
        return LocalTarget(
            system,
            inputs,
            max_batch_size=request.max_batch_size,
            max_queue_delay_ms=request.max_queue_delay_ms,
        )
    from client.remote.load_target import RemoteTarget  # gRPC, which a model in this process does not need

    return RemoteTarget(system, inputs)


def _announce(system: SystemUnderTest, inputs: LoadInputs, work: Work, request: LoadRequest) -> None:
    """Says what is about to run."""
    d = system.description
    if isinstance(work, Schedule):
        seconds = work.duration_ns / _NS_PER_S
        load = f"{len(work)} queries at {work.rate_qps:g} queries/s ({work.source}), {seconds:.1f} s"
    elif isinstance(work, ClosedLoop):
        load = f"{work}, {work.extent.min_duration_s:g} s"
    elif isinstance(work, MlperfWork):
        load = str(work)
    else:
        load = f"searching for at most {work.time_budget_s:g} s from {work.initial_qps:g} queries/s"
    click.echo(
        f"{d.manifest.name} {d.manifest.version} on {d.manifest.framework.name} {d.framework_version} "
        f"({d.device}, {d.agent}), {inputs.source}: {load}",
        err=True,
    )
    cores = d.environment.usable_cores
    given = request.threads is not None or d.threads is None or d.device.kind is not DeviceKind.CPU
    if isinstance(system, Session) and not given and cores > (d.threads or 0):
        click.echo(
            f"threads of an operator: {d.threads}; a core of {cores} is left to what sends the queries, "
            "unless --threads says otherwise",
            err=True,
        )
    if inputs.failures:
        click.echo(f"left out {len(inputs.failures)} inputs that cannot be read", err=True)
