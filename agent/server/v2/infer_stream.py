"""``ModelStreamInfer``: requests as they come, some of them worked on at once, answered in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Call = TypeVar("_Call")
_Answer = TypeVar("_Answer")

AHEAD = 16
"""Requests of a stream that are worked on, or answered and not yet sent, at once: enough for a batch."""


@dataclass(frozen=True, slots=True)
class _End:
    """Stands behind the last request; ``error`` is what ended the stream, if it did not just end."""

    error: BaseException | None = None


@dataclass(slots=True)
class OrderedAnswers(Generic[_Call, _Answer]):
    """Answers in the order of the requests.

    The requests are received in a thread, so that one that comes while another waits in its model's queue
    waits there, too, and can be predicted together with it.

    Attributes:
        calls: The requests; an error that this iterator raises comes out behind the last answer.
        answer: Answers one; it raises nothing but what ends the stream.
        ahead: The most requests at once.
    """

    calls: Iterator[_Call]
    answer: Callable[[_Call], _Answer]
    ahead: int = AHEAD
    _places: threading.Semaphore = field(init=False)
    _begun: queue.SimpleQueue[Future[_Answer] | _End] = field(init=False, default_factory=queue.SimpleQueue)
    _abandoned: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._places = threading.Semaphore(self.ahead)

    def results(self) -> Generator[_Answer, None, None]:
        """Yields the answers. Closing the generator gives up what has not begun."""
        with ThreadPoolExecutor(self.ahead, thread_name_prefix="infer-stream") as workers:
            threading.Thread(
                target=self._receive, args=(workers,), name="receive-requests", daemon=True
            ).start()
            try:
                while not isinstance(begun := self._begun.get(), _End):
                    yield begun.result()
                    self._places.release()
                if begun.error is not None:
                    raise begun.error
            finally:
                self._abandoned.set()
                self._places.release()  # the receiving thread may wait for one
                workers.shutdown(wait=False, cancel_futures=True)

    def _receive(self, workers: ThreadPoolExecutor) -> None:
        end = _End()
        try:
            for call in self.calls:
                self._places.acquire()
                if self._abandoned.is_set():
                    return
                self._begun.put(workers.submit(self.answer, call))
        except BaseException as error:  # noqa: BLE001 - raised again where the answers are taken
            end = _End(error)
        self._begun.put(end)
