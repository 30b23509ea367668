"""The requests that wait for one model: bounded, and each told once what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from agent.results import Inferred
from manifests.errors import (
    DeadlineError,
    InferscopeError,
    QueueFullError,
    RequestCancelledError,
    SessionError,
)

MAX_WAITING_BYTES = 1024 * 1024 * 1024
_NS_PER_S = 1_000_000_000
_BYTES_PER_MIB = 1024 * 1024


class _State(Enum):
    WAITING = auto()
    BEGUN = auto()
    """Its batch has begun."""
    LEFT = auto()
    """Nobody waits for the answer any more, or it was refused: it is not to be predicted."""


class Request:
    """One request, from when it waits until its caller has the answer.

    Args:
        batch: A preprocessed batch as the model takes it.
        came_ns: When it came, on the queue's clock.
        deadline_ns: After which time nobody waits for the answer, on the queue's clock; None is never.
        is_active: Whether somebody does still.
    """

    __slots__ = (
        "_answered",
        "_listener",
        "_outcome",
        "batch",
        "came_ns",
        "deadline_ns",
        "inputs",
        "is_active",
        "state",
    )

    def __init__(
        self, batch: NDArray[Any], came_ns: int, deadline_ns: int | None, is_active: Callable[[], bool]
    ) -> None:
        self.batch = batch
        self.inputs = len(batch)
        self.came_ns = came_ns
        self.deadline_ns = deadline_ns
        self.is_active = is_active
        self.state = _State.WAITING
        self._outcome: Inferred | BaseException | None = None
        self._listener: Callable[[], None] | None = None
        self._answered = threading.Lock()  # held until there is an answer; cheaper than an Event
        self._answered.acquire()

    def answer(self, outcome: Inferred | BaseException) -> None:
        """Tells what became of it; to be called once."""
        self._outcome = outcome
        self._answered.release()
        if self._listener is not None:
            self._listener()

    def wait(self, timeout_ns: int | None) -> bool:
        """Waits for the answer, or for that time; says whether it is there."""
        return self._answered.acquire(timeout=-1 if timeout_ns is None else max(0, timeout_ns) / _NS_PER_S)

    def tell(self, listener: Callable[[], None]) -> None:
        """Has a listener told when there is an answer; see ``agent.server.steps.Awaited``."""
        self._listener = listener
        if not self._answered.locked():
            listener()

    @property
    def outcome(self) -> Inferred:
        """The answer.

        Raises:
            InferscopeError, or whatever else the model raised: There is none.
        """
        match self._outcome:
            case Inferred() as inferred:
                return inferred
            case InferscopeError() as error:  # each caller gets one of his own, as several may wait for it
                raise type(error)(*error.args) from error
            case error:
                raise error or SessionError("the request was not answered")


class RequestQueue:
    """The requests that wait for one model, in the order in which they came. Thread-safe.

    Satisfies ``agent.batching.Waiters``.

    Args:
        limit: The most requests that wait for their batch to begin.
        model: Names the model in errors.
        clock: The clock of deadlines, in nanoseconds.
        max_bytes: The most memory of the batches that wait, unless one waits alone.
    """

    def __init__(
        self, limit: int, model: str, clock: Callable[[], int], max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._model = model
        self._clock = clock
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._waiting_bytes = 0
        self._closed = False

    def __len__(self) -> int:
        """The number of requests whose batch has not begun."""
        return self._waiting

    def put(self, request: Request) -> None:
        """Lets a request wait.

        Raises:
            QueueFullError: As many wait as may, or as much.
            SessionError: The model is closed.
        """
        with self._lock:
            if self._closed:
                raise SessionError(f"model {self._model} was unloaded; load it again")
            if self._waiting >= self._limit:
                raise QueueFullError(
                    f"model {self._model}: its limit of {self._limit} requests wait; try again later"
                )
            if self._waiting and self._waiting_bytes + request.batch.nbytes > self._max_bytes:
                raise QueueFullError(
                    f"model {self._model}: as much waits as may, {self._max_bytes // _BYTES_PER_MIB} MiB of "
                    "requests; try again later"
                )
            self._waiting += 1
            self._waiting_bytes += request.batch.nbytes
            self._requests.put(request)

    def get(self, block: bool = True, timeout: float | None = None) -> Request | None:
        """Takes the next request; see ``agent.batching.Waiters``."""
        return self._requests.get(block, timeout)

    def wanted(self, request: Request) -> bool:
        """Whether a request is still to be predicted; one whose time is over or whose caller left is not."""
        error: InferscopeError | None = None
        if request.deadline_ns is not None and self._clock() >= request.deadline_ns:
            error = self.overdue()
        elif not request.is_active():
            error = RequestCancelledError("the caller has gone away")
        if error is None:
            return request.state is not _State.LEFT
        if self.leave(request):
            request.answer(error)
        return False

    def begin(self, requests: list[Request]) -> list[Request]:
        """Begins a batch: returns the requests that are still wanted, which nobody takes back any more."""
        requests = [request for request in requests if self.wanted(request)]
        with self._lock:
            begun = [request for request in requests if request.state is _State.WAITING]
            for request in begun:
                request.state = _State.BEGUN
            self._waiting -= len(begun)
            self._waiting_bytes -= sum(request.batch.nbytes for request in begun)
        return begun

    def leave(self, request: Request) -> bool:
        """Takes a request back, if its batch has not begun; says whether it did."""
        with self._lock:
            if request.state is not _State.WAITING:
                return False
            request.state = _State.LEFT
            self._waiting -= 1
            self._waiting_bytes -= request.batch.nbytes
            return True

    def overdue(self) -> DeadlineError:
        """The error of a request whose time is over."""
        return DeadlineError(f"model {self._model}: the deadline passed before there was an answer")

    def close(self) -> None:
        """Takes no more requests; those that wait are still given."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._requests.put(None)
