"""The ``Dataset`` method's stream: an evaluation that runs in its own thread and tells how far it is."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator

import grpc

from agent.server.dataset_runner import DatasetOrder, DatasetRunner
from agent.session import Session
from manifests.errors import ConfigurationError
from protos.inferscope.v1 import predict_pb2

_ALL_PARTS = -1
_DEFAULT_WARMUP_PARTS = 1
_PROGRESS_INTERVAL_S = 0.25
"""Telling the progress takes the processor from the model that is being timed."""


def read_order(request: predict_pb2.DatasetRequest) -> DatasetOrder:
    """Returns what a request asks to be evaluated.

    Raises:
        ConfigurationError: It makes no sense.
    """
    parts = request.num_file_parts if request.HasField("num_file_parts") else _ALL_PARTS
    if request.batch_size < 1:
        raise ConfigurationError(f"batch_size is {request.batch_size}; at least 1")
    if parts < _ALL_PARTS or parts == 0:
        raise ConfigurationError(f"num_file_parts is {parts}; at least 1, or -1 for all")
    warmup = request.HasField("warmup_num_file_parts")
    return DatasetOrder(
        dataset_name=request.dataset_name or None,
        dataset_category=request.dataset_category or None,
        batch_size=request.batch_size,
        partition_list_size=request.partition_list_size or request.batch_size,
        num_file_parts=parts,
        warmup_num_file_parts=request.warmup_num_file_parts if warmup else _DEFAULT_WARMUP_PARTS,
        feature_limit=request.model.feature_limit,
        fail_on_error=request.fail_on_error,
    )


class DatasetStream:
    """One evaluation and its progress.

    Args:
        runner: Evaluates.
        session: The model.
        order: What to evaluate.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        runner: DatasetRunner,
        session: Session,
        order: DatasetOrder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._session = session
        self._order = order
        self._clock = clock
        self._stop = threading.Event()
        self._told_s = float("-inf")
        self._events: queue.SimpleQueue[tuple[int, int] | str | BaseException] = queue.SimpleQueue()

    def responses(self, context: grpc.ServicerContext) -> Generator[predict_pb2.DatasetResponse, None, None]:
        """Yields the progress, and at last the evaluation.

        When the client goes away, or this iterator is closed, the evaluation is told to stop and waited for.
        """
        if not context.add_callback(self._stop.set):  # it has gone away already
            self._stop.set()
        thread = threading.Thread(target=self._run, name="dataset", daemon=True)
        thread.start()
        try:
            while isinstance(event := self._newest(), tuple):
                progress = predict_pb2.DatasetProgress(done_inputs=event[0], total_inputs=event[1])
                yield predict_pb2.DatasetResponse(progress=progress)
            if isinstance(event, BaseException):
                raise event
            yield predict_pb2.DatasetResponse(evaluation_json=event)
        finally:
            self._stop.set()
            thread.join()

    def _newest(self) -> tuple[int, int] | str | BaseException:
        """Waits for an event; of several that have come, the last one tells everything."""
        event = self._events.get()
        while isinstance(event, tuple) and not self._events.empty():
            event = self._events.get()
        return event

    def _run(self) -> None:
        try:
            evaluation = self._runner(self._session, self._order, self._on_progress, self._stop.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again where the progress is taken
            self._events.put(error)
        else:
            self._events.put(evaluation)

    def _on_progress(self, done: int, total: int) -> None:
        now_s = self._clock()
        if done >= total or now_s - self._told_s >= _PROGRESS_INTERVAL_S:
            self._told_s = now_s
            self._events.put((done, total))
