"""The thread of one model: it puts batches together, predicts them, and tells each request its rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.batching import Batcher, BatchingOptions
from agent.predictor import Tensors
from agent.results import Inferred, QueueTimes
from agent.server.models.model_statistics import ModelStatistics
from agent.server.models.request_queue import Request, RequestQueue
from agent.server.observing.observers import QueueObserver
from agent.session import Session
from manifests.errors import InputError, PredictionError

_log = logging.getLogger(__name__)


class BatchWorker:
    """Predicts what waits in a queue, in a thread of its own, and closes the model when the queue ends.

    Batches of several requests are copied into one tensor, whose memory is taken once. Where the framework
    fails on such a batch, each of its requests is predicted by itself, so that one that the model cannot take
    does not fail the others.

    Args:
        session: The loaded model.
        queue: The requests.
        options: How they are put together.
        statistics: Is told what is done.
        clock: The clock of the queue, in nanoseconds.
        on_closed: Told when the model is closed.
        observer: Is told how long requests waited.
    """

    def __init__(
        self,
        session: Session,
        queue: RequestQueue,
        options: BatchingOptions,
        statistics: ModelStatistics,
        clock: Callable[[], int],
        on_closed: Callable[[], None],
        observer: QueueObserver | None = None,
    ) -> None:
        self._session = session
        self._queue = queue
        self._max_batch_size = options.max_batch_size
        self._statistics = statistics
        self._clock = clock
        self._on_closed = on_closed
        self._observer = observer
        self._batcher = Batcher[Request](
            options,
            clock,
            came_ns=lambda request: request.came_ns,
            inputs=lambda request: request.inputs,
            wanted=queue.wanted,
        )
        self._memory: NDArray[Any] | None = None
        self.busy_since_ns: int | None = None
        """When the prediction under way began; None while there is none."""
        name = f"model {session.description.manifest.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while (batch := self._batcher.next(self._queue)) is not None:
                if requests := self._queue.begin(batch):
                    self._answer(requests)
                    # an idle model holds no request's memory
                    del requests
                del batch
        finally:
            try:
                self._session.close()
            except Exception:
                _log.exception("a model could not be closed")
                raise
            finally:
                self._on_closed()

    def _answer(self, requests: list[Request]) -> None:
        """Predicts a batch, and answers each of its requests."""
        begun_ns = self._clock()
        try:
            tensor = self._assemble(requests)
            self.busy_since_ns = self._clock()
            outputs, predict_ns = self._predict(tensor)
        except (InputError, PredictionError) as error:
            if len(requests) == 1:
                requests[0].answer(error)
                return
            for request in requests:
                self._answer([request])
            return
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is taken
            for request in requests:
                request.answer(error)
            return
        finally:
            self.busy_since_ns = None
        self._tell(requests, tensor, outputs, begun_ns, predict_ns)

    def _assemble(self, requests: list[Request]) -> NDArray[Any]:
        """The batch as one tensor."""
        first = requests[0].batch
        if len(requests) == 1:
            return first
        if self._memory is None:
            self._memory = np.empty((self._max_batch_size, *first.shape[1:]), first.dtype)
        end = 0
        for request in requests:
            self._memory[end : end + request.inputs] = request.batch
            end += request.inputs
        return self._memory[:end]

    def _predict(self, tensor: NDArray[Any]) -> tuple[Tensors, int]:
        """The model's outputs, each with as many rows as the batch.

        Raises:
            PredictionError: The model failed, or gave something else.
        """
        inferred = self._session.infer(tensor)
        for name, output in inferred.outputs.items():
            if output.ndim == 0 or len(output) != len(tensor):
                raise PredictionError(
                    f"output {name} has shape {list(output.shape)} for a batch of {len(tensor)} inputs"
                )
        return inferred.outputs, inferred.predict_ns

    def _tell(
        self,
        requests: list[Request],
        tensor: NDArray[Any],
        outputs: Mapping[str, NDArray[Any]],
        begun_ns: int,
        predict_ns: int,
    ) -> None:
        """Gives each request its rows, and its times."""
        predicted_ns = self._clock()
        batch_ns = max(0, predicted_ns - begun_ns - predict_ns)
        if self._memory is not None:  # a model may return its input, or a view of it; the next batch is there
            outputs = {
                name: output.copy() if np.may_share_memory(output, self._memory) else output
                for name, output in outputs.items()
            }
        size, start = len(tensor), 0
        queue_ns = 0
        answers = []
        for request in requests:
            end = start + request.inputs
            rows = outputs if len(requests) == 1 else {n: output[start:end] for n, output in outputs.items()}
            times = QueueTimes(begun_ns - request.came_ns, batch_ns, size)
            queue_ns += times.queue_ns
            answers.append(Inferred(rows, predict_ns, times))
            start = end
        self._statistics.answered(
            len(requests),
            size,
            queue_ns=queue_ns,
            assemble_ns=batch_ns,
            predict_ns=predict_ns,
            split_ns=self._clock() - predicted_ns,
        )
        for request, answer in zip(requests, answers, strict=True):
            request.answer(answer)
        if self._observer is not None:
            waited_ns = [begun_ns - request.came_ns for request in requests]
            self._observer.waited(self._session.description.manifest.name, waited_ns)
