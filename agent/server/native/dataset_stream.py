"""``Dataset``: an evaluation that runs in a thread and reports its progress."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from inferometer.agent.inference.session import Session
from inferometer.agent.server.rpc import CallContext, finished
from inferometer.manifests.errors import ConfigurationError
from inferometer.protos.inferometer.v1 import predict_pb2


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """The options of an evaluation that a client requests.

    Without a name, the dataset is that of the model's manifest; without a category, it may be of any.
    ``num_file_parts`` parts of ``partition_list_size`` inputs are evaluated (-1 evaluates all), after
    ``warmup_num_file_parts`` parts that are not measured. ``feature_limit`` is the number of best classes
    that are kept for each input; 0 keeps all.
    """

    dataset_name: str | None
    dataset_category: str | None
    batch_size: int
    partition_list_size: int
    num_file_parts: int
    warmup_num_file_parts: int
    feature_limit: int
    fail_on_error: bool


class DatasetRunner(Protocol):
    """Evaluates an open model on a dataset. Several calls may run at once, each with its own session."""

    def __call__(
        self,
        session: Session,
        order: DatasetOrder,
        on_progress: Callable[[int, int], None],
        stop_requested: Callable[[], bool],
    ) -> str:
        """Runs to the end or until a stop is requested; returns the evaluation as the store's JSON.

        After every batch it calls ``on_progress`` with the number of finished inputs and the total, and then
        ``stop_requested``, which returns True once nobody waits for the result. The caller closes the
        session.

        Raises:
            InferometerError: The evaluation fails.
        """


_ALL_PARTS = -1
_DEFAULT_WARMUP_PARTS = 1
_PROGRESS_INTERVAL_S = 0.25
"""Sending progress takes processor time from the model that is being timed."""


def read_order(request: predict_pb2.DatasetRequest) -> DatasetOrder:
    """Returns the evaluation that a request specifies; raises ConfigurationError if it is invalid."""
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
    """One evaluation and its progress."""

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
        self._sent_s = float("-inf")
        self._progress: predict_pb2.DatasetProgress | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def responses(self, call: CallContext) -> AsyncGenerator[predict_pb2.DatasetResponse, None]:
        """Yields the progress, and finally the evaluation.

        When the call is cancelled or this iterator is closed, it stops the evaluation and waits for it.
        """
        if not call.is_active():
            self._stop.set()
        running = asyncio.create_task(call.in_thread(self._run))
        running.add_done_callback(lambda _: self._changed.set())
        try:
            while await self._changed.wait():
                self._changed.clear()
                if self._progress is not None:
                    progress, self._progress = self._progress, None
                    yield predict_pb2.DatasetResponse(progress=progress)
                # if the evaluation ended together with its last progress, no later change signals it
                if running.done() and self._progress is None:
                    yield predict_pb2.DatasetResponse(evaluation_json=await running)
                    return
        finally:
            self._stop.set()
            running.cancel()  # an evaluation that still waits for a thread never starts
            await finished(running)
            del running  # drop the reference cycle: an error's traceback holds this frame

    def _run(self) -> str:
        return self._runner(self._session, self._order, self._on_progress, self._stop.is_set)

    def _on_progress(self, done: int, total: int) -> None:
        now_s = self._clock()
        if done >= total or now_s - self._sent_s >= _PROGRESS_INTERVAL_S:
            self._sent_s = now_s
            progress = predict_pb2.DatasetProgress(done_inputs=done, total_inputs=total)
            self._loop.call_soon_threadsafe(self._set_progress, progress)

    def _set_progress(self, progress: predict_pb2.DatasetProgress) -> None:
        """Replaces the progress that has not been sent yet; the latest one supersedes all others."""
        self._progress = progress
        self._changed.set()
