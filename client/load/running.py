"""``predict workload`` and ``predict max-qps`` from their options to the published evaluation."""

from __future__ import annotations

import sys
import uuid
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

import click
import numpy as np

from agent.fetching import fetch_image
from agent.session import Session
from agent.trace_level import TraceLevel
from client.dataset_selection import dataset_of_model
from client.exit_codes import INTERRUPTED, SUCCESS
from client.invocation import Invocation
from client.load.defaults import LATENCY_BOUND_MS, TIME_BUDGET_S, TOLERANCE
from client.load.request import LoadRequest
from client.load.summary import print_load_summary
from client.publishing import publish
from client.stopping import StopRequest
from client.system_opening import agent_address, open_system
from evaluators.datasets.base import Dataset, DatasetIdentity
from evaluators.datasets.opening import open_dataset, open_path
from evaluators.evaluation import BatchTimes, Evaluation, EvaluationOptions, Status
from evaluators.loadgen.load_session import LoadSession
from evaluators.loadgen.local_target import LocalTarget
from evaluators.loadgen.max_qps import MaxQpsOptions, search_max_qps
from evaluators.loadgen.prepared_inputs import (
    LoadInputs,
    prepare_inputs,
    read_inputs,
    synthetic_payloads,
    synthetic_tensors,
)
from evaluators.loadgen.record import LoadKind, LoadRecord, RateAnswer
from evaluators.loadgen.run_watch import IssuerProgress, Stop
from evaluators.loadgen.schedule import Schedule
from evaluators.loadgen.target import LoadTarget
from evaluators.system import SystemUnderTest
from manifests.errors import ConfigurationError, EvaluationInterrupted

if TYPE_CHECKING:
    from client.remote.agent import RemoteAgent

_NS_PER_MS = 1_000_000
_SHOWN_EVERY_S = 1.0


def put_load(invocation: Invocation, request: LoadRequest) -> int:
    """Runs the workload or the search, publishes it and prints its summary.

    Returns:
        The exit code.

    Raises:
        InferscopeError: Whatever keeps it from running, or from being published.
    """
    request.check()
    work = request.workload_schedule() if request.kind is LoadKind.WORKLOAD else _search_options(request)
    if agent_address(invocation, request) and (request.max_batch_size > 1 or request.max_queue_delay_ms):
        raise ConfigurationError(
            "--max_batch_size and --max_queue_delay_ms are for a model in this process; leave them out"
        )
    with ExitStack() as resources:
        stop = resources.enter_context(StopRequest())
        store = None
        if request.publish:
            store = invocation.open_store(request.database_address, request.database_name)
            resources.callback(store.close)
        system = resources.enter_context(closing(open_system(invocation, request)))
        inputs, identity = _inputs(invocation, request, system)
        target = resources.enter_context(closing(_target(system, inputs, request)))
        created_at = datetime.now(timezone.utc)
        session = LoadSession(
            target, request.timeout_ms, stop_requested=stop, on_progress=_Live(request.timeout_ms)
        )
        stop.begin_batches()
        _announce(system, inputs, work)
        session.warm_up(request.warm_up_queries)
        record, interrupted = _measured(session, request, work)
        evaluation = Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at.replace(microsecond=created_at.microsecond // 1000 * 1000),
            status=Status.INTERRUPTED if interrupted else Status.COMPLETE,
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
        )
        show = partial(print_load_summary, evaluation)
        if store:
            publish(evaluation, store, invocation.data_directory, show)
        else:
            show()
        return INTERRUPTED if interrupted else SUCCESS


def _search_options(request: LoadRequest) -> MaxQpsOptions:
    """What a search is asked for.

    Raises:
        ConfigurationError: A number makes no sense.
    """
    options = request.load_options(None)
    return MaxQpsOptions(
        latency_bound_ms=options.latency_bound_ms or LATENCY_BOUND_MS,
        initial_qps=request.initial_qps,
        percentile=options.percentile,
        tolerance=options.tolerance or TOLERANCE,
        time_budget_s=options.time_budget_s or TIME_BUDGET_S,
        min_duration_s=options.min_duration_s,
        min_queries=options.min_queries,
        process=request.process,
        seed=request.seed,
    )


def _measured(
    session: LoadSession, request: LoadRequest, work: Schedule | MaxQpsOptions
) -> tuple[LoadRecord, bool]:
    """What was measured, and whether it was interrupted."""
    if isinstance(work, Schedule):
        bound_ms = request.latency_bound
        issued = session.run(work, None if bound_ms is None else int(bound_ms * _NS_PER_MS))
        interrupted = issued.stop is Stop.INTERRUPTED
        if interrupted and not len(session.runs[0].queries):
            raise EvaluationInterrupted("stopped before a query was sent; nothing was published")
        return LoadRecord(request.load_options(work), tuple(session.runs)), interrupted
    found = search_max_qps(work, session)
    answer = RateAnswer(found.rate_qps, found.low_qps, found.high_qps, found.method.value, found.reason)
    return LoadRecord(request.load_options(None), tuple(session.runs), answer), False


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
    if isinstance(system, Session):
        return LocalTarget(
            system,
            inputs,
            max_batch_size=request.max_batch_size,
            max_queue_delay_ms=request.max_queue_delay_ms,
        )
    from client.remote.load_target import RemoteTarget  # gRPC, which a model in this process does not need

    return RemoteTarget(system, inputs)


def _announce(system: SystemUnderTest, inputs: LoadInputs, work: Schedule | MaxQpsOptions) -> None:
    """Says what is about to run."""
    d = system.description
    load = (
        f"{len(work)} queries at {work.rate_qps:g} queries/s ({work.source}), {work.duration_ns / 1e9:.1f} s"
        if isinstance(work, Schedule)
        else f"searching for at most {work.time_budget_s:g} s from {work.initial_qps:g} queries/s"
    )
    click.echo(
        f"{d.manifest.name} {d.manifest.version} on {d.manifest.framework.name} {d.framework_version} "
        f"({d.device}, {d.agent}), {inputs.source}: {load}",
        err=True,
    )
    if inputs.failures:
        click.echo(f"left out {len(inputs.failures)} inputs that cannot be read", err=True)


class _Live:
    """A line on a terminal while the load goes on."""

    def __init__(self, timeout_ms: float) -> None:
        self._next_s = _SHOWN_EVERY_S
        self._terminal = sys.stderr.isatty()

    def __call__(self, progress: IssuerProgress) -> None:
        if not self._terminal or (_SHOWN_EVERY_S < progress.elapsed_s < self._next_s):
            return
        self._next_s = progress.elapsed_s + _SHOWN_EVERY_S
        rate = progress.sent / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
        sys.stderr.write(
            f"\r{progress.elapsed_s:6.0f} s  {progress.sent}/{progress.total} queries  "
            f"{rate:8.1f} queries/s  {progress.waiting:6} waiting \033[K"
        )
        sys.stderr.flush()
