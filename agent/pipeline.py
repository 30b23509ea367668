"""The pipeline: read → preprocess → predict → postprocess, with a clock on every stage."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from agent.gate import Gate
from agent.inputs import Input
from agent.one_at_a_time import OneAtATime
from agent.postprocessing import Postprocessor
from agent.predictor import Predictor, Tensors
from agent.preparation import Clock, Fetch, Preparation, PreparedInput, Preparing
from agent.preparation import closed as closed_error
from agent.prepared_batch import PreparedBatch
from agent.preprocessor import Preprocessor
from agent.results import BatchResult, Infer, Inferred, Stage, StageTimes, shares_memory
from agent.rounds import round_size
from agent.trace_level import TraceLevel
from agent.tracing.profiler import Profiler
from agent.tracing.run import RunTracing
from agent.tracing.scope import TraceScope
from agent.tracing.span import AttributeValue
from manifests.errors import InputError, PredictionError

_Step = TypeVar("_Step")
InferSteps: TypeAlias = Callable[[NDArray[Any]], Generator[_Step, Any, Inferred]]
"""Runs a model on a preprocessed batch, in steps that are not known here."""
PredictSteps: TypeAlias = Generator[_Step, Any, BatchResult]


class Pipeline:
    """Runs batches through the four stages. Thread-safe; one batch is predicted at a time.

    Args:
        predictor: The loaded model.
        preprocessor: Makes input tensors.
        postprocessor: Reads output tensors.
        input_layer: The name of the model's input.
        fetch: Gets what a URL names.
        threads: Threads that read and preprocess; 0 does both in the calling thread, with nothing ahead.
        overlap: Whether inputs are prepared while a batch is predicted.
        patience_s: See ``Gate`` and ``OneAtATime``.
        clock: The clock of the stage times, and of the recorders that spans go to.
        attributes: What the spans of predictions are said to be of.
    """

    def __init__(
        self,
        predictor: Predictor,
        preprocessor: Preprocessor,
        postprocessor: Postprocessor,
        input_layer: str,
        *,
        fetch: Fetch,
        threads: int,
        overlap: bool = False,
        patience_s: float | None = None,
        clock: Clock = time.perf_counter_ns,
        attributes: Mapping[str, AttributeValue] = MappingProxyType({}),
    ) -> None:
        self._predictor = predictor
        self._preprocessor = preprocessor
        self._postprocessor = postprocessor
        self._input_layer = input_layer
        self._clock = clock
        self._ahead = threads > 0
        self._tensor_bytes = preprocessor.tensor_bytes
        self._gate = Gate(overlap, patience_s)
        self._preparation = Preparation(preprocessor, fetch, self._gate, threads=threads, clock=clock)
        self._attributes = attributes
        self._profiler: Profiler | None = None
        self._profiled_level = TraceLevel.NO_TRACE
        self._one_at_a_time = OneAtATime(patience_s)
        self._closed = False

    def predict(self, inputs: Sequence[Input], infer: Infer | None = None) -> BatchResult:
        """Runs one batch through all stages. An input that fails is in the result's failures.

        Args:
            inputs: The batch.
            infer: Runs the model, such as together with the inputs of others; None runs it here.

        Raises:
            InputError: The batch is empty.
            SessionError: The pipeline is closed.
        """
        return self._finish(list(self._preparation.begin(inputs)), infer=infer)

    def infer(self, batch: NDArray[Any]) -> Inferred:
        """Runs the model alone, on a batch as ``checked`` returns it.

        Raises:
            PredictionError: The framework failed.
            SessionError: The pipeline is closed.
        """
        return self._infer(batch, None)

    def checked(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Returns a batch of preprocessed inputs as the model takes it.

        Raises:
            InputError: The batch is empty, or not of the shape or element type that the model takes.
        """
        if batch.ndim == 0 or not len(batch):
            raise InputError("the batch is empty; it needs at least one input")
        return self._preprocessor.check(batch, (len(batch), *self._preprocessor.dimensions))

    def predict_tensor(
        self, batch: NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Runs a batch that is one preprocessed tensor, with the batch as its first axis.

        The inputs' ids are ``"0"``, ``"1"``, ….

        Args:
            batch: The batch.
            trace: Where spans go.
            infer: See ``predict``; not with ``trace``.

        Raises:
            InputError: The batch is empty, or not of the shape or element type that the model takes.
            SessionError: The pipeline is closed.
            PredictionError: The framework's profiler cannot be used.
        """
        prepared, tensor, started, ended = self._prepared_tensor(batch)
        if trace is None:
            return self._run(prepared, tensor, infer=infer)
        tracing = self._tracing(trace)
        with self._collecting(tracing):
            tracing.begin_tensor(len(prepared.ids), started, ended)
            begun = self._clock()
            result = self._run(prepared, tensor, tracing)
            tracing.end_batch(begun, self._clock())
        return result

    def tensor_steps(self, batch: NDArray[Any], infer: InferSteps[_Step]) -> PredictSteps[_Step]:
        """Does the same in the steps of what runs the model; see ``predict_tensor``."""
        prepared, tensor, _, _ = self._prepared_tensor(batch)
        try:
            inferred = yield from infer(tensor)
        except PredictionError as error:
            return prepared.failed(Stage.PREDICT, error)
        return self._answered(prepared, inferred)

    def _prepared_tensor(self, batch: NDArray[Any]) -> tuple[PreparedBatch, NDArray[Any], int, int]:
        """A batch that is one tensor, that tensor, and when its preparation began and ended."""
        started = self._clock()
        tensor = self.checked(batch)
        ids = tuple(map(str, range(len(batch))))
        ended = self._clock()
        return PreparedBatch(ids, read_ns=0, preprocess_ns=ended - started), tensor, started, ended

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Runs batch after batch, in order, preparing a bounded number of them ahead.

        Without overlap it goes in rounds: some batches are prepared, and only when all of them are, and no
        thread of the preparation is at work any more, are they predicted one after the other. With overlap,
        batches are prepared while others are predicted. How many are prepared together is bounded by
        ``BATCHES_AHEAD``, or for small batches by ``INPUTS_AHEAD`` and ``BYTES_AHEAD``. Closing the iterator
        stops the work.

        Args:
            batches: The batches.
            trace: Where spans go.

        Raises:
            InputError: A batch is empty.
            SessionError: The pipeline is closed.
            PredictionError: The framework's profiler cannot be used.
        """
        source = iter(batches)
        tracing = self._tracing(trace) if trace else None
        overlapping = self._gate.overlap and self._ahead
        results = self._overlapping(source, tracing) if overlapping else self._in_rounds(source, tracing)
        return results if tracing is None else self._collected(results, tracing)

    def close(self) -> None:
        """Stops the threads and waits for a prediction under way; calling it again does nothing."""
        self._closed = True
        self._preparation.close()
        with self._one_at_a_time.whenever():
            profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with self._predictor.turn():
                profiler.close()

    def _tracing(self, trace: TraceScope) -> RunTracing:
        return RunTracing(trace, self._open_profiler(trace), self._attributes)

    def _open_profiler(self, trace: TraceScope) -> Profiler | None:
        """The one profiler of the model, where the level asks for layers and the framework has any."""
        recorder = trace.recorder
        if not recorder.wants(TraceLevel.FRAMEWORK_TRACE):
            return None
        with self._one_at_a_time, self._predictor.turn():
            if self._closed:
                raise closed_error()
            if self._profiler is not None and self._profiled_level is not recorder.level:
                self._profiler.close()
                self._profiler = None
            if self._profiler is None:
                self._profiler = self._predictor.profiler(recorder.level)
                self._profiled_level = recorder.level
        if self._profiler is None:
            recorder.note(f"no layers: {self._predictor.manifest.framework.name} has no profiler here")
        return self._profiler

    def _collected(
        self, results: Generator[BatchResult, None, None], tracing: RunTracing
    ) -> Iterator[BatchResult]:
        with self._collecting(tracing), closing(results):
            yield from results

    @contextmanager
    def _collecting(self, tracing: RunTracing) -> Iterator[None]:
        """A run; at its end the profiler's last spans are taken."""
        try:
            yield
        finally:
            with self._one_at_a_time, self._predictor.turn():
                if not self._closed:
                    tracing.collect()

    def _in_rounds(
        self, source: Iterator[Sequence[Input]], tracing: RunTracing | None
    ) -> Generator[BatchResult, None, None]:
        try:
            for first in source:
                batches = [first, *itertools.islice(source, self._round(first) - 1)]
                preparing = self._preparation.begin_round(batches)
                try:
                    prepared = iter(list(preparing))
                finally:
                    preparing.cancel()
                for batch in batches:
                    inputs = list(itertools.islice(prepared, len(batch)))
                    result = self._finish(inputs, tracing)
                    if not shares_memory(result.outputs, inputs[0].batch):
                        self._preparation.take_back(inputs[0].batch)
                    yield result
        finally:
            self._preparation.forget_spare()

    def _overlapping(
        self, source: Iterator[Sequence[Input]], tracing: RunTracing | None
    ) -> Generator[BatchResult, None, None]:
        waiting: deque[Preparing] = deque()
        try:
            for batch in source:
                waiting.append(self._preparation.begin(batch))
                if len(waiting) > self._round(batch):
                    yield self._finish(list(waiting.popleft()), tracing)
            while waiting:
                yield self._finish(list(waiting.popleft()), tracing)
        finally:
            for preparing in waiting:
                preparing.cancel()

    def _round(self, batch: Sequence[Input]) -> int:
        """The number of batches like this one that are prepared together."""
        return round_size(self._tensor_bytes, len(batch)) if self._ahead else 1

    def _finish(
        self, prepared: list[PreparedInput], tracing: RunTracing | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a prepared batch, without the inputs that failed."""
        if tracing is not None:
            tracing.begin_batch(prepared)
        started = self._clock()
        result = self._predict_prepared(prepared, started, tracing, infer)
        if tracing is not None:
            tracing.end_batch(started, self._clock())
        return result

    def _predict_prepared(
        self, prepared: list[PreparedInput], started: int, tracing: RunTracing | None, infer: Infer | None
    ) -> BatchResult:
        good = [p for p in prepared if p.failure is None]
        failures = tuple(p.failure for p in prepared if p.failure)
        read_ns = sum(p.read_ns for p in prepared)
        preprocess_ns = sum(p.preprocess_ns for p in prepared)
        if not good:
            return BatchResult((), None, failures, StageTimes(read_ns, preprocess_ns, 0, 0))
        tensor = good[0].batch
        if len(good) < len(prepared):
            tensor = tensor[[p.place for p in good]]
        preprocess_ns += self._clock() - started
        batch = PreparedBatch(tuple(p.input_id for p in good), read_ns, preprocess_ns, failures)
        return self._run(batch, tensor, tracing, infer)

    def _run(
        self,
        batch: PreparedBatch,
        tensor: NDArray[Any],
        tracing: RunTracing | None = None,
        infer: Infer | None = None,
    ) -> BatchResult:
        try:
            inferred = infer(tensor) if infer else self._infer(tensor, tracing)
        except PredictionError as error:
            return batch.failed(Stage.PREDICT, error)
        return self._answered(batch, inferred, tracing)

    def _answered(
        self, batch: PreparedBatch, inferred: Inferred, tracing: RunTracing | None = None
    ) -> BatchResult:
        """The result of a batch by what the model gave for it."""
        started = self._clock()
        try:
            predictions, usable = self._postprocessor(inferred.outputs, len(batch.ids))
        except PredictionError as error:
            return batch.failed(Stage.POSTPROCESS, error, inferred.predict_ns, inferred.queue)
        ended = self._clock()
        if tracing is not None:
            tracing.after_postprocess(started, ended)
        return batch.answered(predictions, usable, inferred.predict_ns, ended - started, inferred.queue)

    def _infer(self, batch: NDArray[Any], tracing: RunTracing | None) -> Inferred:
        """Predicts, and times nothing but that: not the waiting for another batch, session or the gate."""
        inputs = {self._input_layer: batch}
        with self._one_at_a_time, self._predictor.turn(), self._gate.predict():
            if self._closed:
                raise closed_error()
            if tracing is not None:
                return self._traced_predict(inputs, tracing)
            started = self._clock()
            outputs = self._predictor.predict(inputs)
            return Inferred(outputs, self._clock() - started)

    def _traced_predict(self, inputs: Tensors, tracing: RunTracing) -> Inferred:
        tracing.before_predict()
        started = self._clock()
        try:
            outputs = self._predictor.predict(inputs)
        except BaseException:
            tracing.after_predict(started, self._clock(), failed=True)
            raise
        ended = self._clock()
        tracing.after_predict(started, ended)
        return Inferred(outputs, ended - started)
