"""A served model: one loaded model whose requests, from whatever client, wait in one queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from agent.batching import BatchingOptions
from agent.description import SystemDescription
from agent.results import Inferred
from agent.server.models.batch_worker import BatchWorker
from agent.server.models.model_statistics import ModelStatistics
from agent.server.models.request_queue import Request, RequestQueue
from agent.server.observing.call import is_about
from agent.server.observing.observers import QueueObserver
from agent.server.steps import Steps, Wait, taken
from agent.session import Session
from manifests.errors import HungError, InputError
from manifests.schema import ModelManifest

_SHORTEST_LOOK_NS = 1_000_000


def always() -> bool:
    """The caller that never goes away."""
    return True


class ServedModel:
    """One loaded model. Thread-safe; many may ask at once.

    With ``max_batch_size`` 1 each request is predicted by itself, however many inputs it has. Otherwise
    requests are put together, and one of more inputs than a batch may have is refused: split, it would be
    timed as what it is not.

    Args:
        session: The open model, which is this one's from now on.
        options: How requests are put together.
        clock: The clock of deadlines, in nanoseconds.
        unix_ns: The time since 1970.
        on_closed: Told when the model is closed.
        predict_timeout_ns: How long a prediction may take before nobody waits for it any more; None for any
            time.
        observer: Is told how long requests waited.
    """

    def __init__(
        self,
        session: Session,
        options: BatchingOptions,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        on_closed: Callable[[], None] = lambda: None,
        predict_timeout_ns: int | None = None,
        observer: QueueObserver | None = None,
    ) -> None:
        manifest = session.description.manifest
        self.session = session
        self.options = options
        self.statistics = ModelStatistics(unix_ns)
        self._name = f"{manifest.name} {manifest.version}"
        self._input = manifest.inputs[0].parameters.input_layer
        self._clock = clock
        self._closed = threading.Event()
        self._on_closed = on_closed
        self._predict_timeout_ns = predict_timeout_ns
        self._queue = RequestQueue(options.max_queue, self._name, clock)
        self._worker = BatchWorker(
            session, self._queue, options, self.statistics, clock, self._on_close, observer
        )

    @property
    def manifest(self) -> ModelManifest:
        """The model."""
        return self.session.description.manifest

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self.session.description

    @property
    def waiting(self) -> int:
        """The number of requests whose batch has not begun."""
        return len(self._queue)

    @property
    def busy_ns(self) -> int:
        """For how long the prediction under way has run; 0 while there is none."""
        since_ns = self._worker.busy_since_ns
        return 0 if since_ns is None else self._clock() - since_ns

    def infer(
        self,
        tensors: Mapping[str, NDArray[Any]],
        *,
        deadline_ns: int | None = None,
        is_active: Callable[[], bool] = always,
    ) -> Inferred:
        """Runs the model on one request, perhaps together with others, and waits for it.

        Args:
            tensors: By the manifest's ``input_layer``; the first axis is the batch.
            deadline_ns: After which time the answer is not wanted any more, on the clock; None is never.
            is_active: Whether the caller is still there; asked when the request's turn comes.

        Returns:
            The request's rows of the outputs, in memory that stays as it is, and the times.

        Raises:
            InputError: A name, shape, element type or number of inputs is not what the model takes.
            QueueFullError: As many requests wait as may.
            DeadlineError: The deadline passed. What had not begun by then is not predicted.
            RequestCancelledError: The caller had gone away when the request's turn came; it is not predicted.
            PredictionError: The framework failed.
            HungError: The prediction under way takes longer than one may.
            SessionError: The model was closed.
        """
        if set(tensors) != {self._input}:
            found = ", ".join(f'"{name}"' for name in tensors) or "none"
            raise InputError(f'model {self._name} takes one input, "{self._input}"; found {found}')
        return self.infer_checked(
            self._checked(tensors[self._input]), deadline_ns=deadline_ns, is_active=is_active
        )

    def infer_checked(
        self,
        batch: NDArray[Any],
        *,
        deadline_ns: int | None = None,
        is_active: Callable[[], bool] = always,
    ) -> Inferred:
        """Does the same for a batch that is what ``Session.checked`` returns; see ``infer``."""
        return taken(self.infer_steps(batch, deadline_ns=deadline_ns, is_active=is_active))

    def infer_steps(
        self,
        batch: NDArray[Any],
        *,
        deadline_ns: int | None = None,
        is_active: Callable[[], bool] = always,
    ) -> Steps[Inferred]:
        """Does the same in steps; see ``infer_checked``."""
        came_ns = self._clock()
        is_about(self.manifest.name)
        try:
            self._check_size(batch)
            self._check_not_hung()
            request = Request(batch, came_ns, deadline_ns, is_active)
            self._queue.put(request)
            yield from self._wait(request, deadline_ns)
            return request.outcome
        except BaseException:
            self.statistics.failed(self._clock() - came_ns)
            raise

    def close(self) -> None:
        """Takes no more requests, and frees the model once those that wait are answered.

        It returns at once; see ``wait_closed``. Calling it again does nothing.
        """
        self._queue.close()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Waits until the model is freed; False where a prediction goes on for longer."""
        return self._closed.wait(timeout_s)

    def _wait(self, request: Request, deadline_ns: int | None) -> Steps[None]:
        """Waits for an answer, as long as one may come. What has begun is not broken off: nobody hears of it.

        Raises:
            DeadlineError, HungError: There is none.
        """
        now_ns = self._clock()
        while True:
            left_ns = None if deadline_ns is None else deadline_ns - now_ns
            if self._predict_timeout_ns is not None:  # so long it may begin to hang at the earliest
                look_ns = max(_SHORTEST_LOOK_NS, self._predict_timeout_ns - self.busy_ns)
                left_ns = look_ns if left_ns is None else min(left_ns, look_ns)
            try:
                if (yield Wait(request, left_ns)):
                    return
                now_ns = self._clock()
                if deadline_ns is not None and now_ns >= deadline_ns:
                    raise self._queue.overdue()
                self._check_not_hung()
            except BaseException:  # or nobody goes on with the steps
                self._queue.leave(request)
                raise

    def _check_not_hung(self) -> None:
        limit_ns = self._predict_timeout_ns
        if limit_ns is not None and (busy_ns := self.busy_ns) > limit_ns:
            raise HungError(
                f"model {self._name}: the prediction under way has run for {busy_ns / 1e9:.1f} s, and may "
                f"take {limit_ns / 1e9:g} s; the agent may have to be restarted"
            )

    def _checked(self, batch: NDArray[Any]) -> NDArray[Any]:
        try:
            return self.session.checked(batch)
        except InputError as error:
            raise InputError(f'model {self._name}, input "{self._input}": {error}') from error

    def _check_size(self, batch: NDArray[Any]) -> None:
        limit = self.options.max_batch_size
        if 1 < limit < len(batch):
            raise InputError(
                f"model {self._name}: the request has {len(batch)} inputs; at most {limit} are taken "
                "(--max_batch_size)"
            )

    def _on_close(self) -> None:
        self._closed.set()
        self._on_closed()
