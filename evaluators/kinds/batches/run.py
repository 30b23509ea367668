"""Evaluation of a model over a dataset: each input is scored once, and the times of every batch are kept."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, SystemDescription
from inferometer.agent.tasks.predictions import Predictions
from inferometer.agent.tracing.recorder import SpanKind, TraceLevel, TraceScope, traced
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.evaluation import Evaluation, Status, SystemUnderTest, utc_now
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.batches.measurement import (
    BatchMeasurement,
    BatchTimes,
    InputPrediction,
    LengthPlan,
)
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.tasks.classification import ClassificationMetric
from inferometer.evaluators.tasks.metric import METRICS, Accuracy, TaskMetric, predicted_samples
from inferometer.manifests.errors import DatasetError, EvaluationFailed, EvaluationInterrupted

MEASURE = "measure"
"""The name of the span that covers the measured part, without the warm-up."""
T = TypeVar("T")
_NS_PER_S = 1_000_000_000


@dataclass(eq=False)
class DatasetRun:
    """One run of a system over a dataset.

    The run evaluates the first ``num_file_parts`` parts of ``partition_list_size`` samples in batches of
    ``batch_size``, which cross the boundaries of parts: only the last batch can be smaller. The preceding
    warm-up runs the first ``warmup_num_file_parts`` parts, and at least one full batch unless that is 0,
    without timing or counting them, because frameworks prepare themselves for each batch size.

    If the options ask for more than one pass, the full batches of the dataset are repeated until enough is
    measured (``measurement.LengthPlan``). Repetitions contribute only times: accuracy and predictions are
    those of the first pass, and an input that fails is recorded once. Spans of the repetitions are recorded
    only at a level above APPLICATION_TRACE, because all times are then measured under that tracing.

    Attributes:
        system: The open model.
        dataset: The samples.
        options: The number and size of the batches.
        keep_most: The maximum number of predictions to keep, starting at the first input; None for all.
        callbacks: Of these, ``on_progress`` and ``stop_requested`` are called after every batch; the run ends
            as interrupted once the latter returns True.
        trace_level: The trace level that the evaluation records.
        trace: The scope of the spans of the warm-up and of the measured part; None records none.
        on_measure: Called after the warm-up, before the measured part.
        clock: A monotonic clock in nanoseconds.

    Raises:
        DatasetError: The dataset is empty, or contains a class that the model does not know.
    """

    system: SystemUnderTest
    dataset: Dataset
    options: BatchOptions
    keep_most: int | None = 0
    callbacks: JobCallbacks = JobCallbacks()  # noqa: RUF009 - frozen
    trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE
    trace: TraceScope | None = None
    on_measure: Callable[[], None] = lambda: None
    clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        dataset, options = self.dataset, self.options
        if not len(dataset):
            raise DatasetError(f"dataset {dataset.identity.name} holds no samples")
        self._record = _Record(self.system)
        self._measured = options.inputs_of(len(dataset))
        warmup = options.warmup_num_file_parts * options.partition_list_size
        self._warmup = min(len(dataset), max(warmup, options.batch_size) if warmup else 0)
        self._done, self._total = 0, self._warmup + self._measured
        self._started_ns = self._ended_ns = self._scored_ns = self._scoring_ns = 0
        description = self.system.description
        self._alone = description.is_local and not description.overlap
        if self._record.metric is not None:
            for sample in itertools.islice(dataset, self._measured):
                self._record.metric.check(sample)

    def run(self) -> Evaluation[BatchMeasurement]:
        """Runs the evaluation.

        Returns:
            The evaluation. If it was stopped, its status is interrupted and it contains the finished batches;
            if every input failed, its status is failed.

        Raises:
            EvaluationFailed: An input failed, and ``fail_on_error`` is set.
            EvaluationInterrupted: The run was stopped before a batch was measured.
            AgentError: The connection to a remote agent was lost.
        """
        created_at = utc_now()
        if self._warmup:
            with traced(self.trace, _span_kind("warm_up", self.options, self._warmup)) as scope:
                for _ in self._results(scope and scope.without_layers(), self._first(self._warmup)):
                    pass
        self.on_measure()
        self._started_ns = self._ended_ns = self.clock()
        with traced(self.trace, _span_kind(MEASURE, self.options, self._measured)) as scope:
            for samples, result in self._results(scope, self._first(self._measured)):
                self._end_batch()
                self._score(samples, result)
            complete = self._record.inputs == self._measured
            if complete and self.options.repeats:
                complete = self._repeat(scope if self.trace_level > TraceLevel.APPLICATION_TRACE else None)
        if not self._record.sizes:
            raise EvaluationInterrupted("stopped before a batch was measured; nothing was published")
        predicted = any(self._record.sizes) and len(self._record.failures) < self._record.inputs
        return Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at,
            status=Status.of(whole=complete, usable=predicted),
            system=self.system.description,
            dataset=self.dataset.identity,
            measurement=BatchMeasurement(
                options=self.options,
                times=self._record.times(),
                elapsed_ns=self._elapsed_ns,
                accuracy=self._record.accuracy,
                failures=tuple(self._record.failures),
                predictions=tuple(self._record.predictions),
                task_result=self._record.metric.result() if self._record.metric else None,
            ),
            trace_level=self.trace_level,
        )

    def _first(self, count: int) -> Iterator[Sample]:
        return itertools.islice(self.dataset, count)

    @property
    def _elapsed_ns(self) -> int:
        return self._ended_ns - self._started_ns - self._scored_ns

    def _score(self, samples: Sequence[Sample], result: BatchResult) -> None:
        """Records a batch of the first pass; its scoring time is excluded if nothing else runs meanwhile."""
        record, begun_ns = self._record, self.clock()
        known = len(record.failures)
        record.add(samples, result, self.keep_most)
        if self.options.fail_on_error and len(record.failures) > known:
            raise self._failed(record.failures[known])
        if self._alone:
            self._scoring_ns = self.clock() - begun_ns

    def _end_batch(self) -> None:
        """Records when a result arrived, and adds the time taken to score the previous batch to the total."""
        self._ended_ns = self.clock()
        self._scored_ns += self._scoring_ns
        self._scoring_ns = 0

    def _repeat(self, scope: TraceScope | None) -> bool:
        """Repeats the full batches until enough is measured; returns False if stopped first."""
        plan, record, size = LengthPlan(self.options), self._record, self.options.batch_size
        full, in_vain = self._measured // size * size, 0  # the inputs of the full batches, which are repeated
        samples = itertools.chain.from_iterable(map(self._first, itertools.repeat(full)))
        while in_vain < max(1, self._measured // size):  # where all batches fail, there is never enough
            before = record.times().full(size)
            batches = plan.more(before, self._elapsed_ns / _NS_PER_S)
            if not batches:
                return True
            if self.callbacks.stop_requested():
                return False
            self._total = self._done + batches * size
            with closing(self._results(scope, itertools.islice(samples, batches * size))) as results:
                for _, result in results:
                    self._end_batch()
                    record.add_again(result)
                    if plan.spent(self._elapsed_ns / _NS_PER_S):
                        break
            in_vain = 0 if record.sizes.count(size) > len(before) else in_vain + batches
        return True

    def _results(
        self, scope: TraceScope | None, samples: Iterator[Sample]
    ) -> Generator[tuple[Sequence[Sample], BatchResult], None, None]:
        """Runs the samples and yields each batch with its result, in order, until a stop is requested."""
        if self.callbacks.stop_requested():
            return
        waiting: deque[Sequence[Sample]] = deque()

        def batches() -> Iterator[Sequence[Sample]]:
            while batch := tuple(itertools.islice(samples, self.options.batch_size)):
                waiting.append(batch)
                yield batch

        with closing(as_generator(self.system.predict_batches(batches(), scope))) as results:
            for result in results:
                batch = waiting.popleft()
                if self.options.fail_on_error and result.failures:
                    raise self._failed(result.failures[0])
                yield batch, result
                self._done += len(batch)
                self.callbacks.on_progress(Progress(self._done, self._total))
                if self.callbacks.stop_requested():
                    return

    def _failed(self, failure: InputFailure) -> EvaluationFailed:
        warm_up = ", those of the warm-up included," if self.options.warmup_num_file_parts else ""
        return EvaluationFailed(
            f"input {failure.input_id} failed in {failure.stage.value}: {failure.message}; stopped after "
            f"{self._done} of {self._total} inputs{warm_up} because of fail_on_error; nothing was published"
        )


class _Record:
    """The results of the batches measured so far."""

    def __init__(self, system: SystemUnderTest) -> None:
        self.metric = metric_of(system.description)
        self.failures: list[InputFailure] = []
        self._failed: set[str] = set()
        self.predictions: list[InputPrediction] = []
        self.inputs = 0
        self.sizes: list[int] = []
        self._times: list[tuple[int, int, int, int]] = []

    @property
    def accuracy(self) -> Accuracy | None:
        return self.metric.accuracy if isinstance(self.metric, ClassificationMetric) else None

    def add(self, samples: Sequence[Sample], result: BatchResult, keep_most: int | None) -> None:
        """Adds a batch of the first pass, and keeps at most ``keep_most`` predictions in total."""
        self.inputs += len(samples)
        self.add_again(result)
        outputs = result.outputs
        if not isinstance(outputs, Predictions):  # raw tensors are neither scored nor kept
            return
        predicted = predicted_samples(samples, result)
        if self.metric is not None:
            refused = self.metric.add_batch(predicted, outputs)
            self._fail(InputFailure(each.input_id, Stage.SCORE, each.message) for each in refused)
        room = len(predicted) if keep_most is None else max(0, keep_most - len(self.predictions))
        self.predictions += (
            InputPrediction(sample.id, sample.label, outputs.row(place))
            for place, sample in enumerate(predicted[:room])
        )

    def add_again(self, result: BatchResult) -> None:
        """Adds the times of a batch, and the inputs in it that failed for the first time."""
        times = result.times
        self.sizes.append(len(result.input_ids))
        self._times.append((times.read_ns, times.preprocess_ns, times.predict_ns, times.postprocess_ns))
        self._fail(result.failures)

    def _fail(self, failures: Iterable[InputFailure]) -> None:
        """Adds failures, keeping only the first one for each input."""
        new = [failure for failure in failures if failure.input_id not in self._failed]
        self.failures += new
        self._failed.update(failure.input_id for failure in new)

    def times(self) -> BatchTimes:
        columns = np.asarray(self._times, np.int64).reshape(-1, 4).T
        return BatchTimes(np.asarray(self.sizes, np.int64), *columns)


def metric_of(system: SystemDescription) -> TaskMetric | None:
    """Returns the metric of a model's task; None if the weights are random or the task has no metric.

    Raises:
        ConfigurationError: The metric of a plug-in cannot be imported.
        ManifestError: The manifest lacks information that the metric requires.
    """
    task = system.manifest.output.type
    if system.weights is not Weights.PRETRAINED or task not in METRICS:
        return None
    return METRICS.find(task)(system.manifest)


def _span_kind(name: str, options: BatchOptions, inputs: int) -> SpanKind:
    return SpanKind.of(name, TraceLevel.APPLICATION_TRACE, batch_size=options.batch_size, inputs=inputs)


def as_generator(results: Iterator[T]) -> Generator[T, None, None]:
    """Wraps an iterator in a generator, whose ``close`` closes the iterator if that can be closed."""
    yield from results
