"""A loaded model whose requests, from threads and event loops alike, wait in one queue, and a lease on it.

A language model is loaded, lent and unloaded like the others, and has a queue of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeAlias

from typing_extensions import TypeVar

from inferometer.agent.generation.engine import Engine, Generation
from inferometer.agent.inference.session import Session
from inferometer.agent.inference.stages import Inferred, SystemDescription
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.serving.batch_worker import QUEUE, BatchWorkers, SessionPredictor, open_instances
from inferometer.agent.serving.batching import NS_PER_US, BatchingOptions, PriorityQueue
from inferometer.agent.serving.observers import ModelStatistics, QueueObserver, is_about
from inferometer.agent.serving.request_queue import NS_PER_S, WAITING, Request, RequestQueue
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import HungError, InputError
from inferometer.manifests.schema import ModelManifest

_SHORTEST_LOOK_NS = 1_000_000


def always() -> bool:
    """Returns True: the caller never goes away."""
    return True


class Waker:
    """Wakes the tasks of one event loop that wait for requests.

    A signal to the loop costs a system call, and a batch answers many requests in a row. One signal therefore
    wakes all tasks whose requests are answered before the loop handles it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answered: deque[asyncio.Future[bool]] = deque()
        self._signalled = False

    async def wait(self, request: Request, timeout_ns: int | None) -> bool:
        """Waits for the answer to a request or the timeout; returns whether there is an answer."""
        future: asyncio.Future[bool] = self._loop.create_future()
        request.on_answer(partial(self._wake, future))
        if timeout_ns is None:
            return await future
        timer = self._loop.call_later(max(0, timeout_ns) / NS_PER_S, _settle, future, False)
        try:
            return await future
        finally:
            timer.cancel()

    def _wake(self, future: asyncio.Future[bool]) -> None:
        """Resumes a task; may be called in any thread."""
        self._answered.append(future)
        if not self._signalled:
            self._signalled = True
            with suppress(RuntimeError):  # the loop is closed, and its tasks with it
                self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._signalled = False  # first: an answer from here on signals again
        while self._answered:
            _settle(self._answered.popleft(), True)


def _settle(future: asyncio.Future[bool], answered: bool) -> None:
    if not future.done():
        future.set_result(answered)


def _shapes_of(request: Request) -> object:
    """Returns the shapes of the tensors without the batch axis; all requests of one batch share them."""
    return {name: array.shape[1:] for name, array in request.batch.items()}


class ServedModel:
    """A loaded model, which closes its sessions. Thread-safe.

    ``open_instance`` opens the further sessions of a model with several instances, which share the queue; if
    one cannot be opened, the first session is closed too.

    If ``max_batch_size`` is 1, each request is predicted alone, however many inputs it has. Otherwise,
    requests are batched, and one that exceeds the batch size is refused: splitting it would falsify its
    times. If it has dynamic axes, only requests of equal shapes are batched. Requests fail if a prediction
    takes longer than ``predict_timeout_ns``. ``clock`` is the clock of deadlines, in nanoseconds.
    ``statistics`` are those to continue.
    """

    def __init__(
        self,
        session: Session,
        options: BatchingOptions,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        thread_ns: Callable[[], int] = time.thread_time_ns,
        on_closed: Callable[[], None] = lambda: None,
        predict_timeout_ns: int | None = None,
        observer: QueueObserver | None = None,
        open_instance: Callable[[int], Session] | None = None,
        statistics: ModelStatistics | None = None,
    ) -> None:
        manifest = session.description.manifest
        self.session = session
        self.options = options
        self.statistics = statistics or ModelStatistics(unix_ns)
        self._name = f"{manifest.name} {manifest.version}"
        self._clock = clock
        self._closed = threading.Event()
        self._on_closed = on_closed
        self._predict_timeout_ns = predict_timeout_ns
        dynamic = any(each.is_dynamic for each in manifest.tensors)
        # how long a prediction takes depends on the size of a dynamic axis, which no mean tells
        inline = session.any_thread and not (dynamic or options.max_queue_delay_ms or options.pin)
        self._inline_ns = options.inline_predict_us * NS_PER_US if inline else 0.0
        self._wakers: dict[asyncio.AbstractEventLoop, Waker] = {}
        self._queue: RequestQueue[Request] = (
            PriorityQueue(options, self._name, clock)
            if options.has_policies
            else RequestQueue(options.max_queue, self._name, clock)
        )
        try:
            sessions = open_instances(session, options.instances, open_instance)
        except BaseException:
            session.close()
            raise
        self._sessions = sessions
        self._predictors = [
            SessionPredictor(each, options.max_batch_size, clock, thread_ns, number)
            for number, each in enumerate(sessions)
        ]
        self._workers = BatchWorkers(
            self._predictors,
            self._queue,
            options,
            clock,
            manifest.name,
            on_closed=self._on_close,
            statistics=self.statistics,
            observer=observer,
            form_of=_shapes_of if dynamic else None,
            processors=session.processors,
        )

    @property
    def manifest(self) -> ModelManifest:
        """The model's manifest."""
        return self.session.description.manifest

    @property
    def description(self) -> SystemDescription:
        """The model and the system that it runs on."""
        return self.session.description

    @property
    def waiting(self) -> int:
        """The number of requests whose batch has not begun."""
        return len(self._queue)

    @property
    def alive(self) -> int:
        """The number of instances whose process runs, and whose prediction does not hang."""
        return sum(each.is_alive for each in self._sessions)

    @property
    def busy_ns(self) -> int:
        """How long the longest prediction in progress has run, in nanoseconds; 0 if there is none."""
        since_ns = self._workers.busy_since_ns
        return 0 if since_ns is None else self._clock() - since_ns

    def _awaited_ns(self, request: Request | None) -> int:
        """Returns how long the prediction that a request waits for has run; see ``BatchWorkers.begun_ns``."""
        is_queued = request is None or request.state is WAITING
        since_ns = self._workers.begun_ns(None if is_queued else request)
        return 0 if since_ns is None else self._clock() - since_ns

    def infer(
        self,
        batch: Tensors,
        *,
        deadline_ns: int | None = None,
        is_active: Callable[[], bool] = always,
        trace: TraceScope | None = None,
    ) -> Inferred:
        """Runs the model on one request, perhaps together with others, and waits for it.

        ``batch`` is as ``ModelPreprocessor.checked`` returns it. The caller stops waiting at ``deadline_ns``
        on the clock; ``is_active`` returns whether the caller still waits; it is called at the request's
        turn. ``trace``, the request's own span on the clock, receives the spans of its wait and its batch.
        Returns the request's rows of the outputs, in memory that is not overwritten, and the times.

        Raises:
            InputError: The request has more inputs than a batch may have.
            QueueFullError: The queue is full.
            DeadlineError: The deadline passed. A request whose batch has not begun is not predicted.
            RequestCancelledError: The caller left before the request's turn; the request is not predicted.
            PredictionError: The framework failed.
            HungError: The prediction in progress takes too long.
            SessionError: The model was closed.
        """
        request = self._submit(batch, deadline_ns, is_active, trace)
        try:
            while not request.wait(self._next_look_ns(request)):
                self._check_waiting(request)
            return request.outcome
        except BaseException:
            self._give_up(request)
            raise

    async def infer_async(
        self,
        batch: Tensors,
        *,
        deadline_ns: int | None = None,
        is_active: Callable[[], bool] = always,
        priority: int = 0,
        timeout_ns: int | None = None,
        trace: TraceScope | None = None,
    ) -> Inferred:
        """Runs the model like ``infer``, but on an event loop, where waiting occupies no thread.

        An idle, quick model runs on the loop itself; see ``BatchingOptions.inline_predict_us``. A request
        whose task is cancelled before its batch has begun is not predicted. ``priority``, 0 for the default,
        and ``timeout_ns``, which limits the time in the queue, apply only to a model with queue policies.
        """
        request = self._submit(batch, deadline_ns, is_active, trace, priority, timeout_ns, inline=True)
        try:
            if request.is_answered:
                self._check_waiting(request)
                return request.outcome
            loop = asyncio.get_running_loop()
            waker = self._wakers.get(loop) or self._wakers.setdefault(loop, Waker(loop))
            while not await waker.wait(request, self._next_look_ns(request)):
                self._check_waiting(request)
            return request.outcome
        except BaseException:
            self._give_up(request)
            raise

    def close(self) -> None:
        """Accepts no more requests, and frees the model once the waiting ones are answered.

        Returns at once; see ``wait_closed``. Calling it again does nothing.
        """
        self._queue.close()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Waits until the model is freed; returns False if a prediction takes longer."""
        return self._closed.wait(timeout_s)

    def _submit(
        self,
        batch: Tensors,
        deadline_ns: int | None,
        is_active: Callable[[], bool],
        trace: TraceScope | None = None,
        priority: int = 0,
        timeout_ns: int | None = None,
        *,
        inline: bool = False,
    ) -> Request:
        """Queues a request, or answers it inline if ``inline`` is set and the model is quick."""
        if trace is not None:
            for predictor in self._predictors:
                predictor.traces = True
        came_ns = self._clock()
        is_about(self.manifest.name)
        try:
            request = Request(batch, came_ns, deadline_ns, is_active, trace)
            self._check_size(request.inputs)
            self._check_not_hung(None)
            if priority or timeout_ns is not None:
                request.priority, request.timeout_ns = priority, timeout_ns
            if not (inline and self._is_quick(request) and self._workers.answer_inline(request)):
                self._queue.put(request)
        except BaseException:
            self.statistics.failed(self._clock() - came_ns)
            raise
        return request

    def _is_quick(self, request: Request) -> bool:
        """Returns whether a request need not wait and predicting it is faster than switching threads."""
        return (
            self._predictors[0].mean_thread_ns < self._inline_ns
            and request.inputs == 1
            and request.trace is None
            and self.session.is_free
        )

    def _next_look_ns(self, request: Request) -> int | None:
        """Returns how long to wait for an answer before ``_check_waiting``; None sets no limit."""
        left_ns = None if request.deadline_ns is None else request.deadline_ns - self._clock()
        if request.rejected_ns is not None and request.state is WAITING:
            queue_ns = max(_SHORTEST_LOOK_NS, request.rejected_ns - self._clock())
            left_ns = queue_ns if left_ns is None else min(left_ns, queue_ns)
        if self._predict_timeout_ns is None:
            return left_ns
        look_ns = max(
            _SHORTEST_LOOK_NS, self._predict_timeout_ns - self._awaited_ns(request)
        )  # the earliest hang
        return look_ns if left_ns is None else min(left_ns, look_ns)

    def _check_waiting(self, request: Request) -> None:
        """Raises DeadlineError or HungError if waiting for an answer is pointless."""
        rejected_ns = request.rejected_ns
        if rejected_ns is not None and self._clock() >= rejected_ns and self._queue.leave(request):
            raise self._queue.expired()
        if request.deadline_ns is not None and self._clock() >= request.deadline_ns:
            raise self._queue.overdue()
        self._check_not_hung(request)

    def _give_up(self, request: Request) -> None:
        """Withdraws an unanswered request. A batch that has begun continues, and its answer is not read."""
        if self._queue.leave(request) and request.trace is not None:
            request.trace.add(QUEUE, request.came_ns, self._clock())
        self.statistics.failed(self._clock() - request.came_ns)

    def _check_not_hung(self, request: Request | None) -> None:
        """Raises HungError if the batch of a request hangs or, for one in the queue, all instances do."""
        limit_ns = self._predict_timeout_ns
        if limit_ns is not None and (busy_ns := self._awaited_ns(request)) > limit_ns:
            raise HungError(
                f"model {self._name}: the prediction under way has run for {busy_ns / 1e9:.1f} s, and may "
                f"take {limit_ns / 1e9:g} s; the agent may have to be restarted"
            )

    def _check_size(self, inputs: int) -> None:
        limit = self.options.max_batch_size
        if 1 < limit < inputs:
            raise InputError(
                f"model {self._name}: the request has {inputs} inputs; at most {limit} are accepted "
                "(--max_batch_size)"
            )

    def _on_close(self) -> None:
        self._closed.set()
        self._on_closed()


@dataclass(frozen=True, eq=False)
class ServedEngine:
    """A loaded language model, to whose ``engine`` requests go; otherwise like ``ServedModel``."""

    engine: Engine
    description: SystemDescription
    options: BatchingOptions
    statistics: ModelStatistics

    @property
    def manifest(self) -> ModelManifest:
        """The model's manifest."""
        return self.description.manifest

    @property
    def waiting(self) -> int:
        """The number of requests that have not joined."""
        return self.engine.waiting

    @property
    def alive(self) -> int:
        """1, until the model has been freed."""
        return int(self.engine.is_alive)

    @property
    def busy_ns(self) -> int:
        """See ``Engine``."""
        return self.engine.busy_ns

    def count(self, generation: Generation) -> None:
        """Counts a request that has ended; its prefill and steps are its prediction, which others share."""
        if generation.is_answered:
            spent_ns = generation.spent_ns()
            self.statistics.answered(
                *(1, 1),
                queue_ns=spent_ns["queue"],
                assemble_ns=0,
                predict_ns=spent_ns["prefill"] + spent_ns["steps"],
                split_ns=spent_ns["sampling"] + spent_ns["detokenizing"],
            )
        else:
            self.statistics.failed(time.perf_counter_ns() - generation.arrived_ns)

    def close(self) -> None:
        """Frees the model; returns at once."""
        self.engine.close()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Waits until the model has been freed; returns False if a step takes longer."""
        return self.engine.wait_closed(timeout_s)


LoadedModel: TypeAlias = ServedModel | ServedEngine
M = TypeVar("M", bound=LoadedModel, default=ServedModel)


@dataclass(slots=True, eq=False)
class Lease(Generic[M]):
    """A lease on a loaded model, which stays loaded until ``release`` or the end of a ``with`` block."""

    model: M
    _release: Callable[[], None] = field(repr=False)
    _released: bool = False

    def release(self) -> None:
        """Releases the model; calling it again does nothing."""
        if not self._released:
            self._released = True
            self._release()

    def __enter__(self) -> M:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()
