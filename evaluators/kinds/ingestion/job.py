"""The job behind ``bench ingestion``: a loader alone, against nothing that computes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from inferometer.agent.inference.results import SystemDescription
from inferometer.evaluators.conditions.watch import Watch
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs import defaults, ranges
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.kinds.data import DataOptions
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement
from inferometer.evaluators.kinds.ingestion.run import IngestionLength, IngestionRun
from inferometer.evaluators.kinds.training.request import TrainingData
from inferometer.evaluators.loading.dataset_loader import DatasetLoader
from inferometer.evaluators.loading.framework_readers import open_framework_reader
from inferometer.evaluators.loading.loader import Loader
from inferometer.evaluators.loading.page_cache import CacheBefore, before_reading
from inferometer.evaluators.running.fresh_process import in_turn
from inferometer.evaluators.running.job import Job
from inferometer.evaluators.running.resources import JobCallbacks, JobResources, JobStart
from inferometer.manifests.errors import ConfigurationError, DatasetError, EvaluationInterrupted

OWN, FRAMEWORK = "own", "framework"
READERS = (OWN, FRAMEWORK)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionRequest:
    """A dataset to load in batches, as the input of a model that is not loaded.

    Attributes:
        system: The model, which gives the preprocessing.
        data: The dataset, and how it is loaded.
        batch_size: The samples in a full batch.
        length: The length of the run.
        reader: ``own``, or ``framework`` for the framework's own iterator of the format, which has threads.
        fail_on_error: Whether the first sample that fails ends the run.

    Raises:
        ConfigurationError: No dataset is named, or an option is not valid.
    """

    system: SystemRequest = SystemRequest()  # noqa: RUF009 - frozen
    data: TrainingData
    batch_size: int = defaults.BATCH_SIZE
    length: IngestionLength = IngestionLength()  # noqa: RUF009 - frozen
    reader: str = OWN
    fail_on_error: bool = False

    def __post_init__(self) -> None:
        if self.data.is_synthetic:
            raise ConfigurationError("ingestion reads a dataset, and none is named; give data_dir")
        if self.reader not in READERS:
            raise ConfigurationError(f"reader is {self.reader}; allowed: {', '.join(READERS)}")
        if self.reader == FRAMEWORK and self.data.processes:
            raise ConfigurationError("a framework's reader has threads; leave out the worker processes")
        self.data.loader_options(self.batch_size)


@dataclass(frozen=True, slots=True)
class _Described:
    """The model, which is not loaded, as the watch over the machine sees it."""

    description: SystemDescription
    in_process: bool = True


def ingest(
    request: IngestionRequest, resources: JobResources, callbacks: JobCallbacks[Progress] | None = None
) -> Evaluation[IngestionMeasurement]:
    """Loads the batches, and returns the evaluation.

    Raises:
        EvaluationFailed: A sample failed, and the request stops on failures; or all samples failed.
        EvaluationInterrupted: It was stopped before a batch was measured.
        InferometerError: The model is unknown, the dataset cannot be opened or is damaged, or a worker
            process was lost.
    """
    callbacks = callbacks or JobCallbacks()
    data = request.data
    description = resources.describe(
        request.system, preprocess_threads=data.workers, overlap=data.prefetch > 0
    )
    with ExitStack() as opened:
        dataset = opened.enter_context(closing(data.open(resources.catalog, resources.cache)))
        cache = before_reading(dataset.files(), drop_first=data.drop_cache)
        if data.drop_cache and not cache.dropped:
            callbacks.on_warning(f"drop_cache: {cache.reason}")
        loader = opened.enter_context(_loader(request, description, dataset))
        return _run(request, description, loader, dataset, cache, callbacks)


def _loader(request: IngestionRequest, description: SystemDescription, dataset: Dataset) -> Loader:
    options = request.data.loader_options(request.batch_size)
    parameters = description.manifest.inputs[0].parameters
    if request.reader == FRAMEWORK:
        return open_framework_reader(dataset, parameters, options)
    return DatasetLoader(dataset, parameters, options)


def _run(
    request: IngestionRequest,
    description: SystemDescription,
    loader: Loader,
    dataset: Dataset,
    cache: CacheBefore,
    callbacks: JobCallbacks[Progress],
) -> Evaluation[IngestionMeasurement]:
    """Announces the loading, and loads under the watch of the machine's conditions."""
    identity = dataset.identity
    data = _data_options(request, dataset, cache)
    work = f"loading, batch {request.batch_size}, {data.backend} by {data}"
    callbacks.on_start(JobStart(description, identity.name, identity.size, work))
    _log.info("manifest %s", description.manifest.source)
    with Watch(_Described(description), loader.processes) as watch:
        run = IngestionRun(
            loader,
            request.batch_size,
            request.length,
            data,
            on_progress=callbacks.on_progress,
            stop_requested=callbacks.stop_requested,
            on_measure=watch.begin,
            fail_on_error=request.fail_on_error,
        )
        try:
            evaluation = run.run(description, identity)
        except DatasetError as error:
            if callbacks.stop_requested():  # what stops the command may have ended a worker too
                raise EvaluationInterrupted("stopped while a worker process ended") from error
            raise
        # ahead of a caller who does nothing, batches come as the workers happen to end
        steady_ns = None if request.data.prefetch else evaluation.measurement.full_ns
        return replace(evaluation, conditions=watch.end(steady_ns, request.batch_size))


def _data_options(request: IngestionRequest, dataset: Dataset, cache: CacheBefore) -> DataOptions:
    data = request.data
    return DataOptions(
        backend=data.backend or dataset.backend or dataset.identity.category,
        reader=request.reader,
        workers=data.workers,
        processes=data.processes,
        prefetch=data.prefetch,
        shuffle=data.shuffle,
        seed=data.seed,
        cached_before=cache.share,
        dropped=cache.dropped,
    )


def ingestions(
    request: IngestionRequest, resources: JobResources, callbacks: JobCallbacks[Progress], repeat: int = 1
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    """Loads the batches, and yields the evaluation of each repetition as soon as it is complete.

    Raises:
        ConfigurationError: ``repeat`` is out of range.
        InferometerError: The dataset cannot be loaded.
    """
    ranges.check_number("repeat", repeat, ranges.COUNT)
    fresh = repeat > 1
    if fresh:
        _ = resources.catalog
    group_id = str(uuid.uuid4()) if fresh else None
    works = [
        (partial(_ingest_part, request, resources, group_id, number if fresh else None), None)
        for number in range(1, repeat + 1)
    ]
    return in_turn(works, callbacks, fresh=fresh)


def _ingest_part(
    request: IngestionRequest,
    resources: JobResources,
    group_id: str | None,
    process: int | None,
    callbacks: JobCallbacks[Progress],
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    """Yields the evaluation of one repetition."""
    yield replace(ingest(request, resources, callbacks), group_id=group_id, process=process)


def ingestion_job(request: IngestionRequest, repeat: int = 1) -> Job[Evaluation[IngestionMeasurement]]:
    """Returns the job of a request; see ``ingestions``."""
    opening = "" if repeat > 1 else "opening the dataset"
    return Job(partial(_ingestions, request, repeat), request.system.model_name, opening)


def _ingestions(
    request: IngestionRequest, repeat: int, resources: JobResources, callbacks: JobCallbacks[Progress]
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    return ingestions(request, resources, callbacks, repeat)
