"""The job behind ``bench ingestion``: a loader runs alone, batch after batch, without a model."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from inferometer.agent.inference.session import describe_unloaded
from inferometer.agent.inference.stages import InputFailure, SystemDescription
from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs import options as ranges
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart, Progress
from inferometer.evaluators.jobs.linked_process import in_turn
from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement, LoadTimes
from inferometer.evaluators.kinds.ingestion.request import FRAMEWORK, KEPT, IngestionLength, IngestionRequest
from inferometer.evaluators.loading.loader import DatasetLoader, LoadedBatch, Loader, open_framework_reader
from inferometer.evaluators.loading.options import DataOptions
from inferometer.evaluators.loading.page_cache import CachedShare, before_reading
from inferometer.manifests.errors import DatasetError, EvaluationFailed, EvaluationInterrupted


@dataclass(eq=False)
class IngestionRun:
    """One run of a loader, over as many epochs as needed.

    A batch lasts from the end of the previous batch to its own end, so the batch times add up to the elapsed
    time. Measured batches are begun after the clock has started, and the loader begins none beyond them; a
    loader that cannot be held back begins a new epoch. A sample that fails in several epochs is counted once.

    Attributes:
        loader: The loader.
        batch_size: The number of samples in a full batch.
        length: How long it runs.
        data: How it loads the data.
        callbacks: Of these, ``on_progress`` and ``stop_requested`` are called after every batch, as part of
            its time; the run ends as interrupted once the latter returns True.
        on_measure: Called after the warm-up, before the measured part.
        fail_on_error: Whether the first sample that fails ends the run.
        clock: A monotonic clock in nanoseconds.

    Raises:
        ConfigurationError: The warm-up would use up all batches.
    """

    loader: Loader
    batch_size: int
    length: IngestionLength
    data: DataOptions
    callbacks: JobCallbacks = JobCallbacks()  # noqa: RUF009 - frozen
    on_measure: Callable[[], None] = lambda: None
    fail_on_error: bool = False
    clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        self._total = self.length.total(self.loader.batches)
        self._failures: dict[str, InputFailure] = {}
        self._epochs = 0

    def run(self, system: SystemDescription, dataset: DatasetIdentity) -> Evaluation[IngestionMeasurement]:
        """Loads the batches.

        Args:
            system: The machine, and the model that defines the preprocessing.
            dataset: The identity of the dataset.

        Raises:
            DatasetError: The dataset is damaged, or a worker process died.
            EvaluationFailed: A sample failed and ``fail_on_error`` is set, or a whole epoch failed.
            EvaluationInterrupted: The run was stopped before a batch was measured.
        """
        created_at, warm_up = utc_now(), self.length.num_warmup_batches
        rows = self._measured_rows(warm_up)
        if not rows:
            raise EvaluationInterrupted("stopped before a batch was measured; nothing was published")
        times = LoadTimes(*np.asarray(rows, np.int64).T.copy())
        return Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at,
            status=Status.of(whole=warm_up + len(rows) == self._total, usable=bool(times.samples.any())),
            system=system,
            dataset=dataset,
            measurement=IngestionMeasurement(
                batch_size=self.batch_size,
                num_warmup_batches=warm_up,
                data=self.data,
                times=times,
                elapsed_ns=int(times.whole_ns.sum()),
                failures=tuple(self._failures.values()),
                epochs=self._epochs,
            ),
        )

    def _measured_rows(self, warm_up: int) -> list[tuple[int, int, int, int, int]]:
        """Warms up, and returns the fields of ``LoadTimes`` for each measured batch."""
        rows: list[tuple[int, int, int, int, int]] = []
        batches = self._batches()
        try:
            self.loader.hold(warm_up)
            for number in range(warm_up):
                if self.callbacks.stop_requested():
                    return rows
                next(batches)
                self.callbacks.on_progress(Progress(number + 1, self._total))
            if not self.loader.hold(self._total):
                batches.close()
                batches = self._batches()
            self.on_measure()
            begun_ns = self.clock()
            for number in range(warm_up, self._total):
                if self.callbacks.stop_requested():
                    break
                batch = next(batches)
                ended_ns = self.clock()
                spent_ns = (ended_ns - begun_ns, batch.read_ns, batch.preprocess_ns)
                rows.append((len(batch.inputs), *spent_ns, batch.read_bytes))
                begun_ns = ended_ns
                self.callbacks.on_progress(Progress(number + 1, self._total))
        finally:
            batches.close()
        return rows

    def _batches(self) -> Generator[LoadedBatch, None, None]:
        """Yields the batches of one epoch after another."""
        while True:
            loaded = 0
            self._epochs += 1
            for batch in self.loader.epoch(self._epochs - 1):
                self._take_failures(batch)
                loaded += len(batch.inputs)
                yield batch
            if not loaded:
                first = next(iter(self._failures.values()))
                raise EvaluationFailed(
                    f"no sample of epoch {self._epochs} could be used; the first: {first.input_id}: "
                    f"{first.message}"
                )

    def _take_failures(self, batch: LoadedBatch) -> None:
        for failure in batch.failures:
            if self.fail_on_error:
                raise EvaluationFailed(
                    f"input {failure.input_id} failed in {failure.stage.value}: {failure.message}; stopped "
                    "because of fail_on_error; nothing was published"
                )
            self._failures.setdefault(failure.input_id, failure)


_log = logging.getLogger(__name__)


def ingest(
    request: IngestionRequest, resources: JobResources, callbacks: JobCallbacks | None = None
) -> Evaluation[IngestionMeasurement]:
    """Loads the batches, and returns the evaluation.

    Raises:
        EvaluationFailed: A sample failed, and the request stops on failures; or all samples failed.
        EvaluationInterrupted: The run was stopped before a batch was measured.
        InferometerError: The model is unknown, the dataset cannot be opened or is damaged, or a worker
            process died.
    """
    callbacks = callbacks or JobCallbacks()
    data = request.data
    description = describe_unloaded(
        resources.find_model(request.system),
        resources.registry,
        preprocess_threads=data.workers,
        overlap=data.prefetch > 0,
    )
    with ExitStack() as opened:
        dataset = opened.enter_context(closing(data.open(resources)))
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
    cache: CachedShare,
    callbacks: JobCallbacks,
) -> Evaluation[IngestionMeasurement]:
    """Announces the run, and loads the batches while the machine's conditions are monitored."""
    identity = dataset.identity
    backend = request.data.backend or dataset.backend or identity.category
    others = ranges.further(request, KEPT)
    data = request.data.kept(backend, cache, reader=request.reader, further=others)
    work = f"loading, batch {request.batch_size}, {data.backend} by {data}"
    callbacks.on_start(JobStart(description, identity.name, identity.size, work))
    _log.info("manifest %s", description.manifest.source)
    with Watch(description, processes=loader.processes) as watch:
        run = IngestionRun(
            loader,
            request.batch_size,
            request.length,
            data,
            callbacks,
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


def ingestions(
    request: IngestionRequest, resources: JobResources, callbacks: JobCallbacks, repeat: int = 1
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
    works = [(partial(_ingest_part, request, resources), None)] * repeat
    return in_turn(works, callbacks, fresh=fresh, group_id=group_id, numbered=fresh)


def _ingest_part(
    request: IngestionRequest, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    """Yields the evaluation of one repetition."""
    yield ingest(request, resources, callbacks)


def ingestion_job(request: IngestionRequest, repeat: int = 1) -> Job[Evaluation[IngestionMeasurement]]:
    """Returns the job of a request; see ``ingestions``."""
    opening = "" if repeat > 1 else "opening the dataset"
    return Job(partial(ingestions, request, repeat=repeat), request.system.model_name, opening)
