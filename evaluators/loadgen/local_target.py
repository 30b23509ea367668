"""The local target: a session of this process under load, behind a bounded queue with dynamic batching."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.batching import Batcher, BatchingOptions
from agent.closeable import Closeable
from agent.description import SystemDescription
from agent.inputs import Input
from agent.results import BatchResult
from evaluators.loadgen.prepared_inputs import LoadInputs, PreparedInputs, ReadInputs
from evaluators.loadgen.target import Answers
from manifests.errors import InferscopeError, SessionError

Waiting: TypeAlias = tuple[int, int]
"""A query that waits: its number, and when it came, in nanoseconds."""
_CLOSE_TIMEOUT_S = 5.0
_NO_ANSWER = "the model gave no answer for the query"


class LocalSystem(Protocol):
    """What answers in this process, one batch at a time, such as ``agent.session.Session``."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    def predict(self, inputs: Sequence[Input]) -> BatchResult:
        """Predicts one batch of inputs that are still to be preprocessed."""
        ...

    def predict_tensor(self, batch: NDArray[Any]) -> BatchResult:
        """Predicts one batch of preprocessed inputs."""
        ...


class LocalTarget(Closeable):
    """A session under load; satisfies ``target.LoadTarget``.

    One thread predicts. Batches are put together of what waits (see ``Batcher``); inputs that are prepared
    are copied into one tensor, whose memory is taken once, and inputs that are only read are preprocessed
    within the batch, so that this counts to the latency.

    The session stays its owner's: ``close`` stops the thread, and closes nothing else.

    Args:
        session: The open model.
        inputs: Query n predicts input n modulo their number.
        max_batch_size: The most queries that are predicted together.
        max_queue_delay_ms: How long the first query of a batch waits for others, in milliseconds.
        max_queue: The most queries that may wait for their batch to begin; one more fails.
        clock: The clock of the run, in nanoseconds.

    Raises:
        ConfigurationError: A number is too small.
    """

    def __init__(
        self,
        session: LocalSystem,
        inputs: LoadInputs,
        *,
        max_batch_size: int = 1,
        max_queue_delay_ms: float = 0.0,
        max_queue: int = 10_000,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        batching = BatchingOptions(max_batch_size, max_queue_delay_ms, max_queue=max_queue)
        self._session = session
        self._clock = clock
        self._max_queue = max_queue
        self._ids = tuple(str(place) for place in range(max_batch_size))
        self._batcher = Batcher[Waiting](batching, clock, came_ns=itemgetter(1))
        self._predict = (
            _TensorBatches(session, inputs, max_batch_size)
            if isinstance(inputs, PreparedInputs)
            else _InputBatches(session, inputs)
        )
        self._runs: SimpleQueue[_Run | None] = SimpleQueue()
        self._run: _Run | None = None
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="local-target", daemon=True)
        self._worker.start()

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._session.description

    def begin(self, answers: Answers) -> None:
        """Is told of a run that begins; one that has not ended is broken off.

        Raises:
            SessionError: The target is closed.
        """
        if self._closed:
            raise SessionError("the load target is closed; make another")
        if self._run is not None:
            self._run.finish()
        self._run = _Run(answers)
        self._runs.put(self._run)

    def submit(self, query: int) -> None:
        """Puts a query into the queue; where that is full, the query has failed.

        Raises:
            SessionError: No run has begun.
        """
        run = self._run
        if run is None:
            raise SessionError("no run has begun; call begin before submit")
        now_ns = self._clock()
        if run.accepted - run.begun >= self._max_queue:
            run.answers.failed(query, now_ns, f"the queue is full, {self._max_queue} queries wait")
            return
        run.accepted += 1
        run.waiting.put((query, now_ns))

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for that time; what still waits then is not predicted.

        A prediction that is under way is not broken off: the next run's queries wait until it ends.
        """
        run, self._run = self._run, None
        if run is None:
            return
        run.wait(timeout_s)
        run.finish()

    def close(self) -> None:
        """Stops the thread, and waits for a prediction under way, but not for long; queries that wait fail.

        Calling it again does nothing. What hangs in a framework cannot be broken off.
        """
        if self._closed:
            return
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            run.break_off("the load target was closed while the query waited")
        self._runs.put(None)
        self._worker.join(_CLOSE_TIMEOUT_S)
        if run is not None:
            run.finish()

    def _work(self) -> None:
        while (run := self._runs.get()) is not None:
            while (batch := self._batcher.next(run.waiting)) is not None:
                if not run.finished:
                    self._answer(batch, run)

    def _answer(self, batch: list[Waiting], run: _Run) -> None:
        """Predicts a batch, and tells what became of its queries."""
        count = len(batch)
        begun_ns = self._clock()
        run.begun += count
        result: BatchResult | None = None
        reason = run.broken_off or _NO_ANSWER
        if not run.broken_off:
            try:
                result = self._predict([query for query, _ in batch])
            except Exception as error:  # noqa: BLE001 - whatever the model does, the load goes on
                reason = _line(error)
        done_ns = self._clock()
        with run.lock:
            if run.finished:
                return
            answers = run.answers
            if result is not None and result.input_ids == self._ids[:count]:
                batch_ns, predict_ns = _put_together_ns(result, done_ns - begun_ns), result.times.predict_ns
                for query, came_ns in batch:
                    answers.answered(
                        query,
                        done_ns,
                        queue_ns=begun_ns - came_ns,
                        batch_ns=batch_ns,
                        predict_ns=predict_ns,
                        batch_size=count,
                    )
            else:
                _tell_each(answers, batch, result, begun_ns, done_ns, reason)
            run.settled += count
            if run.ending and run.settled == run.accepted:
                run.idle.set()


class _Run:
    """The queries of one run. The thread that submits writes ``accepted``, the one that predicts the rest."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.waiting: SimpleQueue[Waiting | None] = SimpleQueue()
        self.accepted = 0
        self.begun = 0
        self.settled = 0
        self.ending = False
        self.finished = False
        self.broken_off = ""
        """Why queries whose batch has not begun fail; empty while they are predicted."""
        self.idle = threading.Event()
        self.lock = threading.Lock()
        """Held while outcomes are told, so that none is after the run has ended."""

    def wait(self, timeout_s: float) -> None:
        """Waits until each accepted query has its outcome, or for a time."""
        with self.lock:
            self.ending = True
            if self.settled == self.accepted:
                return
        self.idle.wait(timeout_s)

    def finish(self) -> None:
        """Lets nothing be told any more, and nothing be predicted that has not begun."""
        with self.lock:
            self.finished = True
        self.waiting.put(None)

    def break_off(self, reason: str) -> None:
        """Lets the queries fail whose batch has not begun."""
        self.broken_off = reason
        self.waiting.put(None)


class _TensorBatches:
    """Predicts prepared inputs: their rows, copied into memory that is taken once."""

    def __init__(self, session: LocalSystem, inputs: PreparedInputs, max_batch_size: int) -> None:
        self._session = session
        self._tensors = inputs.tensors
        shape = (max_batch_size, *self._tensors.shape[1:])
        self._batch = np.empty(shape, self._tensors.dtype) if max_batch_size > 1 else None

    def __call__(self, queries: list[int]) -> BatchResult:
        places = [query % len(self._tensors) for query in queries]
        if self._batch is None:
            return self._session.predict_tensor(self._tensors[places[0] : places[0] + 1])
        batch = self._batch[: len(places)]
        # mode "clip": with the default, the result would be copied once more
        np.take(self._tensors, places, axis=0, out=batch, mode="clip")
        return self._session.predict_tensor(batch)


class _InputBatches:
    """Predicts inputs that are still to be preprocessed; each is named by its place in the batch."""

    def __init__(self, session: LocalSystem, inputs: ReadInputs) -> None:
        self._session = session
        self._payloads = inputs.payloads

    def __call__(self, queries: list[int]) -> BatchResult:
        count = len(self._payloads)
        return self._session.predict(
            [Input(str(place), self._payloads[query % count]) for place, query in enumerate(queries)]
        )


def _tell_each(
    answers: Answers,
    batch: list[Waiting],
    result: BatchResult | None,
    begun_ns: int,
    done_ns: int,
    reason: str,
) -> None:
    """Tells what became of the queries of a batch of which not each was answered once."""
    answered = Counter(result.input_ids if result else ())
    reasons = {failure.input_id: failure.message for failure in result.failures} if result else {}
    predict_ns = result.times.predict_ns if result else -1
    batch_ns = _put_together_ns(result, done_ns - begun_ns) if result else -1
    for place, (query, came_ns) in enumerate(batch):
        for _ in range(answered[str(place)]):
            answers.answered(
                query,
                done_ns,
                queue_ns=begun_ns - came_ns,
                batch_ns=batch_ns,
                predict_ns=predict_ns,
                batch_size=len(batch),
            )
        if not answered[str(place)]:
            answers.failed(query, done_ns, reasons.get(str(place), reason))


def _put_together_ns(result: BatchResult, spent_ns: int) -> int:
    """How long a batch was put together, with the preprocessing of its inputs where there is any.

    It is all of the batch's time but the prediction and what follows it.
    """
    return max(0, spent_ns - result.times.predict_ns - result.times.postprocess_ns)


def _line(error: Exception) -> str:
    """An error as one line; one that is not of the program is named by its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InferscopeError) else f"{type(error).__name__}: {text}".rstrip(": ")
