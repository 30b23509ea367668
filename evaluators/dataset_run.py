"""The evaluation of a model over a dataset: each input once, timed by batch, counted right or wrong."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from agent.predictor import Weights
from agent.results import BatchResult, Classifications, InputFailure
from agent.trace_level import TraceLevel
from agent.tracing.scope import TraceScope, traced
from agent.tracing.span import SpanKind
from evaluators.accuracy import AccuracyCounter
from evaluators.datasets.base import Dataset, Sample
from evaluators.evaluation import (
    BatchTimes,
    Evaluation,
    EvaluationOptions,
    InputPrediction,
    Status,
)
from evaluators.system import SystemUnderTest
from manifests.errors import DatasetError, EvaluationFailed, EvaluationInterrupted

MEASURE = "measure"
"""The name of the span that holds what was measured, and none of the warm-up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an evaluation has come: inputs done of all that will be run, the warm-up's among them."""

    done: int
    total: int


class DatasetRun:
    """One run of a system over a dataset.

    The first ``num_file_parts`` parts of ``partition_list_size`` samples are evaluated in batches of
    ``batch_size`` that go across the parts, so that only the last batch can be smaller. The first
    ``warmup_num_file_parts`` parts, and one full batch at least where there are any, are run before that and
    are neither timed nor counted: frameworks prepare themselves for each batch size anew.

    Args:
        system: The open model.
        dataset: The samples.
        options: How much of them, in which batches.
        keep_predictions: Whether the evaluation holds every input's prediction.
        on_progress: Told after every batch.
        stop_requested: Asked after every batch; once it says yes, the run ends as interrupted.
        trace: Where spans go: one for the warm-up and one for the measured part, and below them what the
            system records. None records none.
        clock: A monotonic clock in nanoseconds.

    Raises:
        DatasetError: The dataset is empty, or has a class that the model does not know.
    """

    def __init__(
        self,
        system: SystemUnderTest,
        dataset: Dataset,
        options: EvaluationOptions,
        *,
        keep_predictions: bool = False,
        on_progress: Callable[[Progress], None] = lambda _: None,
        stop_requested: Callable[[], bool] = lambda: False,
        trace: TraceScope | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if not len(dataset):
            raise DatasetError(f"dataset {dataset.identity.name} holds no samples")
        self._system = system
        self._dataset = dataset
        self._options = options
        self._keep_predictions = keep_predictions
        self._on_progress = on_progress
        self._stop_requested = stop_requested
        self._trace = trace
        self._clock = clock
        self._record = _Record(system)
        parts = options.num_file_parts
        self._measured = len(dataset) if parts < 0 else min(len(dataset), parts * options.partition_list_size)
        warmup = options.warmup_num_file_parts * options.partition_list_size
        self._warmup = min(len(dataset), max(warmup, options.batch_size) if warmup else 0)
        self._record.accuracy.check(itertools.islice(dataset, self._measured))

    def run(self) -> Evaluation:
        """Runs the evaluation.

        Returns:
            The evaluation. When it was stopped, its status is interrupted and it holds the batches that were
            finished.

        Raises:
            EvaluationFailed: An input failed, and the options ask to stop then.
            EvaluationInterrupted: The run was stopped before a batch was measured.
            AgentError: A remote agent was lost.
        """
        created_at = datetime.now(timezone.utc)
        if self._warmup:
            with traced(self._trace, _span_kind("warm_up", self._options, self._warmup)) as scope:
                for _ in self._results(scope and scope.without_layers(), self._warmup):
                    pass
        started = ended = self._clock()
        with traced(self._trace, _span_kind(MEASURE, self._options, self._measured)) as scope:
            for samples, result in self._results(scope, self._measured, self._warmup):
                ended = self._clock()
                self._record.add(samples, result, self._keep_predictions)
        if not self._record.sizes:
            raise EvaluationInterrupted("stopped before a batch was measured; nothing was published")
        complete = self._record.inputs == self._measured
        return Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at.replace(microsecond=created_at.microsecond // 1000 * 1000),
            status=Status.COMPLETE if complete else Status.INTERRUPTED,
            system=self._system.description,
            dataset=self._dataset.identity,
            options=self._options,
            batches=self._record.times(),
            elapsed_ns=ended - started,
            accuracy=self._record.accuracy.result(),
            failures=tuple(self._record.failures),
            predictions=tuple(self._record.predictions),
        )

    def _results(
        self, scope: TraceScope | None, count: int, done: int = 0
    ) -> Iterator[tuple[Sequence[Sample], BatchResult]]:
        """Runs the first ``count`` samples and yields each batch with its result, in order."""
        if not count or self._stop_requested():
            return
        waiting: deque[Sequence[Sample]] = deque()

        def batches() -> Iterator[Sequence[Sample]]:
            for batch in _batched(itertools.islice(self._dataset, count), self._options.batch_size):
                waiting.append(batch)
                yield batch

        total = self._warmup + self._measured
        with closing(_as_generator(self._system.predict_batches(batches(), scope))) as results:
            for result in results:
                samples = waiting.popleft()
                if self._options.fail_on_error and result.failures:
                    raise _stopped(result.failures[0], done, total)
                yield samples, result
                done += len(samples)
                self._on_progress(Progress(done, total))
                if self._stop_requested():
                    return


class _Record:
    """What the measured batches gave so far."""

    def __init__(self, system: SystemUnderTest) -> None:
        description = system.description
        meaningful = description.weights is Weights.PRETRAINED
        self.accuracy = AccuracyCounter(description.manifest, meaningful=meaningful)
        self.failures: list[InputFailure] = []
        self.predictions: list[InputPrediction] = []
        self.inputs = 0
        self.sizes: list[int] = []
        self._times: list[tuple[int, int, int, int]] = []

    def add(self, samples: Sequence[Sample], result: BatchResult, keep_predictions: bool) -> None:
        times = result.times
        self.inputs += len(samples)
        self.sizes.append(len(result.input_ids))
        self._times.append((times.read_ns, times.preprocess_ns, times.predict_ns, times.postprocess_ns))
        self.failures += result.failures
        self.accuracy.add(samples, result)
        if keep_predictions and isinstance(result.outputs, Classifications):
            labels = {sample.id: sample.label for sample in samples}
            self.predictions += (
                InputPrediction(id_, labels[id_], indices, probabilities)
                for id_, indices, probabilities in zip(
                    result.input_ids, result.outputs.indices, result.outputs.probabilities, strict=True
                )
            )

    def times(self) -> BatchTimes:
        columns = np.asarray(self._times, np.int64).reshape(-1, 4).T
        return BatchTimes(np.asarray(self.sizes, np.int64), *columns)


def _span_kind(name: str, options: EvaluationOptions, inputs: int) -> SpanKind:
    return SpanKind.of(name, TraceLevel.APPLICATION_TRACE, batch_size=options.batch_size, inputs=inputs)


def _stopped(failure: InputFailure, done: int, total: int) -> EvaluationFailed:
    return EvaluationFailed(
        f"input {failure.input_id} failed in {failure.stage.value}: {failure.message}; "
        f"stopped after {done} of {total} inputs because of fail_on_error, nothing was published"
    )


def _batched(samples: Iterable[Sample], size: int) -> Iterator[Sequence[Sample]]:
    iterator = iter(samples)
    while batch := tuple(itertools.islice(iterator, size)):
        yield batch


def _as_generator(results: Iterator[BatchResult]) -> Generator[BatchResult, None, None]:
    """Gives any iterator the ``close`` that a generator has."""
    yield from results
