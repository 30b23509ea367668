"""Calls of a real server: what methods see, what surrounds them, and what a cancelled call leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from fake_framework import wait_for
from served_methods import TIMEOUT_S, dispatcher, error_of, method

from inferometer.agent.protocol.status import AUTHORIZATION_KEY, bearer
from inferometer.agent.server.admission import SecretCheck
from inferometer.agent.server.calls import UNKNOWN, CallContext, Calls, Method
from inferometer.agent.server.rpc import Dispatcher, GrpcServer
from inferometer.agent.serving.observers import Call
from inferometer.manifests.errors import InputError, UnknownModelError

DETAIL = "a detail of /srv/secret_place.py"
SECRET = "open sesame"
RIGHT = ((AUTHORIZATION_KEY, bearer(SECRET)),)
Serve = Callable[..., grpc.Channel]


class Observer:
    """Remembers how calls began and ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, grpc.StatusCode]] = []

    def call_began(self, call: Call) -> None:
        assert call.peer.startswith("ipv4:127.0.0.1:")
        self.began.append(call.method)

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        assert duration_ns > 0
        self.ended.append((call.method, code))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves methods of a service ``T``, with two threads; gives a channel to them."""
    with contextlib.ExitStack() as stack:

        def served(parts: dict[str, Any] | None = None, **methods: Any) -> grpc.Channel:
            pool = ThreadPoolExecutor(2, thread_name_prefix="pool")
            server = GrpcServer(dispatcher(pool, methods, **(parts or {})), ())
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(pool.shutdown, wait=False)
            stack.callback(server.close)
            stack.callback(server.stop, 0.0, TIMEOUT_S)
            return stack.enter_context(
                grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
            )

        yield served


def unary(channel: grpc.Channel, request: bytes = b"x", path: str = "/T/M", **more: Any) -> Any:
    return channel.unary_unary(path)(request, timeout=TIMEOUT_S, **more)


def thread_name(*_: Any) -> bytes:
    return threading.current_thread().name.partition("_")[0].encode()


def test_async_method_runs_on_the_loop_a_plain_one_in_a_thread_and_so_does_its_work(serve: Serve) -> None:
    async def here(*_: Any) -> bytes:
        return thread_name()

    async def working(_: bytes, call: CallContext) -> bytes:
        return await call.in_thread(thread_name)

    channel = serve(Plain=thread_name, Here=here, Working=working)
    names = [unary(channel, path=f"/T/{name}") for name in ("Plain", "Here", "Working")]
    assert names == [b"pool", b"grpc-loop", b"pool"]


def test_method_aside_answers_while_all_threads_are_busy(serve: Serve) -> None:
    busy, go = threading.Semaphore(0), threading.Event()

    def wait(request: bytes, _: CallContext) -> bytes:
        busy.release()
        assert go.wait(TIMEOUT_S)
        return request

    with ThreadPoolExecutor(1, thread_name_prefix="side") as side, ThreadPoolExecutor(2) as pool:
        methods = [method("Wait", wait), method("M", thread_name, aside=True)]
        server = GrpcServer(Dispatcher(methods, Calls(pool, side)), ())
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with contextlib.closing(server), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = [channel.unary_unary("/T/Wait").future(b"x", timeout=TIMEOUT_S) for _ in range(2)]
            for _ in calls:
                assert busy.acquire(timeout=TIMEOUT_S)
            assert unary(channel) == b"side"
            go.set()
            assert [call.result() for call in calls] == [b"x"] * 2
            server.stop(0.0, TIMEOUT_S)


def test_many_calls_wait_on_the_loop_at_once_and_take_no_thread(serve: Serve) -> None:
    events: dict[int, asyncio.Event] = {}
    loops = []

    async def wait(request: bytes, _: CallContext) -> bytes:
        loops.append(asyncio.get_running_loop())
        event = events[int(request)] = asyncio.Event()
        await event.wait()
        return request

    channel = serve(M=wait)
    calls = [channel.unary_unary("/T/M").future(str(n).encode(), timeout=TIMEOUT_S) for n in range(100)]
    for number in reversed(range(100)):
        wait_for(lambda number=number: number in events)
        loops[0].call_soon_threadsafe(events[number].set)
    assert [int(call.result()) for call in calls] == list(range(100))


def test_error_of_work_is_raised_where_the_method_waits_for_it(serve: Serve) -> None:
    async def mend(_: bytes, call: CallContext) -> bytes:
        try:
            await call.in_thread(lambda: {}["lost"])
        except KeyError:
            return b"mended"
        return b""

    async def stop(_: bytes, call: CallContext) -> bytes:
        return await call.in_thread(next, iter(()))

    channel = serve(M=mend, Stop=stop)
    assert unary(channel) == b"mended"
    assert error_of(lambda: unary(channel, path="/T/Stop")).code() is grpc.StatusCode.INTERNAL


def test_what_work_returned_is_given_back_though_the_call_is_cancelled_meanwhile(serve: Serve) -> None:
    begun, go, held = threading.Event(), threading.Event(), []

    def lend() -> str:
        begun.set()
        assert go.wait(TIMEOUT_S)
        held.append("lease")
        return "lease"

    async def use(_: bytes, call: CallContext) -> bytes:
        contexts.append(call)
        lease = await call.in_thread(lend)
        try:
            await asyncio.Event().wait()
        finally:
            assert not call.is_active()
            held.remove(lease)
            given_back.set()
        return b""

    given_back = threading.Event()
    contexts: list[CallContext] = []
    call = serve(M=use).unary_unary("/T/M").future(b"")
    assert begun.wait(TIMEOUT_S)
    call.cancel()
    wait_for(lambda: not contexts[0].is_active())
    go.set()
    assert given_back.wait(TIMEOUT_S)
    assert not held


@pytest.mark.parametrize("plain", [False, True])
def test_work_of_a_call_that_is_cancelled_before_a_thread_had_time_is_not_done(
    serve: Serve, plain: bool
) -> None:
    go, begun, done = threading.Event(), threading.Semaphore(0), []
    observer = Observer()

    def work(name: bytes, _: CallContext) -> bytes:
        begun.release()
        assert go.wait(TIMEOUT_S)
        done.append(name)
        return name

    async def async_work(name: bytes, call: CallContext) -> bytes:
        return await call.in_thread(work, name, call)

    channel = serve({"observers": [observer]}, M=work if plain else async_work)
    to_call = channel.unary_unary("/T/M")
    first = [to_call.future(b"first", timeout=TIMEOUT_S) for _ in range(2)]  # as many as there are threads
    for _ in first:
        assert begun.acquire(timeout=TIMEOUT_S)
    late = to_call.future(b"late")
    wait_for(lambda: len(observer.began) == 3)
    late.cancel()
    wait_for(lambda: observer.ended == [("T/M", grpc.StatusCode.CANCELLED)])
    go.set()
    assert [call.result() for call in first] == [b"first"] * 2
    assert done == [b"first"] * 2


def test_call_that_is_cancelled_while_it_waits_ends_at_once(serve: Serve) -> None:
    waits, left = threading.Event(), threading.Event()
    observer = Observer()

    async def wait(_: bytes, __: CallContext) -> bytes:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return b""

    call = serve({"observers": [observer]}, M=wait).unary_unary("/T/M").future(b"")
    assert waits.wait(TIMEOUT_S)
    call.cancel()
    assert left.wait(TIMEOUT_S)
    wait_for(lambda: observer.ended == [("T/M", grpc.StatusCode.CANCELLED)])


@pytest.mark.parametrize("plain", [False, True])
def test_error_carries_its_status_and_its_class(serve: Serve, plain: bool) -> None:
    def refuse(_: bytes, call: CallContext) -> bytes:
        call.trailing.append(("why", "because"))
        raise UnknownModelError("nothing here: ñ")

    async def refuse_async(request: bytes, call: CallContext) -> bytes:
        return refuse(request, call)

    error = error_of(lambda: unary(serve(M=refuse if plain else refuse_async)))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "nothing here: ñ")
    trailing = [tuple(pair) for pair in error.trailing_metadata()]
    assert {("why", "because"), ("inferometer-error", "UnknownModelError")} < set(trailing)
    assert dict(trailing)["x-request-id"]


def test_method_sees_what_the_call_came_with(serve: Serve) -> None:
    async def tell(_: bytes, call: CallContext) -> bytes:
        metadata = dict(call.metadata)
        deadline_ns = call.deadline_ns(lambda: 1_000)
        assert deadline_ns is not None
        assert 1_000 < deadline_ns < 1_000 + 2 * TIMEOUT_S * 1_000_000_000
        assert call.is_active()
        call.trailing.append(("done", "yes"))
        return f"{metadata['who']} {call.record.peer}".encode()

    async def tell_no_deadline(_: bytes, call: CallContext) -> bytes:
        return repr(call.deadline_ns(lambda: 1_000)).encode()

    channel = serve(M=tell, N=tell_no_deadline)
    answer, call = channel.unary_unary("/T/M").with_call(b"", timeout=TIMEOUT_S, metadata=(("who", "me"),))
    assert answer.startswith(b"me ipv4:127.0.0.1:")
    assert ("done", "yes") in [tuple(pair) for pair in call.trailing_metadata()]
    assert channel.unary_unary("/T/N")(b"") == b"None"


async def echo(messages: AsyncIterator[bytes], _: CallContext) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message[:1]


def test_stream_is_answered_as_it_comes_and_read_no_further_than_a_little_ahead(serve: Serve) -> None:
    sent = itertools.count()

    def requests() -> Iterator[bytes]:
        for number in range(1000):
            next(sent)
            yield bytes([number % 256]) * 100_000

    channel = serve(M=method("M", echo, streams_requests=True))
    answers = channel.stream_stream("/T/M")(requests(), timeout=TIMEOUT_S)
    assert next(answers) == b"\0"
    assert next(sent) < 100, "the client cannot send what nobody reads"
    assert [answer[0] for answer in answers] == [number % 256 for number in range(1, 1000)]


def test_stream_that_fails_sends_what_it_has_before_its_status(serve: Serve) -> None:
    async def some(_: bytes, __: CallContext) -> AsyncIterator[bytes]:
        for number in (b"1", b"2", b"3"):
            yield number
        raise InputError("no more")

    call = serve(M=some).unary_stream("/T/M")(b"", timeout=TIMEOUT_S)
    assert list(itertools.islice(call, 3)) == [b"1", b"2", b"3"]
    assert error_of(lambda: next(call)).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_stream_that_the_client_leaves_is_closed_though_it_waits_for_room_or_a_request(serve: Serve) -> None:
    closed = threading.Semaphore(0)

    async def endless(_: Any, __: CallContext) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            closed.release()

    async def listening(messages: AsyncIterator[bytes], _: CallContext) -> AsyncIterator[bytes]:
        yield b"begun"
        try:
            async for message in messages:
                yield message
        finally:
            closed.release()

    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(TIMEOUT_S)
        yield from ()

    channel = serve(M=endless, L=method("L", listening, streams_requests=True))
    for call in (channel.unary_stream("/T/M")(b""), channel.stream_stream("/T/L")(never())):
        next(call)
        call.cancel()
        assert closed.acquire(timeout=TIMEOUT_S)
    over.set()


async def fail(_: bytes, __: CallContext) -> bytes:
    raise ZeroDivisionError(DETAIL)


def fail_in_thread(_: bytes, __: CallContext) -> bytes:
    raise ZeroDivisionError(DETAIL)


async def fail_later(_: Any, __: CallContext) -> AsyncIterator[bytes]:
    yield b"first"
    raise ZeroDivisionError(DETAIL)


@pytest.mark.parametrize(
    "faulty",
    [
        method("M", fail),
        method("M", fail_in_thread),
        method("M", fail_later),
        method("M", fail_later, streams_requests=True),
    ],
)
def test_client_learns_of_a_fault_but_not_its_details(serve: Serve, faulty: Method) -> None:
    observer = Observer()
    channel = serve({"observers": [observer]}, M=faulty)
    error = error_of(lambda: list(channel.stream_stream("/T/M")(iter([b""]), timeout=TIMEOUT_S)))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "M failed in the agent (ZeroDivisionError); the agent's log says more"
    assert dict(error.trailing_metadata())["x-request-id"]
    assert observer.began == ["T/M"]
    assert observer.ended == [("T/M", grpc.StatusCode.INTERNAL)]


@pytest.mark.parametrize(
    "path", ["/made/up", "//T/M", "/a\nINFO agent: all is well/b", "/\x1b[31m/x", "/T/Mx", "/"]
)
def test_name_that_a_client_makes_up_reaches_no_observer(serve: Serve, path: str) -> None:
    observer = Observer()
    dispatched = dispatcher(
        ThreadPoolExecutor(1), {"M": echo}, observers=[observer], secret=SecretCheck(SECRET)
    )

    class Details:
        method = path
        invocation_metadata = ()

    class Context:
        invocation_metadata = staticmethod(lambda: ())
        set_trailing_metadata = staticmethod(lambda _: None)
        peer = staticmethod(lambda: "ipv4:127.0.0.1:1")

        async def abort(self, code: grpc.StatusCode, details: str, trailing: object) -> None:
            assert code is grpc.StatusCode.UNAUTHENTICATED
            raise PermissionError(details)

    async def refuse() -> None:
        handler: Any = dispatched.service(Details())  # type: ignore[arg-type]  # as far as it is read
        await handler.stream_unary(iter(()), Context())

    for _ in range(2):
        with pytest.raises(PermissionError):
            asyncio.run(refuse())
        Details.method = "/T/M"
    assert observer.began == [UNKNOWN, "T/M"]
    Details.method, Details.invocation_metadata = path, RIGHT  # type: ignore[assignment]
    assert dispatched.service(Details()) is None  # type: ignore[arg-type]


def test_call_without_the_secret_is_refused_before_its_request_is_read(serve: Serve) -> None:
    never = threading.Event()

    def requests() -> Iterator[bytes]:
        never.wait(TIMEOUT_S)
        yield b""

    channel = serve({"secret": SecretCheck(SECRET)}, M=method("M", echo, streams_requests=True))
    for path in ("/T/M", "/T/Other"):
        error = error_of(lambda path=path: next(channel.stream_stream(path)(requests(), timeout=TIMEOUT_S)))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    answers = channel.stream_stream("/T/M")(iter([b"x"]), timeout=TIMEOUT_S, metadata=RIGHT)
    assert list(answers) == [b"x"]
    error = error_of(lambda: unary(channel, path="/T/Other", metadata=RIGHT))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    never.set()


class Content:
    """A request that can be referred to weakly."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __bytes__(self) -> bytes:
        return self._content


@pytest.mark.parametrize(
    "ending", ["answer", "error", "error in a thread", "cancelled", "stream", "no stream"]
)
def test_call_that_has_ended_holds_its_request_in_no_cycle(serve: Serve, ending: str) -> None:
    requests: list[weakref.ref[Content]] = []
    began = threading.Event()

    def decode(content: bytes) -> Content:
        requests.append(weakref.ref(request := Content(content)))
        return request

    def work(request: Content) -> bytes:
        raise InputError(f"cannot read {request!r}")

    async def unary_behaviour(request: Content, call: CallContext) -> bytes:
        began.set()
        if ending == "cancelled":
            await asyncio.Event().wait()
        if ending == "error":
            work(request)
        if ending == "error in a thread":
            await call.in_thread(work, request)
        return bytes(request)

    async def stream_behaviour(messages: AsyncIterator[Content], _: CallContext) -> AsyncIterator[bytes]:
        async for message in messages:
            yield bytes(message)
            if ending == "no stream":
                work(message)

    streams = "stream" in ending
    behaviour = stream_behaviour if streams else unary_behaviour
    channel = serve(M=Method("T/M", behaviour, decode, bytes, streams_requests=streams))
    gc.disable()
    try:
        if ending == "cancelled":
            call = channel.unary_unary("/T/M").future(b"x", timeout=TIMEOUT_S)
            assert began.wait(TIMEOUT_S)
            call.cancel()
        elif streams:
            with contextlib.suppress(grpc.RpcError):
                list(channel.stream_stream("/T/M")(iter([b"x", b"y"]), timeout=TIMEOUT_S))
        else:
            with contextlib.suppress(grpc.RpcError):
                unary(channel)
        assert requests
        wait_for(lambda: not any(reference() for reference in requests))
    finally:
        gc.enable()
