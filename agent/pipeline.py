"""The pipeline: read → preprocess → predict → postprocess, with a clock on every stage."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.gate import Gate
from agent.inputs import Input
from agent.postprocessing import Postprocessor
from agent.predictor import Predictor, Tensors
from agent.preparation import Clock, Fetch, Preparation, PreparedInput, Preparing, closed
from agent.preprocessing import ImagePreprocessor
from agent.results import BatchResult, InputFailure, Stage, StageTimes
from manifests.errors import InputError, PredictionError

BATCHES_AHEAD = 2
"""Batches that are prepared together, at the least."""
INPUTS_AHEAD = 256
"""Inputs that are prepared together, where the batches are small enough for more than ``BATCHES_AHEAD``."""
BYTES_AHEAD = 64 * 1024 * 1024
"""Memory that their tensors may take, unless ``BATCHES_AHEAD`` of them take more."""


def round_size(tensor_bytes: int, batch_size: int) -> int:
    """Returns the number of batches that are prepared together.

    Args:
        tensor_bytes: The memory that one preprocessed input takes.
        batch_size: Inputs in a batch.
    """
    inputs = min(INPUTS_AHEAD, BYTES_AHEAD // tensor_bytes)
    return max(BATCHES_AHEAD, inputs // max(1, batch_size))


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
        clock: The clock of the stage times.
    """

    def __init__(
        self,
        predictor: Predictor,
        preprocessor: ImagePreprocessor,
        postprocessor: Postprocessor,
        input_layer: str,
        *,
        fetch: Fetch,
        threads: int,
        overlap: bool = False,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._predictor = predictor
        self._preprocessor = preprocessor
        self._postprocessor = postprocessor
        self._input_layer = input_layer
        self._clock = clock
        self._ahead = threads > 0
        self._tensor_bytes = preprocessor.tensor_bytes
        self._gate = Gate(overlap)
        self._preparation = Preparation(preprocessor, fetch, self._gate, threads=threads, clock=clock)
        self._one_at_a_time = threading.Lock()
        self._closed = False

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Runs one batch through all stages. An input that fails is in the result's failures.

        Raises:
            InputError: The batch is empty.
            SessionError: The pipeline is closed.
        """
        return self._finish(list(self._preparation.begin(inputs)))

    def predict_tensor(self, batch: NDArray[Any]) -> BatchResult:
        """Runs a batch that is one preprocessed tensor, with the batch as its first axis.

        The inputs' ids are ``"0"``, ``"1"``, ….

        Raises:
            InputError: The batch is empty, or not of the shape or element type that the model takes.
            SessionError: The pipeline is closed.
        """
        started = self._clock()
        if batch.ndim == 0 or not len(batch):
            raise InputError("the batch is empty; it needs at least one input")
        tensor = self._preprocessor.check(batch, (len(batch), *self._preprocessor.dimensions))
        ids = tuple(map(str, range(len(batch))))
        return self._run(ids, tensor, (), read_ns=0, preprocess_ns=self._clock() - started)

    def predict_batches(self, batches: Iterable[Sequence[Input]]) -> Iterator[BatchResult]:
        """Runs batch after batch, in order, preparing a bounded number of them ahead.

        Without overlap it goes in rounds: some batches are prepared, and only when all of them are, and no
        thread of the preparation is at work any more, are they predicted one after the other. With overlap,
        batches are prepared while others are predicted. How many are prepared together is bounded by
        ``BATCHES_AHEAD``, or for small batches by ``INPUTS_AHEAD`` and ``BYTES_AHEAD``. Closing the iterator
        stops the work.

        Raises:
            InputError: A batch is empty.
            SessionError: The pipeline is closed.
        """
        source = iter(batches)
        return self._overlapping(source) if self._gate.overlap and self._ahead else self._in_rounds(source)

    def close(self) -> None:
        """Stops the threads and waits for a prediction under way; calling it again does nothing."""
        self._closed = True
        self._preparation.close()
        with self._one_at_a_time:
            pass

    def _in_rounds(self, source: Iterator[Sequence[Input]]) -> Iterator[BatchResult]:
        for first in source:
            batches = [first, *itertools.islice(source, self._round(first) - 1)]
            preparing = self._preparation.begin_round(batches)
            try:
                prepared = iter(list(preparing))
            finally:
                preparing.cancel()
            for batch in batches:
                yield self._finish(list(itertools.islice(prepared, len(batch))))

    def _overlapping(self, source: Iterator[Sequence[Input]]) -> Iterator[BatchResult]:
        waiting: deque[Preparing] = deque()
        try:
            for batch in source:
                waiting.append(self._preparation.begin(batch))
                if len(waiting) > self._round(batch):
                    yield self._finish(list(waiting.popleft()))
            while waiting:
                yield self._finish(list(waiting.popleft()))
        finally:
            for preparing in waiting:
                preparing.cancel()

    def _round(self, batch: Sequence[Input]) -> int:
        """The number of batches like this one that are prepared together."""
        return round_size(self._tensor_bytes, len(batch)) if self._ahead else 1

    def _finish(self, prepared: list[PreparedInput]) -> BatchResult:
        """Predicts a prepared batch, without the inputs that failed."""
        started = self._clock()
        good = [(p.input_id, p.tensor) for p in prepared if p.tensor is not None]
        failures = tuple(p.failure for p in prepared if p.failure)
        read_ns = sum(p.read_ns for p in prepared)
        preprocess_ns = sum(p.preprocess_ns for p in prepared)
        if not good:
            return BatchResult((), None, failures, StageTimes(read_ns, preprocess_ns, 0, 0))
        tensor = np.stack([tensor for _, tensor in good])
        preprocess_ns += self._clock() - started
        return self._run(tuple(id_ for id_, _ in good), tensor, failures, read_ns, preprocess_ns)

    def _run(
        self,
        ids: tuple[str, ...],
        tensor: NDArray[Any],
        failures: tuple[InputFailure, ...],
        read_ns: int,
        preprocess_ns: int,
    ) -> BatchResult:
        stage = Stage.PREDICT
        predict_ns = postprocess_ns = 0
        try:
            outputs, predict_ns = self._timed_predict({self._input_layer: tensor})
            stage = Stage.POSTPROCESS
            started = self._clock()
            predictions, usable = self._postprocessor(outputs, len(ids))
            postprocess_ns = self._clock() - started
        except PredictionError as error:
            failures += tuple(InputFailure(id_, stage, str(error)) for id_ in ids)
            return BatchResult(
                (), None, failures, StageTimes(read_ns, preprocess_ns, predict_ns, postprocess_ns)
            )
        if not usable.all():
            message = "the model's output is not a finite number"
            failures += tuple(
                InputFailure(id_, Stage.POSTPROCESS, message)
                for id_, fine in zip(ids, usable, strict=True)
                if not fine
            )
            ids = tuple(id_ for id_, fine in zip(ids, usable, strict=True) if fine)
        times = StageTimes(read_ns, preprocess_ns, predict_ns, postprocess_ns)
        return BatchResult(ids, predictions if ids else None, failures, times)

    def _timed_predict(self, inputs: Tensors) -> tuple[Tensors, int]:
        """Predicts, and times nothing but that: not the waiting for another batch, session or the gate."""
        with self._one_at_a_time, self._predictor.turn(), self._gate.predict():
            if self._closed:
                raise closed()
            started = self._clock()
            outputs = self._predictor.predict(inputs)
            return outputs, self._clock() - started
