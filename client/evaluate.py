"""One ``predict dataset`` from its options to its published evaluation."""

from __future__ import annotations

import logging
import shlex
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from agent.device import CPU, Device, DeviceKind
from agent.predictor import Weights
from agent.selection import select_model
from agent.session import SessionOptions, open_session
from agent.trace_level import TraceLevel
from client.dataset_selection import dataset_of_model
from client.exit_codes import INTERRUPTED, SUCCESS
from client.invocation import Invocation
from client.progress import ProgressBar
from client.stopping import StopRequest
from client.summary import print_summary
from evaluators.dataset_run import DatasetRun
from evaluators.datasets.base import Dataset
from evaluators.datasets.opening import open_dataset, open_path
from evaluators.evaluation import Evaluation, EvaluationOptions, Status
from evaluators.store.base import EvaluationStore
from evaluators.store.spool import write_spool
from evaluators.system import SystemUnderTest
from manifests.errors import StoreError

FAILED_INPUTS = 1
"""The exit code of an evaluation that finished although some of its inputs failed."""
TOP_CLASSES = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    """The options of ``predict dataset``, under their names on the command line."""

    model_name: str
    model_version: str | None
    framework_name: str | None
    agent_address: str | None
    weights: str
    seed: int
    gpu: bool
    gpu_device_id: int
    threads: int | None
    preprocess_threads: int | None
    overlap: bool | None
    fail_on_error: bool
    publish: bool
    publish_predictions: bool
    database_address: str | None
    database_name: str | None
    trace_level: str | None
    tracer_address: str | None
    batch_size: int
    partition_list_size: int
    num_file_parts: int
    warmup_num_file_parts: int
    dataset_category: str | None
    dataset_name: str | None
    dataset_path: Path | None

    def evaluation_options(self, default_level: str | None) -> EvaluationOptions:
        """What the evaluator is asked for.

        Args:
            default_level: The trace level when the options name none.

        Raises:
            ConfigurationError: A number makes no sense, or there is no such trace level.
        """
        level = self.trace_level or default_level
        return EvaluationOptions(
            batch_size=self.batch_size,
            partition_list_size=self.partition_list_size,
            num_file_parts=self.num_file_parts,
            warmup_num_file_parts=self.warmup_num_file_parts,
            feature_limit=0 if self.publish_predictions else TOP_CLASSES,
            fail_on_error=self.fail_on_error,
            trace_level=TraceLevel.named(level) if level else TraceLevel.APPLICATION_TRACE,
        )

    @property
    def session_options(self) -> SessionOptions:
        """What the model is opened with."""
        return SessionOptions(
            device=Device(DeviceKind.GPU, self.gpu_device_id) if self.gpu else CPU,
            threads=self.threads,
            preprocess_threads=self.preprocess_threads,
            overlap=self.overlap,
            feature_limit=0 if self.publish_predictions else TOP_CLASSES,
            weights=Weights(self.weights.lower()),
            seed=self.seed,
        )


def evaluate(invocation: Invocation, request: DatasetRequest) -> int:
    """Runs the evaluation, publishes it and prints its summary.

    What can fail without the model fails before it is loaded: the options, the database, the dataset.

    Returns:
        The exit code.

    Raises:
        InferscopeError: Whatever keeps it from running, or from being published.
    """
    options = request.evaluation_options(invocation.configuration.tracer.level)
    if request.tracer_address:
        click.echo("note: this version records no spans; --tracer_address has no effect", err=True)
    with ExitStack() as resources:
        stop = resources.enter_context(StopRequest())
        store: EvaluationStore | None = None
        if request.publish:
            store = invocation.open_store(request.database_address, request.database_name)
            resources.callback(store.close)
            _log.info("the evaluation will be published to %s", store.location)
        dataset = _named_dataset(invocation, request)
        if dataset:
            resources.callback(dataset.close)
        system = resources.enter_context(closing(_open_system(invocation, request)))
        if dataset is None:
            manifest = system.description.manifest
            dataset = dataset_of_model(invocation.catalog, manifest, request.dataset_category)
            resources.callback(dataset.close)
        _announce(system, dataset)
        with ProgressBar(request.model_name) as progress:
            evaluation = DatasetRun(
                system,
                dataset,
                options,
                keep_predictions=request.publish_predictions and request.publish,
                on_progress=progress,
                stop_requested=stop,
            ).run()
        if store:
            _publish(evaluation, store, invocation.data_directory)
        else:
            print_summary(evaluation)
        return _code(evaluation, published=store is not None)


def _open_system(invocation: Invocation, request: DatasetRequest) -> SystemUnderTest:
    """Opens the model, in this process or on a served agent."""
    framework = request.framework_name or invocation.configuration.framework
    address = request.agent_address or invocation.configuration.agent
    if address:
        from client.remote.agent import RemoteOptions, open_remote_agent

        return open_remote_agent(
            address,
            request.model_name,
            request.model_version,
            framework,
            request.session_options,
            RemoteOptions(secret=invocation.secret),
        )
    manifest = select_model(
        invocation.catalog, invocation.registry, request.model_name, request.model_version, framework
    )
    return open_session(manifest, request.session_options, invocation.registry)


def _named_dataset(invocation: Invocation, request: DatasetRequest) -> Dataset | None:
    """The dataset that the options name; None leaves it to the model's manifest."""
    if request.dataset_path:
        return open_path(request.dataset_path, request.dataset_category or "vision")
    if request.dataset_name:
        return open_dataset(
            invocation.catalog.find_dataset(request.dataset_name, category=request.dataset_category)
        )
    return None


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


def _publish(evaluation: Evaluation, store: EvaluationStore, data_directory: Path) -> None:
    """Publishes the evaluation, or keeps it in a file when the database is gone.

    Raises:
        StoreError: It was kept in a file; the message says where, and how to publish it later.
    """
    try:
        store.save(evaluation)
    except StoreError as error:
        with suppress(OSError):  # where it is kept has to be said in any case
            print_summary(evaluation)
        path = write_spool(evaluation, data_directory / "unpublished")
        raise StoreError(
            f"{error}; the evaluation was kept in {path}: publish it later, with the same --database_address "
            f"and --database_name, by: agent database import {shlex.quote(str(path))}"
        ) from error
    print_summary(evaluation)
    click.echo(f"published   {evaluation.id} to {store.location}")


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
            f"failed inputs: {len(evaluation.failures)}; the first: {first.input_id} in {first.stage.value}: "
            f"{first.message}",
            err=True,
        )
        return FAILED_INPUTS
    return SUCCESS
