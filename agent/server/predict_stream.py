"""Batches that come one by one over a stream, predicted by a pipeline that prepares some of them ahead."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from agent.inputs import Input
from agent.results import BatchResult
from agent.session import Session
from agent.tracing.scope import TraceScope

MAX_HELD = 256
"""Results of a round that wait for its end, at the most."""
BATCHES_WAITING = 2
"""Batches that are received and not yet in the pipeline; it bounds the memory of a stream."""


@dataclass(frozen=True, slots=True)
class StreamedBatch:
    """A batch of a stream.

    Attributes:
        inputs: The batch.
        more: Whether the client has announced another one that belongs to the same round.
    """

    inputs: Sequence[Input]
    more: bool = False


class _End:
    """Stands at the end of the requests; ``error`` is what ended them, if they did not just end."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class BatchStream:
    """Results for batches as they come, in order.

    A pipeline wants some batches before it gives the first result, while a client may wait for a result
    before it sends the next batch. The batches are therefore received in a thread, and the pipeline gets runs
    of them: a run ends whenever no further batch has come yet, and none was announced. A client that sends
    ahead gives the pipeline one long run.

    Args:
        batches: The batches; an error that this iterator raises comes out of the results.
    """

    def __init__(self, batches: Iterator[StreamedBatch]) -> None:
        self._source = batches
        self._received: queue.Queue[StreamedBatch | _End] = queue.Queue(BATCHES_WAITING)
        self._announced: deque[bool] = deque()  # of the batches in the pipeline, whether more was announced
        self._given = 0
        self._ended: _End | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="receive-batches", daemon=True)

    def results(
        self, session: Session, trace: TraceScope | None = None
    ) -> Generator[BatchResult, None, None]:
        """Yields one result a batch. Closing the iterator stops the work.

        Args:
            session: Predicts.
            trace: Where its spans go; None records none. The batches are counted through the stream.
        """
        self._thread.start()
        try:
            while (first := self._next(wait=True)) is not None:
                scope = trace and trace.from_batch(self._given)
                yield from self._answered(session.predict_batches(self._run(first), scope))
            if self._ended is not None and self._ended.error is not None:
                raise self._ended.error
        finally:
            self._abandoned.set()
            self._drain()

    def _answered(self, results: Iterator[BatchResult]) -> Generator[BatchResult, None, None]:
        """Gives the results of a round when all are there: sending one would disturb the next prediction."""
        held: list[BatchResult] = []
        for result in results:
            held.append(result)
            if not self._announced.popleft() or len(held) >= MAX_HELD:
                yield from held
                held.clear()
        yield from held

    def _run(self, first: StreamedBatch) -> Iterator[Sequence[Input]]:
        batch: StreamedBatch | None = first
        while batch is not None:
            self._announced.append(batch.more)
            self._given += 1
            yield batch.inputs
            batch = self._next(wait=batch.more)

    def _next(self, wait: bool) -> StreamedBatch | None:
        """The next batch; None at the end and, without ``wait``, when none has come yet."""
        if self._ended is not None:
            return None
        try:
            received = self._received.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(received, _End):
            self._ended = received
            return None
        return received

    def _receive(self) -> None:
        end = _End()
        try:
            for batch in self._source:
                self._received.put(batch)
                if self._abandoned.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the results are taken
            end = _End(error)
        self._received.put(end)

    def _drain(self) -> None:
        """Frees a receiving thread that waits to hand over a batch nobody will take."""
        while True:
            try:
                self._received.get_nowait()
            except queue.Empty:
                return
