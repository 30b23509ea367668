"""The agent's methods and their calls over gRPC and HTTP: the context of a call and the shared processing.

A method takes a request and its ``CallContext``, and returns a response or raises one of the program's
errors. An ``async def`` method runs on the event loop and must not block it, a plain ``def`` runs in a
thread, and an async generator yields the responses of a stream. A method that takes a stream is given an
async iterator.

The call of an HTTP client gets its deadline from a header, and is cancelled when the client disconnects.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from inferometer.agent.protocol.status import ERROR_CLASS_KEY, Status, http_status, status_of
from inferometer.agent.server.admission import ClientLimits, SecretCheck
from inferometer.agent.serving.observers import REQUEST_ID_KEY, Call, RequestIds, enter_call
from inferometer.agent.tracing.recorder import (
    TRACEPARENT_KEY,
    Attributes,
    AttributeValue,
    SpanKind,
    SpanRole,
    TraceContext,
    address_attributes,
    call_span,
    rpc_attributes,
)
from inferometer.manifests.errors import AgentError, ConfigurationError, DeadlineError, InputError

UNKNOWN = "unknown"
"""The name used for all unknown methods in metrics and logs, because clients can invent names."""
NS_PER_S = 1_000_000_000
_CHECKS = 10  # polls within the quiet period
NOT_ADMITTED = Status(grpc.StatusCode.UNAUTHENTICATED, "the agent requires a secret, which was not sent")
_Result = TypeVar("_Result")
_Call = TypeVar("_Call", bound="CallContext")
Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]]"
"""The metadata of a request: gRPC's metadata, or the HTTP headers with lower-case names."""


class CallContext(ABC):
    """The context of a call, which its method receives.

    ``is_active`` is thread-safe; everything else must be used on the event loop.
    """

    __slots__ = ("_active", "_threads", "code", "failure", "metadata", "record", "trailing")

    def __init__(self, record: Call, metadata: Metadata, threads: Executor) -> None:
        self._threads = threads
        self._active = True
        self.code = grpc.StatusCode.OK
        self.failure: Status | None = None
        self.record = record
        self.metadata = metadata
        self.trailing = [(REQUEST_ID_KEY, record.request_id)]
        """The metadata that is sent to the client with the status."""

    def is_active(self) -> bool:
        """Returns whether the call is still in progress: neither answered nor cancelled."""
        return self._active

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        if self.code is grpc.StatusCode.OK and not self._active:
            self.code = grpc.StatusCode.CANCELLED
        self._active = False

    def fail(self, status: Status, error: Exception | None = None) -> None:
        """Sets the status of a failed call, and the error that caused it."""
        self.code, self.failure = status.code, status

    def span(self, listens_at: Attributes) -> SpanKind:
        """Returns the span of the call, with the agent's listening address as attributes."""
        return server_call(self.record.method, self.record.peer, listens_at)

    def http_status(self, error: BaseException) -> int | None:
        """Returns the HTTP status of a call that fails with this error; None for a call over gRPC."""
        return None

    @abstractmethod
    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline in nanoseconds on ``clock``; None if it has no deadline."""

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Runs ``work`` in a thread, in the context of the current task.

        If the call is cancelled, work that has not started is dropped. Work that has started cannot be
        interrupted: the method waits for it and returns its result, so that the caller can close what the
        work opened. The next ``await`` then raises CancelledError.
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
            del job, future  # drop the reference cycle: an error's traceback holds this frame


async def finished(future: asyncio.Future[Any]) -> None:
    """Waits for a future even if the current task is cancelled, and marks its error as retrieved."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


def _run(work: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return work(*arguments)
    except StopIteration as error:  # a future cannot hold a StopIteration
        raise RuntimeError("the work raised StopIteration") from error


Codec: TypeAlias = "tuple[Callable[[bytes], Any], Callable[[Any], bytes]]"
"""The functions that read a method's request and write its response."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that the agent offers, at a path ``package.Service/Method``.

    ``behaviour`` is the function that implements it; see the module. ``decode`` raises DecodeError if its
    argument is not a request. A method that is ``aside`` runs in a thread apart from those that predict: it
    answers however busy they are, even while the agent is stopping.
    """

    path: str
    behaviour: Callable[[Any, CallContext], Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    streams_requests: bool = False
    aside: bool = False
    answer: Callable[[bytes], Any] = bytes
    """Reads a response that the protobuf library has written."""

    def read(self, content: bytes) -> Any:
        """Reads a request.

        Raises:
            InputError: The request is malformed. A gRPC deserializer would answer INTERNAL and, in a stream,
                leave the call open forever (seen in grpcio 1.85).
        """
        try:
            return self.decode(content)
        except DecodeError as error:
            raise InputError(f"the request to {self.path} is not a message of its type") from error


def methods_of(
    service: ServiceDescriptor,
    servicer: object,
    codecs: Mapping[str, Codec] | None = None,
    aside: Collection[str] = (),
) -> list[Method]:
    """Returns a service's methods, which a servicer implements under their snake-case names.

    ``codecs``, by method name, encode and decode messages in place of the protobuf library. The methods in
    ``aside`` answer however busy the agent is, even while it is stopping.
    """
    found = []
    for method in service.methods:
        behaviour = getattr(servicer, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower(), None)
        if behaviour is None:
            continue
        path, apart = f"{service.full_name}/{method.name}", method.name in aside
        given, answer = map(GetMessageClass, (method.input_type, method.output_type))
        decode, encode = (codecs or {}).get(method.name) or (given.FromString, answer.SerializeToString)
        streams, read = method.client_streaming, answer.FromString
        found.append(Method(path, behaviour, decode, encode, streams, apart, read))
    return found


class CallObserver(Protocol):
    """Observes every call, on the event loop."""

    def call_began(self, call: Call) -> None:
        """Called when a call begins."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Called when a call has been answered or cancelled; for a stream, at its end.

        ``duration_ns`` is the time since the call began.
        """


class Calls:
    """The processing that all calls share, over gRPC and HTTP: secret, limits, errors and observers.

    Plain ``def`` methods run in ``threads``, or in ``side_threads`` if they are ``aside``. For use on one
    event loop.
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
        """Refuses further calls, except of ``aside`` methods, with UNAVAILABLE, which clients may retry."""
        self._stopping = True

    def used_within(self, period_s: float) -> bool:
        """Returns whether a call is in progress or began in the last ``period_s`` seconds.

        Calls of ``aside`` methods are ignored.
        """
        latest_ns = self._latest_ns
        return self.is_busy or (latest_ns is not None and self._clock() - latest_ns < period_s * NS_PER_S)

    @property
    def is_busy(self) -> bool:
        """Whether a call of a method that is not ``aside`` is in progress."""
        return self._under_way > 0

    async def pause(self, quiet_s: float, longest_s: float) -> None:
        """Makes new calls wait until ``resume``.

        Returns once no call has arrived for ``quiet_s`` seconds, or after ``longest_s`` seconds. A client
        that waits for a response sends nothing, so none of its calls is in transit when the servers stop
        listening.
        """
        self._resumed = asyncio.Event()
        self._arrived_ns = now_ns = self._clock()
        end_ns = now_ns + longest_s * NS_PER_S
        while now_ns < min(end_ns, self._arrived_ns + quiet_s * NS_PER_S):
            await asyncio.sleep(quiet_s / _CHECKS)
            now_ns = self._clock()

    def resume(self) -> None:
        """Resumes the waiting calls."""
        if self._resumed is not None:
            self._resumed.set()

    async def turn(self) -> None:
        """Waits while calls are paused; call it before ``admit``."""
        if self._resumed is not None:
            self._arrived_ns = self._clock()
            await self._resumed.wait()

    def admit(self, call: CallContext, client: Callable[[], str], *, aside: bool) -> None:
        """Counts a call from a ``client`` against its limits; see ``client_of``.

        Raises AgentError if the agent is stopping, and RateLimitError if the client is over its limit.
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
        """Begins a call, which ends with the ``with`` block.

        Its status is OK, or that of the error that was raised. ``name`` is the method's name in messages; if
        it is empty, the last part of the path is used.
        """
        began_ns = self._clock()
        given_id = trace = None
        for key, value in metadata:
            if key == REQUEST_ID_KEY:
                given_id = value
            elif key == TRACEPARENT_KEY:
                trace = _trace(value)
        record = Call(path, self._ids.name(given_id), trace, peer)
        enter_call(record)
        call = make(record, metadata, self._side_threads if aside else self._threads)
        if not aside:
            self._under_way += 1
            self._latest_ns = began_ns
        for observer in self._observers:
            observer.call_began(record)
        return ObservedCall(self, call, began_ns, aside, name)

    def end(self, call: CallContext, began_ns: int, *, aside: bool) -> None:
        """Ends a call, whether it was answered, failed or was cancelled."""
        if not aside:
            self._under_way -= 1
        call.end()
        duration_ns = self._clock() - began_ns
        for observer in self._observers:
            observer.call_ended(call.record, call.code, duration_ns)


class ObservedCall(Generic[_Call]):
    """A call in progress, as a context manager that ends the call; see ``Calls.observed``.

    An exception in the block becomes the call's status and is not raised again. A generator-based context
    manager would take twice as long.
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


def _trace(header: str | bytes) -> TraceContext | None:
    try:
        return TraceContext.parse(str(header))
    except ConfigurationError:  # as the W3C recommendation requires
        return None


TIMEOUT_HEADER = "grpc-timeout"
"""The header with a request's timeout, in gRPC's format: up to 8 digits and a unit; ``500m`` is 500 ms."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class HttpCall(CallContext):
    """A call from an HTTP client, in the task that answers it. For use on the event loop."""

    __slots__ = ("_task", "_timer", "error", "path", "port", "reason", "scheme", "sent_status")

    def __init__(self, record: Call, metadata: Metadata, threads: Executor) -> None:
        super().__init__(record, metadata, threads)
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.reason: Exception | None = None
        """The error with which the call was cancelled."""
        self.error: Exception | None = None
        """The error that the call failed with."""
        self.sent_status: int | None = None
        """The status of a stream that has begun."""
        self.scheme, self.path, self.port = "http", "", 0
        """The attributes of the request: its path, and the port of the agent."""

    def span(self, listens_at: Attributes) -> SpanKind:
        """Returns the span of the call, with the agent's HTTP listening address as attributes."""
        at = tuple((key, self.port if key == "server.port" else value) for key, value in listens_at)
        return http_server_call(self.record.method, self.scheme, self.path, self.record.peer, at)

    def http_status(self, error: BaseException) -> int | None:
        """Returns the status of a call that fails with this error.

        Returns None if the client receives no response.
        """
        if self.sent_status is not None:
            return self.sent_status
        if isinstance(error, asyncio.CancelledError) and self.reason is not None:
            error = self.reason
        return http_status(error) if isinstance(error, Exception) else None

    def limit_time(self, header: str) -> None:
        """Sets the deadline.

        Raises InputError if the header is not in the format of ``TIMEOUT_HEADER``.
        """
        found = _TIMEOUT.fullmatch(header)
        if found is None:
            raise InputError(f"header {TIMEOUT_HEADER} must be up to 8 digits and one of {''.join(_UNITS_S)}")
        loop, late = asyncio.get_running_loop(), DeadlineError("the deadline of the request has passed")
        self._timer = loop.call_later(int(found[1]) * _UNITS_S[found[2]], self.cancel, late)

    def deadline_ns(self, clock: Callable[[], int]) -> int | None:
        """Returns the call's deadline in nanoseconds on ``clock``; None if it has no deadline."""
        if self._timer is None:
            return None
        return clock() + round((self._timer.when() - asyncio.get_running_loop().time()) * NS_PER_S)

    def cancel(self, why: Exception) -> None:
        """Cancels the call's task with an error; has no effect after the call has ended."""
        if self._active and self._task is not None:
            self._active = False
            self.reason = why
            self._task.cancel()

    def fail(self, status: Status, error: Exception | None = None) -> None:
        """Sets the status of a failed call, and the error that caused it."""
        super().fail(status, error)
        self.error = error

    def end(self) -> None:
        """Marks the call as answered, failed or cancelled."""
        super().end()
        if self._timer is not None:
            self._timer.cancel()


_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_AHEAD = 16
"""How many requests of a stream may be in progress or answered but not yet sent: enough for a batch."""


async def in_order(
    requests: AsyncIterator[_Request],
    answer: Callable[[_Request], Coroutine[Any, Any, _Answer | AsyncIterator[_Answer]]],
) -> AsyncGenerator[_Answer, None]:
    """Yields the answers to requests in the order of the requests.

    An answer may consist of parts: an iterator, which must not raise. Each part is yielded as soon as it is
    there and earlier answers are, between the parts of other answers.

    Each request gets a task as soon as it is received. Requests of one stream therefore wait in their model's
    queue together and can be predicted together. Closing the generator cancels unanswered requests. An error
    in ``requests`` is raised after the last answer; an error in ``answer`` ends the stream.
    """
    begun: asyncio.Queue[asyncio.Task[Any] | _Answer | None] = asyncio.Queue()
    under_way: set[asyncio.Task[Any]] = set()
    places, sources = asyncio.Semaphore(_AHEAD), 1  # those that put answers or parts into the queue

    def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        return task

    async def receive() -> None:
        try:
            async for request in requests:
                await places.acquire()
                begun.put_nowait(start(answer(request)))
        finally:
            begun.put_nowait(None)

    async def take(parts: AsyncIterator[_Answer]) -> None:
        try:
            async for part in parts:
                begun.put_nowait(part)
        finally:
            begun.put_nowait(None)

    receiving = asyncio.create_task(receive())
    try:
        while sources:
            item = await begun.get()
            if item is None:
                sources -= 1
                places.release()
            elif not isinstance(item, asyncio.Task):
                yield item
            elif isinstance(found := await item, AsyncIterator):
                sources += 1
                start(take(found))
            else:
                yield found
                places.release()
        await receiving
    finally:
        tasks = (receiving, *under_way)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        item = None
        del tasks, receiving, each  # one may have the error whose traceback has this frame


def http_server_call(title: str, scheme: str, path: str, peer: str, listens_at: Attributes = ()) -> SpanKind:
    """Returns the kind of span for a client's request for a ``path``; see ``server_call``.

    ``title`` consists of the verb and the route, which is a path with names in braces.
    """
    verb, _, route = title.partition(" ")
    attributes = {"http.request.method": verb, "http.route": route, "url.path": path, "url.scheme": scheme}
    return call_span(SpanRole.SERVER, title, {**attributes, **dict(listens_at), **_client_at(peer)})


def server_call(path: str, peer: str, listens_at: Attributes = ()) -> SpanKind:
    """Returns the kind of span for a call received from a client.

    ``peer`` is the client's address in gRPC's notation; ``listens_at`` has the server's as attributes.
    """
    return call_span(SpanRole.SERVER, path, rpc_attributes(path) | dict(listens_at) | _client_at(peer))


def _client_at(peer: str) -> dict[str, AttributeValue]:
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return (
        address_attributes("client", host, int(port)) if kind in {"ipv4", "ipv6"} and port.isdecimal() else {}
    )
