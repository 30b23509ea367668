"""The bounded queue of requests that wait for one model; each request is answered once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from queue import Empty, Queue, SimpleQueue
from typing import Generic, Protocol, TypeVar

from inferometer.agent.inference.stages import Inferred, QueueTimes
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import (
    DeadlineError,
    InferometerError,
    QueueFullError,
    RequestCancelledError,
    SessionError,
)

MAX_WAITING_BYTES = 1024 * 1024 * 1024
NS_PER_S = 1_000_000_000
_BYTES_PER_MIB = 1024 * 1024


class RequestState(Enum):
    """The progress of a request."""

    WAITING = auto()
    BEGUN = auto()
    """Its batch has begun."""
    LEFT = auto()
    """Its caller has left, or the queue has refused it; it must not be predicted."""


WAITING, _BEGUN, _LEFT = RequestState  # looking a member up in its class takes long


@dataclass(slots=True, eq=False)
class PredictedBatch:
    """The times of a batch, in nanoseconds on the queue's clock; its requests share one object.

    The batch began at ``begun_ns``; assembly took ``batch_ns``, and prediction ``predict_ns`` until
    ``done_ns``. ``inputs`` is the total of all requests.
    """

    begun_ns: int
    done_ns: int
    batch_ns: int
    predict_ns: int
    inputs: int


class QueuedRequest(Protocol):
    """A request as a queue and its worker use it.

    Exactly once, its ``BatchPredictor`` answers it or ``fail`` is called. Times are on the queue's clock; the
    caller stops waiting at ``deadline_ns``, None for never. ``nbytes`` is the memory that the request holds
    while it waits. ``is_active`` returns whether the caller still waits; None if callers do not leave.
    """

    state: RequestState
    came_ns: int
    deadline_ns: int | None
    inputs: int
    nbytes: int
    is_active: Callable[[], bool] | None

    def fail(self, error: BaseException) -> None:
        """Receives the reason why there is no answer."""


class Request:
    """A request to a served model, until its caller has the answer; see ``QueuedRequest``.

    ``batch`` holds tensors in the form that the model takes. ``priority`` and ``timeout_ns`` come from the
    caller, with 0 and None as the defaults; a ``PriorityQueue`` derives from them the level, and when a
    waiting request is rejected or delayed. ``trace`` is the request's own span; None if it is not traced.
    """

    __slots__ = (
        "_answered",
        "_listener",
        "_outcome",
        "batch",
        "came_ns",
        "deadline_ns",
        "delayed_ns",
        "inputs",
        "is_active",
        "nbytes",
        "priority",
        "rejected_ns",
        "state",
        "timeout_ns",
        "trace",
    )

    def __init__(
        self,
        batch: Tensors,
        came_ns: int,
        deadline_ns: int | None,
        is_active: Callable[[], bool],
        trace: TraceScope | None = None,
    ) -> None:
        self.trace = trace
        self.batch = batch
        self.inputs = self.nbytes = 0
        for array in batch.values():
            self.inputs = len(array)
            self.nbytes += array.nbytes
            if array.dtype.hasobject:  # strings, beside whose references there is their text
                self.nbytes += sum(map(len, array.flat))
        self.came_ns = came_ns
        self.deadline_ns: int | None = deadline_ns
        self.is_active: Callable[[], bool] | None = is_active
        self.state = WAITING
        self.priority = 0
        self.timeout_ns: int | None = None
        self.rejected_ns: int | None = None
        self.delayed_ns: int | None = None
        self._outcome: tuple[Tensors, PredictedBatch] | BaseException | None = None
        self._listener: Callable[[], None] | None = None
        self._answered: threading.Lock | None = None  # held until there is an answer; cheaper than an Event

    def answer(self, answer: Tensors, batch: PredictedBatch) -> None:
        """Receives the request's rows of the outputs."""
        self._settle((answer, batch))

    def fail(self, error: BaseException) -> None:
        """Receives the reason why there is no answer."""
        self._settle(error)

    def _settle(self, outcome: tuple[Tensors, PredictedBatch] | BaseException) -> None:
        self._outcome = outcome  # first: whoever makes the lock, or sets the listener, looks at it then
        if self._answered is not None:
            self._answered.release()
        if self._listener is not None:
            self._listener()

    def wait(self, timeout_ns: int | None) -> bool:
        """Waits for the answer or the timeout; returns whether there is an answer. For one thread."""
        if self._answered is None:
            answered = threading.Lock()
            answered.acquire()
            self._answered = answered
        if self._outcome is not None:
            return True
        return self._answered.acquire(timeout=-1 if timeout_ns is None else max(0, timeout_ns) / NS_PER_S)

    def on_answer(self, listener: Callable[[], None]) -> None:
        """Calls a listener once there is an answer, in any thread, possibly twice."""
        self._listener = listener
        if self._outcome is not None:
            listener()

    @property
    def is_answered(self) -> bool:
        """Whether there is an unread answer."""
        return self._outcome is not None

    @property
    def outcome(self) -> Inferred:
        """The answer, readable only once, because an error's traceback refers to frames with the request.

        Raises:
            InferometerError, or any other error that the model raised: There is no answer.
        """
        outcome, self._outcome = self._outcome, None
        try:
            match outcome:
                case (outputs, batch):
                    times = QueueTimes(batch.begun_ns - self.came_ns, batch.batch_ns, batch.inputs)
                    return Inferred(outputs, batch.predict_ns, times)
                case InferometerError():  # each caller raises one of its own, as several may wait for it
                    raise type(outcome)(*outcome.args) from outcome
                case _:
                    raise outcome or SessionError("the request was not answered")
        finally:
            del outcome


_Request = TypeVar("_Request", bound=QueuedRequest)


class RequestQueue(Generic[_Request]):
    """The requests that wait for one model, in the order of their arrival. Thread-safe.

    It holds at most ``limit`` requests with at most ``max_bytes`` of memory; a single request may be larger.
    ``model`` names the model in errors; ``clock`` is the clock of deadlines, in nanoseconds.
    """

    def __init__(
        self, limit: int, model: str, clock: Callable[[], int], max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._waiting_bytes = 0
        self.closed = False
        self._use(SimpleQueue())

    def _use(self, requests: SimpleQueue[_Request | None] | Queue[_Request | None]) -> None:
        """Sets the container of the requests."""
        self._requests = requests
        self._put = requests.put
        self.get = requests.get
        """Takes the next request, like ``queue.Queue.get``; None is an end mark of ``clear`` or ``close``."""

    def __len__(self) -> int:
        """Returns the number of requests whose batch has not begun."""
        return self._waiting

    def put(self, request: _Request) -> None:
        """Adds a request.

        Raises:
            QueueFullError: The queue has reached its limit of requests or memory.
            SessionError: The model is closed.
        """
        with self._lock:
            if self.closed:
                raise SessionError(f"model {self._model} was unloaded; load it again")
            waiting = self._waiting
            waiting_bytes = self._waiting_bytes + request.nbytes
            if waiting >= self._limit:
                raise QueueFullError(
                    f"model {self._model}: its queue of {self._limit} requests is full; try again later"
                )
            if waiting_bytes > self._max_bytes and waiting:
                raise QueueFullError(
                    f"model {self._model}: the waiting requests take up their limit "
                    f"of {self._max_bytes // _BYTES_PER_MIB} MiB; try again later"
                )
            self._waiting = waiting + 1
            self._waiting_bytes = waiting_bytes
            self._put(request)

    def wanted(self, request: _Request) -> bool:
        """Returns whether to predict a request: not after its deadline, nor once its caller has left."""
        error: InferometerError
        if request.deadline_ns is not None and self._clock() >= request.deadline_ns:
            error = self.overdue()
        elif request.is_active is None or request.is_active():
            return request.state is not _LEFT
        else:
            error = RequestCancelledError("the caller has gone away")
        if self.leave(request):
            request.fail(error)
        return False

    def begin(self, requests: list[_Request]) -> list[_Request]:
        """Begins a batch; returns the requests that are still wanted, which can no longer leave."""
        wanted = [request for request in requests if self.wanted(request)]
        begun, begun_bytes = [], 0
        with self._lock:
            for request in wanted:
                if request.state is WAITING:
                    request.state = _BEGUN
                    begun_bytes += request.nbytes
                    begun.append(request)
            self._waiting -= len(begun)
            self._waiting_bytes -= begun_bytes
        return begun

    def begin_inline(self, request: _Request) -> bool:
        """Begins a request that is not queued, if no other waits and it is wanted; returns whether it did."""
        late = request.deadline_ns is not None and self._clock() >= request.deadline_ns
        if self._waiting or self.closed or late or not (request.is_active is None or request.is_active()):
            return False
        request.state = _BEGUN
        return True

    def leave(self, request: _Request) -> bool:
        """Removes a request if its batch has not begun; returns whether it did."""
        with self._lock:
            if request.state is not WAITING:
                return False
            request.state = _LEFT
            self._waiting -= 1
            self._waiting_bytes -= request.nbytes
            return True

    def clear(self, error: InferometerError) -> None:
        """Fails every waiting request; a batch that is being filled begins at once."""
        with suppress(Empty):
            while True:
                request = self._requests.get_nowait()
                if request is not None and self.leave(request):
                    request.fail(error)
        self._requests.put(None)

    def overdue(self) -> DeadlineError:
        """Returns the error of a request whose deadline has passed."""
        return DeadlineError(f"model {self._model}: the deadline passed before there was an answer")

    def expired(self) -> DeadlineError:
        """Returns the error of a request whose queue timeout has expired."""
        return DeadlineError(f"model {self._model}: the request's timeout expired in the queue")

    def close(self) -> None:
        """Accepts no more requests; waiting requests are still predicted."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._requests.put(None)

    def pass_end_on(self) -> None:
        """Puts back the end mark, which each thread that takes requests has to see."""
        self._requests.put(None)
