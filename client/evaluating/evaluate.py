"""One ``predict dataset`` or ``predict urls`` from its options to its published evaluation."""

from __future__ import annotations

import logging
import uuid
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import click

from agent.trace_level import TraceLevel
from agent.tracing.scope import TraceScope, traced
from agent.tracing.span import SpanKind
from client.agents.choosing import choose_agents
from client.dataset_selection import dataset_of_model
from client.evaluating.evaluation_trace import EvaluationTrace
from client.evaluating.predictions import failure_line, print_failures, print_predictions
from client.evaluating.progress import ProgressBar
from client.evaluating.request import EvaluationRequest
from client.evaluating.summary import print_summary
from client.exit_codes import INTERRUPTED, SUCCESS
from client.invocation import Invocation
from client.publishing import publish
from client.stopping import StopRequest
from client.system_opening import open_shared_system
from evaluators.dataset_run import DatasetRun
from evaluators.datasets.base import Dataset
from evaluators.evaluation import Evaluation, EvaluationOptions, Status
from evaluators.store.base import EvaluationStore
from evaluators.system import SystemUnderTest

FAILED_INPUTS = 1
"""The exit code of an evaluation that finished although some of its inputs failed."""
_log = logging.getLogger(__name__)


def evaluate(invocation: Invocation, request: EvaluationRequest) -> int:
    """Runs the evaluation, publishes it and prints its summary.

    What can fail without the model fails before it is loaded: the options, the database, the dataset.

    Returns:
        The exit code.

    Raises:
        InferscopeError: Whatever keeps it from running, or from being published.
    """
    levels = request.trace_levels(invocation.configuration.tracer.level)
    every = [request.evaluation_options(level) for level in levels] * request.repeat
    request = replace(request, agent_address=",".join(choose_agents(invocation, request)) or None)
    group_id = str(uuid.uuid4()) if len(every) > 1 else None
    worst = SUCCESS
    with ExitStack() as resources:
        store: EvaluationStore | None = None
        if request.publish:
            store = invocation.open_store(request.database_address, request.database_name)
            resources.callback(store.close)
            _log.info("the evaluation will be published to %s", store.location)
        for number, options in enumerate(every, start=1):
            if group_id:
                click.echo(f"{number} of {len(every)}, {options.trace_level.name}:", err=True)
            code = _evaluate_once(invocation, request, options, store, group_id)
            worst = max(worst, code)
            if code == INTERRUPTED:
                break
    if group_id and store:
        click.echo(f"group       {group_id}")
    return worst


def _evaluate_once(
    invocation: Invocation,
    request: EvaluationRequest,
    options: EvaluationOptions,
    store: EvaluationStore | None,
    group_id: str | None,
) -> int:
    """Evaluates at one trace level; see ``evaluate``."""
    address = request.tracer_address or invocation.configuration.tracer.address
    trace = EvaluationTrace(options.trace_level, address, group_id)
    with ExitStack() as resources:
        resources.callback(trace.close)
        stop = resources.enter_context(StopRequest())
        with trace.root(request.model_name) as scope:
            evaluation = _run(invocation, request, options, stop, scope)
        evaluation = replace(trace.kept(evaluation), group_id=group_id)
        show = partial(_show, evaluation, inputs=request.show_inputs)
        if not request.publish_predictions:
            evaluation = replace(evaluation, predictions=())
        if store:
            publish(evaluation, store, invocation.data_directory, show)
        else:
            show()
        return _code(evaluation, published=store is not None)


def _run(
    invocation: Invocation,
    request: EvaluationRequest,
    options: EvaluationOptions,
    stop: StopRequest,
    scope: TraceScope | None,
) -> Evaluation:
    """Opens the dataset and the model, and evaluates."""
    with ExitStack() as resources:
        dataset = request.open_dataset(invocation.catalog, invocation.cache)
        if dataset:
            resources.callback(dataset.close)
        with traced(scope, SpanKind("open", TraceLevel.APPLICATION_TRACE)) as opening:
            system = resources.enter_context(
                closing(
                    open_shared_system(
                        invocation,
                        request,
                        opening,
                        warm_up=request.warmup_num_file_parts > 0,
                        answer_timeout_s=request.agent_timeout,
                    )
                )
            )
        if dataset is None:
            manifest = system.description.manifest
            dataset = dataset_of_model(
                invocation.catalog, manifest, request.dataset_category, invocation.cache
            )
            resources.callback(dataset.close)
        stop.begin_batches()
        _announce(system, dataset)
        if request.publish_predictions and system.description.manifest.output.type != "classification":
            click.echo("--publish_predictions keeps nothing: the model's output has no classes", err=True)
        with ProgressBar(request.model_name) as progress:
            return DatasetRun(
                system,
                dataset,
                options,
                keep_predictions=request.show_inputs or (request.publish_predictions and request.publish),
                on_progress=progress,
                stop_requested=stop,
                trace=scope,
            ).run()


def _announce(system: SystemUnderTest, dataset: Dataset) -> None:
    """Says what is about to run, so that a default that was not meant is seen."""
    d = system.description
    threads = f", threads: {d.threads}" if d.threads and not d.device.is_gpu else ""
    click.echo(
        f"{d.manifest.name} {d.manifest.version} on {d.manifest.framework.name} {d.framework_version} "
        f"({d.device}{threads}, {d.agent}) over {dataset.identity.name}, {len(dataset)} inputs",
        err=True,
    )
    _log.info(
        "manifest %s, with %s", d.manifest.source, ", ".join(f"{k} {v}" for k, v in d.checksums.items())
    )
    _log.info(
        "dataset of category %s, %s", dataset.identity.category, dataset.identity.checksum or "a folder"
    )
    _log.info(
        "%d threads preprocess, %s", d.preprocess_threads, "beside" if d.overlap else "between predictions"
    )


def _show(evaluation: Evaluation, *, inputs: bool) -> None:
    """Prints the summary, and before it what the single inputs gave, if that is asked for."""
    if inputs:
        print_predictions(evaluation)
        print_failures(evaluation)
    print_summary(evaluation)


def _code(evaluation: Evaluation, *, published: bool) -> int:
    """The exit code, and one line on stderr where it is not zero."""
    if evaluation.status is Status.INTERRUPTED:
        sizes = evaluation.batches.sizes
        what = f"interrupted: {int(sizes.sum())} inputs in {len(sizes)} batches were"
        click.echo(
            f"{what} kept; reports leave the evaluation out unless they get --include_interrupted"
            if published
            else f"{what} measured; nothing was published",
            err=True,
        )
        return INTERRUPTED
    if evaluation.failures:
        first = evaluation.failures[0]
        click.echo(
            f"failed inputs: {len(evaluation.failures)}; the first: {failure_line(first)}",
            err=True,
        )
        return FAILED_INPUTS
    return SUCCESS
