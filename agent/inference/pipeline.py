"""The pipeline: read → preprocess → predict → postprocess, with each stage timed."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.inference.predictor import Predictor, PredictorWatch
from inferometer.agent.inference.run_tracing import RunTracing
from inferometer.agent.inference.stages import (
    BatchResult,
    Clock,
    Gate,
    Infer,
    Inferred,
    InputFailure,
    Postprocessor,
    Preparation,
    PreparedInput,
    Preparing,
    QueueTimes,
    Stage,
    StageTimes,
    round_size,
)
from inferometer.agent.inference.stages import closed as closed_error
from inferometer.agent.preprocessing.inputs import Fetch, Input, Origin, Tensors, batch_size
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.tracing.recorder import AttributeValue, Profiler, TraceLevel, TraceScope
from inferometer.manifests.errors import HungError, PredictionError

_SHORTEST_WAIT_S = 0.001


class OneAtATime:
    """A lock as a context manager; waiters give up when a holder has kept it longer than ``timeout_s``."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._held_since_s = 0.0

    def __enter__(self) -> None:
        """Waits for the lock; raises HungError if the holder has kept it for too long."""
        if not self._lock.acquire(blocking=False):
            self._wait()
        self._held_since_s = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def is_free(self) -> bool:
        """Returns whether no thread holds the lock."""
        return not self._lock.locked()

    @contextmanager
    def whenever(self) -> Iterator[None]:
        """Holds the lock, waiting for it without a time limit."""
        with self._lock:
            self._held_since_s = time.monotonic()
            yield

    def _wait(self) -> None:
        if (timeout_s := self._timeout_s) is None:
            self._lock.acquire()
            return
        left_s = self._held_since_s + timeout_s - time.monotonic()
        while not self._lock.acquire(timeout=max(_SHORTEST_WAIT_S, left_s)):
            left_s = self._held_since_s + timeout_s - time.monotonic()
            if left_s <= 0:
                raise HungError(
                    f"the prediction under way has run for {timeout_s - left_s:.1f} s, and may take "
                    f"{timeout_s:g} s; the agent may have to be restarted"
                )


@dataclass(frozen=True, slots=True)
class _PreparedBatch:
    """A batch's inputs in the order of the tensor's rows, the inputs that failed, and the times so far."""

    ids: tuple[str, ...]
    read_ns: int
    preprocess_ns: int
    failures: tuple[InputFailure, ...] = ()
    origins: tuple[Origin | None, ...] = ()

    def failed(
        self, stage: Stage, error: Exception, predict_ns: int = 0, queue: QueueTimes | None = None
    ) -> BatchResult:
        """Returns the result of a batch none of whose inputs was predicted."""
        failures = self.failures + tuple(InputFailure(id_, stage, str(error)) for id_ in self.ids)
        return BatchResult((), None, failures, self.times(predict_ns, 0), queue)

    def times(self, predict_ns: int, postprocess_ns: int) -> StageTimes:
        """Returns the times of the whole batch."""
        return StageTimes(self.read_ns, self.preprocess_ns, predict_ns, postprocess_ns)


class Pipeline:
    """Runs batches through the four stages. Thread-safe; one batch is predicted at a time.

    ``threads`` threads read and preprocess; with 0, the calling thread does both and nothing is prepared
    ahead. With ``overlap``, inputs are also prepared while a batch is predicted. All predictions go through
    the ``watch``, whose timeout is passed to ``Gate`` and ``OneAtATime``. Stage times and span recorders use
    the same ``clock``. Spans of predictions get the ``attributes`` and the device.
    """

    def __init__(
        self,
        predictor: Predictor,
        preprocessor: ModelPreprocessor,
        postprocessor: Postprocessor,
        *,
        fetch: Fetch,
        threads: int,
        overlap: bool = False,
        watch: PredictorWatch | None = None,
        clock: Clock = time.perf_counter_ns,
        attributes: Mapping[str, AttributeValue] = MappingProxyType({}),
    ) -> None:
        timeout_s = watch.timeout_s if watch else None
        self._predictor = predictor
        self._predict = partial(watch.predict, predictor) if watch else predictor.predict
        self._preprocessor = preprocessor
        self._postprocessor = postprocessor
        self._clock = clock
        self._ahead = threads > 0
        self._gate = Gate(overlap, timeout_s)
        self._preparation = Preparation(
            preprocessor,
            fetch,
            self._gate,
            threads=threads,
            clock=clock,
            keep_origins=postprocessor.wants_inputs,
        )
        self._attributes = {**attributes, "device": str(predictor.options.device)}
        self._profiler: Profiler | None = None
        self._profiled_level = TraceLevel.NO_TRACE
        self._one_at_a_time = OneAtATime(timeout_s)
        self._closed = False

    def predict(
        self, inputs: Sequence[Input], infer: Infer | None = None, trace: TraceScope | None = None
    ) -> BatchResult:
        """Runs one batch through all stages; inputs that fail are listed in the result's failures.

        ``infer`` runs the model, for instance in a batch with other requests; None runs it directly.
        ``trace`` receives the spans, except those recorded by ``infer``.

        Raises:
            InputError: The batch is empty.
            SessionError: The pipeline is closed.
        """
        tracing = None if trace is None else RunTracing(trace, None, self._attributes)
        return self._finish(list(self._preparation.begin(inputs)), tracing, infer)

    def infer(self, batch: Tensors, tracing: RunTracing | None = None) -> Inferred:
        """Runs only the model, on a batch as ``ModelPreprocessor.checked`` returns it.

        Only the model is timed: waits for other batches, for other sessions and at the gate are not included.

        Raises:
            PredictionError: The framework failed.
            SessionError: The pipeline is closed.
        """
        with self._one_at_a_time, self._predictor.turn(), self._gate.predict():
            if self._closed:
                raise closed_error()
            if tracing is not None:
                return self._traced_predict(batch, tracing)
            started = self._clock()
            outputs = self._predict(batch)
            return Inferred(outputs, self._clock() - started)

    def recover(self) -> None:
        """Waits until ``infer`` can predict; raises HungError, or an error of ``Predictor.load``."""
        with self._one_at_a_time, self._predictor.turn():
            pass

    @property
    def is_free(self) -> bool:
        """Whether ``infer`` would start without waiting for another batch or a preparation."""
        return self._one_at_a_time.is_free and self._gate.is_free

    @contextmanager
    def traced_batch(
        self, trace: TraceScope, name: str, size: int, facts: Mapping[str, AttributeValue]
    ) -> Generator[RunTracing, None, None]:
        """Records a batch of several requests as a span with this name; yields the trace for ``infer``.

        ``facts`` are further attributes of the span.

        Raises:
            PredictionError: The framework's profiler cannot be used.
            SessionError: The pipeline is closed.
        """
        attributes = {**self._attributes, **facts}
        tracing = RunTracing(trace, self._open_profiler(trace), attributes, name)
        with self._collecting(tracing):
            tracing.begin(size)
            begun = self._clock()
            try:
                yield tracing
            finally:
                tracing.end_batch(begun, self._clock())

    def predict_tensor(
        self, batch: Tensors | NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Runs a batch of preprocessed tensors, given by name, each with the batch as its first axis.

        A bare array is taken as the tensor of a model with only one.

        The inputs' ids are ``"0"``, ``"1"``, …. ``trace`` receives the spans. ``infer`` is described in
        ``predict``; it must not be given for traced batches.

        Raises:
            InputError: The batch is empty, or a name, shape or element type does not fit the model.
            SessionError: The pipeline is closed.
            PredictionError: The framework's profiler cannot be used.
        """
        started = self._clock()
        prepared, tensors = self._prepared_tensors(batch, started)
        if trace is None:
            return self._run(prepared, tensors, infer=infer)
        tracing = RunTracing(trace, self._open_profiler(trace), self._attributes)
        with self._collecting(tracing):
            tracing.begin_tensor(len(prepared.ids), started, started + prepared.preprocess_ns)
            begun = self._clock()
            result = self._run(prepared, tensors, tracing)
            tracing.end_batch(begun, self._clock())
        return result

    async def predict_tensor_async(
        self, batch: Tensors | NDArray[Any], infer: Callable[[Tensors], Awaitable[Inferred]]
    ) -> BatchResult:
        """Runs a batch like ``predict_tensor``, but awaits the model in an event loop."""
        prepared, tensors = self._prepared_tensors(batch, self._clock())
        try:
            inferred = await infer(tensors)
        except PredictionError as error:
            return prepared.failed(Stage.PREDICT, error)
        return self._answered(prepared, inferred)

    def _prepared_tensors(
        self, batch: Tensors | NDArray[Any], started: int
    ) -> tuple[_PreparedBatch, Tensors]:
        tensors = self._preprocessor.checked(batch)
        ids = tuple(map(str, range(batch_size(tensors))))
        return _PreparedBatch(ids, read_ns=0, preprocess_ns=self._clock() - started), tensors

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Runs batch after batch in order and prepares a bounded number ahead; ``trace`` receives the spans.

        Without overlap, batches run in rounds: several batches are prepared, and once all preparation threads
        are idle, they are predicted one after the other. With overlap, batches are prepared while others are
        predicted. ``BATCHES_AHEAD``, or for small batches ``INPUTS_AHEAD`` and ``BYTES_AHEAD``, limits how
        many are prepared together. Closing the iterator stops the work.

        Raises:
            InputError: A batch is empty.
            SessionError: The pipeline is closed.
            PredictionError: The framework's profiler cannot be used.
        """
        source = iter(batches)
        tracing = RunTracing(trace, self._open_profiler(trace), self._attributes) if trace else None
        overlapping = self._gate.overlap and self._ahead
        results = self._overlapping(source, tracing) if overlapping else self._in_rounds(source, tracing)
        return results if tracing is None else self._collected(results, tracing)

    def close(self) -> None:
        """Stops the threads and waits for a running prediction; calling it again does nothing."""
        self._closed = True
        self._preparation.close()
        with self._one_at_a_time.whenever():
            profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with self._predictor.turn():
                profiler.close()

    def _open_profiler(self, trace: TraceScope) -> Profiler | None:
        """Returns the model's profiler, if the level includes layers and the framework has a profiler."""
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
        """Wraps a run and collects the profiler's last spans when the run ends."""
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
                    if not result.shares_memory(inputs[0].batch):
                        self._preparation.take_back(inputs[0].batch, len(batch))
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
        """Returns how many batches of this size are prepared together."""
        return round_size(self._preprocessor.bytes_ahead, len(batch)) if self._ahead else 1

    def _finish(
        self, prepared: list[PreparedInput], tracing: RunTracing | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a prepared batch, except for the inputs that failed."""
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
        reasons = self._preprocessor.misfits([p.rows for p in good])
        if any(reasons):
            failures += tuple(
                InputFailure(p.input_id, Stage.PREPROCESS, reason)
                for p, reason in zip(good, reasons, strict=True)
                if reason
            )
            good = [p for p, reason in zip(good, reasons, strict=True) if not reason]
        read_ns = sum(p.read_ns for p in prepared)
        preprocess_ns = sum(p.preprocess_ns for p in prepared)
        if not good:
            return BatchResult((), None, failures, StageTimes(read_ns, preprocess_ns, 0, 0))
        places = [p.place for p in good] if len(good) < len(prepared) else None
        tensors = self._preprocessor.assembled(good[0].batch, places, [p.rows for p in good])
        preprocess_ns += self._clock() - started
        origins = tuple(p.origin for p in good) if self._postprocessor.wants_inputs else ()
        batch = _PreparedBatch(tuple(p.input_id for p in good), read_ns, preprocess_ns, failures, origins)
        return self._run(batch, tensors, tracing, infer)

    def _run(
        self,
        batch: _PreparedBatch,
        tensors: Tensors,
        tracing: RunTracing | None = None,
        infer: Infer | None = None,
    ) -> BatchResult:
        try:
            inferred = infer(tensors) if infer else self.infer(tensors, tracing)
        except PredictionError as error:
            return batch.failed(Stage.PREDICT, error)
        return self._answered(batch, inferred, tracing)

    def _answered(
        self, batch: _PreparedBatch, inferred: Inferred, tracing: RunTracing | None = None
    ) -> BatchResult:
        """Returns the result of a batch, given the outputs of the model."""
        started = self._clock()
        try:
            outputs, usable = self._postprocessor(inferred.outputs, len(batch.ids), batch.origins)
        except PredictionError as error:
            return batch.failed(Stage.POSTPROCESS, error, inferred.predict_ns, inferred.queue)
        ended = self._clock()
        if tracing is not None:
            tracing.after_postprocess(started, ended)
        ids, failures = batch.ids, batch.failures
        if not usable.all():  # the outputs have the other rows only
            reason, rows = self._postprocessor.invalid_row, list(zip(ids, usable, strict=True))
            ids = tuple(id_ for id_, fine in rows if fine)
            failures += tuple(InputFailure(id_, Stage.POSTPROCESS, reason) for id_, fine in rows if not fine)
        times = batch.times(inferred.predict_ns, ended - started)
        return BatchResult(ids, outputs if ids else None, failures, times, inferred.queue)

    def _traced_predict(self, inputs: Tensors, tracing: RunTracing) -> Inferred:
        tracing.before_predict()
        started = self._clock()
        try:
            outputs = self._predict(inputs)
        except BaseException:
            tracing.after_predict(started, self._clock(), failed=True)
            raise
        ended = self._clock()
        tracing.after_predict(started, ended)
        return Inferred(outputs, ended - started)
