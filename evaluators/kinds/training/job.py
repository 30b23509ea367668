"""The job behind ``bench training``: a model is trained, as one of several ranks or alone, and validated.

Accuracy is computed while the trainer still has the model, by the same rules as in an evaluation. Ranks are
processes that train one model together, started on this host, or by a launcher on several hosts.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from inferometer.agent.artifacts.files import with_labels
from inferometer.agent.hardware.environment import Device, Precision, PredictorOptions, Weights
from inferometer.agent.inference.stages import InputFailure, SystemDescription
from inferometer.agent.tracing.recorder import SpanKind, TraceLevel, TraceScope, traced
from inferometer.agent.training.rank_environment import LOOPBACK, rank_gpu, rank_threads
from inferometer.agent.training.trainer import (
    CompanionsOf,
    Rank,
    Trainer,
    TrainerOptions,
    check_trainer,
    find_companions,
    open_trainer,
    require_host,
)
from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs import options as ranges
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes, in_turn
from inferometer.evaluators.kinds.batches.job import EvaluationTrace
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.kinds.training.request import SYNTHETIC, RankRequest, TrainingRequest
from inferometer.evaluators.kinds.training.training_run import TrainingRun
from inferometer.evaluators.loading.loader import UNLABELLED, DatasetLoader, Loader, SyntheticLoader
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.evaluators.loading.page_cache import CachedShare, before_reading
from inferometer.evaluators.tasks.metric import Accuracy, class_indices
from inferometer.manifests.errors import (
    ConfigurationError,
    DatasetError,
    OutputError,
    TrainingError,
    explained,
)
from inferometer.manifests.schema import Loss, ModelManifest

RankWork: TypeAlias = Callable[[Rank, JobCallbacks], Iterable[Evaluation[TrainingMeasurement]]]
"""A function that trains as one rank. It must be picklable: a module-level function with bound arguments.

The ranks work in step: each checks for a stop request once per step.
"""


def run_ranks(
    work: RankWork,
    request: RankRequest,
    callbacks: JobCallbacks,
    environ: Mapping[str, str],
    companions: CompanionsOf | None = None,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as this process's rank, as all ranks on this host, or as a single process.

    A rank with companions runs in a fresh process, even if it is the only rank. Only rank 0 yields
    evaluations; for a launcher's rank other than 0, only warnings are passed on.

    Raises:
        ConfigurationError: The host at which the ranks meet has no address.
        TrainingError: A rank or a companion was killed or ended early.
        InferometerError: Raised by ``work``.
    """
    rank, count = request.of_this_process(environ), request.num_ranks or 1
    if rank is not None:
        if rank.number:
            callbacks = replace(callbacks, on_start=lambda _: None, on_progress=lambda _: None)
        require_host(rank.address)
        launcher = os.getppid() if request.rank is None and os.getppid() > 1 else os.getpid()
        rank = replace(rank, servers=request.num_servers or rank.servers, launcher=launcher)
        if request.rank is None and "DMLC_ROLE" in environ:  # the tracker has started them
            companions = None
        alone = companions is None or not companions(rank)
        found = work(rank, callbacks) if alone else in_ranks(work, [rank], callbacks, companions)
        yield from (evaluation for evaluation in found if rank.number == 0)
        return
    if count == 1 and (companions is None or not companions(Rank())):
        yield from work(Rank(), callbacks)
        return
    with held_address() as address:
        ranks = [replace(each, servers=request.num_servers or 1) for each in local_ranks(count, address)]
        yield from in_ranks(work, ranks, callbacks, companions)


def in_ranks(
    work: RankWork, ranks: Sequence[Rank], callbacks: JobCallbacks, companions: CompanionsOf | None = None
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as each of the ranks of this host, each in a fresh Python process.

    Progress, warnings and evaluations are those of the first rank. Closing the iterator ends all processes at
    once, with everything that they have started; so does the end of this process.

    Raises:
        TrainingError: A rank or a companion was killed or ended early; the message names it.
        InferometerError: Raised by ``work`` in a rank.
    """
    tasks = [
        LinkedTask(
            str(rank) if rank.count > 1 else "the only rank", partial(work, rank), tells=rank is ranks[0]
        )
        for rank in ranks
    ]
    beside: list[LinkedTask[Any]] = [
        LinkedTask(each.name, partial(_as_companion, each.work), tells=False, stops=False)
        for rank in ranks
        for each in (companions(rank) if companions else ())
    ]
    return in_processes(tasks, callbacks, TrainingError, beside)


def local_ranks(count: int, address: str) -> tuple[Rank, ...]:
    """Returns the ranks for a run whose processes are all on this host."""
    launcher = os.getpid()
    return tuple(Rank(number, count, number, address, count, launcher=launcher) for number in range(count))


@contextmanager
def held_address() -> Iterator[str]:
    """Yields a free port on the loopback address, reserved until the context ends.

    A bound socket that does not listen keeps the port. A socket that sets SO_REUSEADDR, such as those of
    PyTorch's store and MXNet's scheduler, can still listen on it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{held.getsockname()[1]}"


def _as_companion(work: Callable[[], None], _: JobCallbacks) -> tuple[()]:
    work()
    return ()


EPOCH_BATCHES = 100
"""The number of batches in an epoch of synthetic data, if ``num_batches`` does not determine it."""
_TOP = 5
_PROBED_BYTES = 4096
"""How many bytes are written to the weights' path before training, to detect a full disk in time."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of validating a trained model on a dataset.

    Attributes:
        accuracy: The counts; None if no labelled sample was evaluated.
        failures: The samples that could not be read or preprocessed.
    """

    accuracy: Accuracy | None
    failures: tuple[InputFailure, ...]


def validate(
    trainer: Trainer,
    dataset: Dataset,
    manifest: ModelManifest,
    batch_size: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Validation | None:
    """Counts the samples whose class has the best score, or one of the best five.

    Classes are matched by ``class_indices``, as in training; of equal scores, the first ranks higher. Samples
    that fail, and those whose scores are not finite, are not counted.

    Args:
        trainer: The loaded trainer.
        dataset: The samples.
        manifest: The model, with its labels.
        batch_size: The number of samples that are run together.
        stop_requested: Called after each batch; once it returns True, the result is None.

    Raises:
        DatasetError: The model does not have a sample's class.
        TrainingError: The framework failed.
    """
    indices = class_indices(dataset, manifest.output.parameters.labels, trainer.output_shape[-1])
    top1 = top5 = evaluated = 0
    failures: list[InputFailure] = []

    def find(label: str | None) -> int:
        return UNLABELLED if label is None else indices(label)

    options = LoaderOptions(min(batch_size, len(dataset)))
    with DatasetLoader(dataset, manifest.inputs[0].parameters, options, find) as loader:
        for batch in loader.epoch(0):
            if stop_requested():
                return None
            failures += batch.failures
            if not len(batch.inputs):
                continue
            scores = trainer.scores(batch.inputs)
            counted = (batch.labels != UNLABELLED) & np.isfinite(scores).all(axis=1)
            best = np.argsort(-scores[counted], axis=1, kind="stable")[:, :_TOP]
            hits = best == batch.labels[counted, np.newaxis]
            top1 += int(hits[:, 0].sum())
            top5 += int(hits.any(axis=1).sum())
            evaluated += len(hits)
    return Validation(Accuracy(top1, top5, evaluated) if evaluated else None, tuple(failures))


_CTC_STEPS_PER_LABEL = 4
"""The number of time steps in the model's output for each label of synthetic CTC data."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The datasets of a request, opened before the model; None for one that was not requested.

    ``cache`` is the state of the page cache for the training data.
    """

    training: Dataset | None
    validation: Dataset | None
    cache: CachedShare | None = None


def train(
    request: TrainingRequest,
    resources: JobResources,
    rank: Rank,
    callbacks: JobCallbacks | None = None,
    group_id: str | None = None,
) -> Iterator[Evaluation[TrainingMeasurement]]:
    """Trains the model as one rank, and yields the evaluation; ranks other than 0 yield none.

    Everything that can be checked without the model is checked before it is built. The accuracy is that of
    the trained model on the validation dataset, by the rules of ``predict dataset``. The weights are saved at
    the end, unless the training was interrupted.

    Raises:
        EvaluationFailed: A sample failed, and the request stops on failures.
        EvaluationInterrupted: The training was stopped before a step was measured.
        InferometerError: The data or the model cannot be opened, or the framework failed.
    """
    callbacks = callbacks or JobCallbacks()
    _check_save_path(request.save_path)
    level = TraceLevel.NO_TRACE if rank.number else request.trace_level
    trace = EvaluationTrace(level, request.tracer_address, group_id, callbacks.on_warning, request.trace_url)
    with closing(trace):
        with trace.root(request.system.model_name) as scope:
            evaluation, unsaved = _train_once(request, resources, rank, callbacks, scope)
        if evaluation is not None:
            yield trace.kept(evaluation)
        if unsaved is not None:  # after the evaluation, which is not lost with the weights
            raise unsaved


def _check_save_path(path: Path | None) -> None:
    if path is None:
        return
    if path.exists():
        raise OutputError(f"{path}: exists already; name another file for the weights")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: the folder {path.absolute().parent} does not exist")
    written = explained(OutputError, f"{path}: cannot be written")
    with written, tempfile.TemporaryFile(dir=path.absolute().parent) as file:
        file.write(b"\0" * _PROBED_BYTES)


def _train_once(
    request: TrainingRequest,
    resources: JobResources,
    rank: Rank,
    callbacks: JobCallbacks,
    scope: TraceScope | None,
) -> tuple[Evaluation[TrainingMeasurement] | None, OutputError | None]:
    """Opens the data and the model, and trains; unless stopped, then validates and saves the model.

    Returns:
        The evaluation, and the error if the weights could not be saved.
    """
    manifest, options = resources.find_model(request.system), _trainer_options(request, rank)
    check_trainer(manifest, options, resources.registry)
    random = request.system.session.weights is Weights.RANDOM
    manifest = with_labels(manifest, needed=False, cache=None if random else resources.cache)
    with ExitStack() as opened:
        sources = _open_sources(request, manifest, resources, opened)
        with traced(scope, SpanKind("open", TraceLevel.APPLICATION_TRACE)):
            trainer, description = open_trainer(
                manifest,
                options,
                resources.registry,
                architectures=resources.architectures,
                cache=resources.cache,
            )
        opened.callback(trainer.close)
        cache = None
        if sources.training is not None:
            cache = before_reading(sources.training.files(), drop_first=request.data.drop_cache)
            if request.data.drop_cache and not cache.dropped:
                callbacks.on_warning(f"drop_cache: {cache.reason}")
        sources = replace(sources, cache=cache)
        with _loader(request, manifest, sources.training, trainer) as loader:
            evaluation = _run(request, trainer, description, loader, sources, callbacks, scope)
        if evaluation is None or evaluation.status is Status.INTERRUPTED:
            return evaluation, None
        if sources.validation is not None:
            stop = callbacks.stop_requested
            found = validate(trainer, sources.validation, manifest, request.options.batch_size, stop)
            if found is None:
                return replace(evaluation, status=Status.INTERRUPTED), None
            measured = replace(
                evaluation.measurement,
                accuracy=found.accuracy,
                validation=sources.validation.identity.name,
                failures=(*evaluation.measurement.failures, *found.failures),
            )
            evaluation = replace(evaluation, measurement=measured)
        try:
            if request.save_path is not None:
                trainer.save(request.save_path)
        except OutputError as error:
            return evaluation, error
        return evaluation, None


def _open_sources(
    request: TrainingRequest, manifest: ModelManifest, resources: JobResources, opened: ExitStack
) -> _Sources:
    training = validation = None
    if not request.data.is_synthetic:
        if manifest.loss is Loss.CTC:
            raise ConfigurationError(
                f"model {manifest.name} is trained with CTC, for which only synthetic data has labels"
            )
        training = opened.enter_context(closing(request.data.open(resources)))
        _check_classes(training, manifest)
    if request.validation is not None:
        if manifest.output.type != "classification":
            raise ConfigurationError(
                f"validation_dataset needs a classifier, but the output of {manifest.name} has no classes"
            )
        found = replace(request.data, path=None, name=request.validation, on_device=False)
        validation = opened.enter_context(closing(found.open(resources)))
        _check_classes(validation, manifest)
    return _Sources(training, validation)


def _check_classes(dataset: Dataset, manifest: ModelManifest) -> None:
    """Checks the classes before the model is built, if its manifest has labels."""
    if not len(dataset):
        raise DatasetError(f"dataset {dataset.identity.name} holds no samples")
    if labels := manifest.output.parameters.labels:
        class_indices(dataset, labels, len(labels))


def _find_label(dataset: Dataset, manifest: ModelManifest, classes: int) -> Callable[[str | None], int]:
    indices = class_indices(dataset, manifest.output.parameters.labels, classes)

    def find(label: str | None) -> int:
        if label is None:
            raise DatasetError(
                f"{dataset.identity.name}: a sample has no class; training requires the class of every sample"
            )
        return indices(label)

    return find


def _trainer_options(request: TrainingRequest, rank: Rank) -> TrainerOptions:
    options, session, several = request.options, request.system.session, rank.count > 1
    threads = session.threads or (rank_threads(rank, os.environ) if several else None)
    devices = request.devices
    if several and devices[0].is_gpu and len(devices) == 1:
        devices = (Device(devices[0].kind, rank_gpu(rank, os.environ)),)
    return TrainerOptions(
        predictor=PredictorOptions(
            devices[0],
            threads,
            session.weights,
            session.seed,
            precision=Precision(options.precision),
            cudnn_benchmark=options.cudnn_benchmark,
        ),
        devices=devices,
        optimizer=request.optimizer,
        communication=options.communication,
        rank=rank,
        api=options.api,
    )


def _loader(
    request: TrainingRequest, manifest: ModelManifest, dataset: Dataset | None, trainer: Trainer
) -> Loader:
    options, rank, data = request.options, trainer.options.rank, request.data
    size = options.batch_size * len(trainer.options.devices)
    chosen = data.loader_options(size, rank.number, rank.count)
    parameters = manifest.inputs[0].parameters
    if dataset is not None:
        find = _find_label(dataset, manifest, trainer.output_shape[-1])
        return DatasetLoader(dataset, parameters, chosen, find)
    ctc = manifest.loss is Loss.CTC
    batches = EPOCH_BATCHES
    if options.num_batches is not None:
        batches = options.num_batches + options.num_warmup_batches
    return SyntheticLoader(
        parameters,
        chosen,
        classes=trainer.output_shape[-1],
        batches=batches,
        fixed=data.on_device,
        label_length=max(1, trainer.output_shape[0] // _CTC_STEPS_PER_LABEL) if ctc else None,
    )


def _run(
    request: TrainingRequest,
    trainer: Trainer,
    system: SystemDescription,
    loader: Loader,
    sources: _Sources,
    callbacks: JobCallbacks,
    scope: TraceScope | None,
) -> Evaluation[TrainingMeasurement] | None:
    """Announces the training, and trains while the machine's conditions are monitored."""
    ranks, devices = trainer.options.rank.count, len(trainer.options.devices)
    options = replace(request.options, ranks=ranks, devices=devices, loss=trainer.loss.value)
    name, size = f"synthetic data (seed {request.data.seed})", loader.batches * options.effective_batch
    synthetic = DatasetIdentity.synthetic(name, size)
    identity = synthetic if sources.training is None else sources.training.identity
    effective = f" × {ranks * devices}" if ranks * devices > 1 else ""
    work = f"training, batch {options.batch_size}{effective}, {options.precision}, {options.optimizer}"
    callbacks.on_start(JobStart(system, identity.name, identity.size, work))
    _log.info("manifest %s", system.manifest.source)
    with Watch(system, processes=loader.processes, launcher=trainer.options.rank.launcher) as watch:
        evaluation = TrainingRun(
            trainer,
            system,
            loader,
            identity,
            options,
            request.data.kept(sources.training.backend if sources.training else SYNTHETIC, sources.cache),
            fail_on_error=request.fail_on_error,
            callbacks=callbacks,
            on_measure=watch.begin,
            trace_level=request.trace_level,
            trace=scope,
        ).run()
        if evaluation is None:
            return None
        conditions = watch.end(evaluation.measurement.full_ns, options.batch_size)
    return replace(evaluation, conditions=conditions)


def trainings(
    request: TrainingRequest,
    ranks: RankRequest,
    resources: JobResources,
    callbacks: JobCallbacks,
    repeat: int = 1,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Trains the model, and yields the evaluation of each repetition as soon as it is complete.

    All repetitions begin with the same weights and the same data. Each runs in a fresh process; several ranks
    always run in fresh processes. Close the iterator to end the job early.

    Raises:
        ConfigurationError: ``repeat`` is out of range, or conflicts with the other options.
        InferometerError: The model cannot be trained.
    """
    ranges.check_number("repeat", repeat, ranges.COUNT)
    if repeat > 1:
        rank = ranks.of_this_process(os.environ)
        if rank is not None:
            raise ConfigurationError(
                f"repeat starts processes of its own, but this one was started as {rank}; start all ranks "
                "again instead, or leave out repeat"
            )
        if request.save_path is not None:
            raise ConfigurationError(
                f"save_weights names one file, but repeat={repeat} trains {repeat} models; leave out one"
            )
        _ = resources.catalog  # says here, once, which manifests are left out
    group_id = str(uuid.uuid4()) if repeat > 1 else None
    works = [(partial(_train_part, request, ranks, resources, group_id), None)] * repeat
    fresh = repeat > 1 and (ranks.num_ranks or 1) == 1
    return in_turn(works, callbacks, fresh=fresh, group_id=group_id, numbered=repeat > 1)


def _train_part(
    request: TrainingRequest,
    ranks: RankRequest,
    resources: JobResources,
    group_id: str | None,
    callbacks: JobCallbacks,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Yields the evaluation of one repetition, trained by all ranks of this host."""
    work = partial(train, request, resources, group_id=group_id)
    framework = resources.registry.find(resources.find_model(request.system).framework.name)
    companions = find_companions(framework, request.options.communication)
    yield from run_ranks(work, ranks, callbacks, os.environ, companions)


def training_job(
    request: TrainingRequest, ranks: RankRequest, repeat: int = 1
) -> Job[Evaluation[TrainingMeasurement]]:
    """Returns the job of a request; see ``trainings``."""
    name = request.system.model_name
    opening = "" if repeat > 1 else f"opening {name}"  # fresh processes draw bars of their own
    return Job(partial(trainings, request, ranks, repeat=repeat), name, opening, "stopping after this step")
