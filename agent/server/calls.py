"""A call, whichever door it comes through: what its method sees of it, and what surrounds every call."""

from __future__ import annotations

import asyncio
import contextvars
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import grpc

from inferometer.agent.protocol.metadata import TRACEPARENT_KEY
from inferometer.agent.protocol.status import ERROR_CLASS_KEY, Status, status_of
from inferometer.agent.server.security.client_limits import ClientLimits
from inferometer.agent.server.security.secret import SecretCheck
from inferometer.agent.serving.observers import REQUEST_ID_KEY, Call, RequestIds, enter_call
from inferometer.agent.tracing.calls import server_call
from inferometer.agent.tracing.recorder import TraceContext
from inferometer.agent.tracing.span import Attributes, SpanKind
from inferometer.manifests.errors import AgentError, ConfigurationError

NS_PER_S = 1_000_000_000
_CHECKS = 10  # in the time without calls that is waited for
NOT_ADMITTED = Status(grpc.StatusCode.UNAUTHENTICATED, "the agent requires a secret, and this is not it")
_Result = TypeVar("_Result")
_Call = TypeVar("_Call", bound="CallContext")
Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]]"
"""What a client sends beside its request: gRPC's metadata, or the headers of HTTP, lower case."""


class CallContext(ABC):
    """What a method sees of its call. ``is_active`` is thread-safe, the rest is for the event loop."""

    __slots__ = ("_active", "_threads", "code", "failure", "metadata", "record", "trailing")

    def __init__(self, record: Call, metadata: Metadata, threads: Executor) -> None:
        self._threads = threads
        self._active = True
        self.code = grpc.StatusCode.OK
        self.failure: Status | None = None
        self.record = record
        self.metadata = metadata
        self.trailing = [(REQUEST_ID_KEY, record.request_id)]
        """What goes to the client with the status."""

    def is_active(self) -> bool:
        """Whether the call is neither answered nor cancelled."""
        return self._active

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        if self.code is grpc.StatusCode.OK and not self._active:
            self.code = grpc.StatusCode.CANCELLED
        self._active = False

    def fail(self, status: Status, error: Exception | None = None) -> None:
        """Sets the status of a call that has no answer, and the error that it comes from."""
        self.code, self.failure = status.code, status

    def span(self, listens_at: Attributes) -> SpanKind:
        """Returns the span of the call, with the attributes of where the agent listens."""
        return server_call(self.record.method, self.record.peer, listens_at)

    def http_status(self, error: BaseException) -> int | None:
        """Returns the status over HTTP of a call that ends with an error; None of one over gRPC."""
        return None

    @abstractmethod
    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline on a clock in nanoseconds; None where it has none."""

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Does work in a thread, in this task's context.

        When the call is cancelled, work that has not begun is dropped. Work that has begun cannot be
        interrupted: this waits for it and returns its result, so that what it opened can be closed, and the
        next ``await`` raises CancelledError.
        """
        job = self._threads.submit(contextvars.copy_context().run, _run, work, *arguments)
        future = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._active = False
            if job.cancel():
                raise
            await finished(future)
            if future.exception() is not None:
                raise
            if task := asyncio.current_task():
                task.cancel()
            return future.result()
        finally:
            del job, future  # they have the error whose traceback has this frame


async def finished(future: asyncio.Future[Any]) -> None:
    """Waits for a future, although this task is cancelled; its error need not be retrieved."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


def _run(work: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return work(*arguments)
    except StopIteration as error:  # no future can have it
        raise RuntimeError("the work raised StopIteration") from error


class CallObserver(Protocol):
    """Observes every call, on the event loop."""

    def call_began(self, call: Call) -> None:
        """A call has begun."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """The call was answered or cancelled, so long after it began; a stream at its end."""


class Calls:
    """What surrounds the calls of every door of an agent: the secret, the limits, the errors, the observers.

    A plain ``def`` method runs in one of the ``threads``, or if it is ``aside`` in one of the
    ``side_threads``. For one event loop.
    """

    def __init__(
        self,
        threads: Executor,
        side_threads: Executor,
        *,
        observers: Sequence[CallObserver] = (),
        secret: SecretCheck | None = None,
        limits: ClientLimits | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.secret = secret
        self.limits = limits
        self._threads = threads
        self._side_threads = side_threads
        self._observers = tuple(observers)
        self._clock = clock
        self._ids = RequestIds()
        self._stopping = False
        self._under_way = 0
        self._latest_ns: int | None = None
        self._resumed: asyncio.Event | None = None
        self._arrived_ns = 0

    def stop(self) -> None:
        """Refuses calls from now on with UNAVAILABLE, which clients may retry; not those ``aside``."""
        self._stopping = True

    def used_within(self, period_s: float) -> bool:
        """Whether a call is in progress that is not ``aside``, or began in the last seconds."""
        latest_ns = self._latest_ns
        return self.is_busy or (latest_ns is not None and self._clock() - latest_ns < period_s * NS_PER_S)

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress that is not ``aside``."""
        return self._under_way > 0

    async def pause(self, quiet_s: float, longest_s: float) -> None:
        """Lets calls wait from now on, until ``resume``; returns once none has come for ``quiet_s`` seconds.

        Or after the longest time. A client that waits for an answer sends nothing, so that none of its calls
        is on its way when the doors close.
        """
        self._resumed = asyncio.Event()
        self._arrived_ns = now_ns = self._clock()
        end_ns = now_ns + longest_s * NS_PER_S
        while now_ns < min(end_ns, self._arrived_ns + quiet_s * NS_PER_S):
            await asyncio.sleep(quiet_s / _CHECKS)
            now_ns = self._clock()

    def resume(self) -> None:
        """Lets the calls that wait go on."""
        if self._resumed is not None:
            self._resumed.set()

    async def turn(self) -> None:
        """Waits while calls are paused; before ``admit``."""
        if self._resumed is not None:
            self._arrived_ns = self._clock()
            await self._resumed.wait()

    def admit(self, call: CallContext, client: Callable[[], str], *, aside: bool) -> None:
        """Counts a call of a ``client``; see ``client_of``.

        Raises AgentError where the agent stops, and RateLimitError where the client is over its limit.
        """
        if self._stopping and not aside:
            raise AgentError("the agent is stopping; try another one, or again later")
        if self.limits is not None:
            self.limits.admit(call.record.method, client(), call.trailing)

    def observed(
        self,
        path: str,
        metadata: Metadata,
        peer: str,
        make: Callable[[Call, Metadata, Executor], _Call],
        *,
        aside: bool,
        name: str = "",
    ) -> ObservedCall[_Call]:
        """Begins a call, which ends with the block: with OK, or with the status of the error that was raised.

        ``name`` is that of the method in messages; empty takes the last part of the path.
        """
        began_ns = self._clock()
        given_id = trace_id = None
        for key, value in metadata:
            if key == REQUEST_ID_KEY:
                given_id = value
            elif key == TRACEPARENT_KEY:
                trace_id = _trace_id(value)
        record = Call(path, self._ids.name(given_id), trace_id, peer)
        enter_call(record)
        call = make(record, metadata, self._side_threads if aside else self._threads)
        if not aside:
            self._under_way += 1
            self._latest_ns = began_ns
        for observer in self._observers:
            observer.call_began(record)
        return ObservedCall(self, call, began_ns, aside, name)

    def end(self, call: CallContext, began_ns: int, *, aside: bool) -> None:
        """Ends a call, whatever came of it."""
        if not aside:
            self._under_way -= 1
        call.end()
        duration_ns = self._clock() - began_ns
        for observer in self._observers:
            observer.call_ended(call.record, call.code, duration_ns)


class ObservedCall(Generic[_Call]):
    """A call from when it has begun until the end of a ``with`` block; see ``Calls.observed``.

    An error of the block is the call's status, and goes no further. A generator would take twice as long.
    """

    __slots__ = ("_aside", "_began_ns", "_call", "_calls", "_name")

    def __init__(self, calls: Calls, call: _Call, began_ns: int, aside: bool, name: str) -> None:
        self._calls = calls
        self._call = call
        self._began_ns = began_ns
        self._aside = aside
        self._name = name

    def __enter__(self) -> _Call:
        return self._call

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        call = self._call
        if isinstance(error, Exception):  # the servicers' boundary
            status = status_of(error, self._name or call.record.method.rpartition("/")[2])
            if status.error_class is not None:
                call.trailing.append((ERROR_CLASS_KEY, status.error_class))
            call.fail(status, error)
        elif error is not None:  # cancelled
            call.code = grpc.StatusCode.CANCELLED
        self._calls.end(call, self._began_ns, aside=self._aside)
        return isinstance(error, Exception)


def _trace_id(header: str | bytes) -> str | None:
    try:
        return TraceContext.parse(str(header)).trace_id
    except ConfigurationError:
        return None
