"""Calls on the event loop: what methods see of them, and what becomes of those that are given up."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from fake_framework import wait_for

from agent.server.loop.loop_server import LoopServer
from agent.server.marks import at_any_time, in_steps
from agent.server.steps import Steps, Wait, Work
from manifests.errors import RequestCancelledError

TIMEOUT_S = 20
Serve = Callable[..., grpc.Channel]


class Letter:
    """Something that comes when it is sent."""

    def __init__(self) -> None:
        self.listener: Callable[[], None] | None = None
        self.sent = threading.Event()

    def wait(self, timeout_ns: int | None) -> bool:
        return self.sent.wait(None if timeout_ns is None else timeout_ns / 1e9)

    def tell(self, listener: Callable[[], None]) -> None:
        self.listener = listener
        if self.sent.is_set():
            listener()

    def send(self) -> None:
        self.sent.set()
        if self.listener is not None:
            self.listener()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves methods of a service ``T``, in two threads; gives a channel to them."""
    with contextlib.ExitStack() as stack:

        def served(*interceptors: grpc.ServerInterceptor, **handlers: Any) -> grpc.Channel:
            pool = ThreadPoolExecutor(2, thread_name_prefix="pool")
            server = LoopServer(pool, interceptors, ())
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("T", handlers),))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(pool.shutdown, wait=False)
            stack.callback(server.close)
            stack.callback(server.stop, 0.0, TIMEOUT_S)
            return stack.enter_context(
                grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
            )

        yield served


def unary(channel: grpc.Channel, request: bytes = b"x", name: str = "M", **more: Any) -> Any:
    return channel.unary_unary(f"/T/{name}")(request, timeout=TIMEOUT_S, **more)


def error_of(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value


def thread_names(channel: grpc.Channel) -> str:
    name: bytes = unary(channel)
    return name.decode().partition("_")[0]


def test_behaviour_runs_in_a_thread_one_in_steps_on_the_loop_and_its_work_in_a_thread(serve: Serve) -> None:
    def name(*_: Any) -> bytes:
        return threading.current_thread().name.encode()

    @in_steps
    def here(*_: Any) -> Steps[bytes]:
        yield from ()
        return name()

    @in_steps
    def working(*_: Any) -> Steps[bytes]:
        return (yield Work(name))  # type: ignore[no-any-return]  # what work comes to is not known

    names = [
        thread_names(serve(M=grpc.unary_unary_rpc_method_handler(each))) for each in (name, here, working)
    ]
    assert names == ["pool", "grpc-loop", "pool"]


def test_many_calls_wait_on_the_loop_at_once_and_take_no_thread(serve: Serve) -> None:
    letters = [Letter() for _ in range(100)]

    @in_steps
    def wait(request: bytes, _: Any) -> Steps[bytes]:
        assert (yield Wait(letters[int(request)]))
        return request

    channel = serve(M=grpc.unary_unary_rpc_method_handler(wait))
    calls = [channel.unary_unary("/T/M").future(str(n).encode(), timeout=TIMEOUT_S) for n in range(100)]
    for letter in reversed(letters):
        wait_for(lambda letter=letter: letter.listener is not None)
        letter.send()
    assert [int(call.result()) for call in calls] == list(range(100))


def test_what_does_not_come_in_time_is_not_there(serve: Serve) -> None:
    @in_steps
    def wait(*_: Any) -> Steps[bytes]:
        return b"there" if (yield Wait(Letter(), timeout_ns=1_000_000)) else b"late"

    assert unary(serve(M=grpc.unary_unary_rpc_method_handler(wait))) == b"late"


def test_error_of_work_is_the_steps_to_deal_with(serve: Serve) -> None:
    def fail() -> None:
        raise KeyError("lost")

    @in_steps
    def mend(*_: Any) -> Steps[bytes]:
        try:
            yield Work(fail)
        except KeyError:
            return b"mended"
        return b""

    assert unary(serve(M=grpc.unary_unary_rpc_method_handler(mend))) == b"mended"


def test_what_work_returned_is_given_back_though_nobody_waits_for_it_any_more(serve: Serve) -> None:
    begun, go, held = threading.Event(), threading.Event(), []

    def lend() -> str:
        begun.set()
        assert go.wait(TIMEOUT_S)
        held.append("lease")
        return "lease"

    @in_steps
    def use(_: bytes, context: Any) -> Steps[bytes]:
        lease = yield Work(lend)
        try:
            yield Wait(Letter())
        finally:
            assert not context.is_active()
            held.remove(lease)
        return b""

    call = serve(M=grpc.unary_unary_rpc_method_handler(use)).unary_unary("/T/M").future(b"")
    assert begun.wait(TIMEOUT_S)
    call.cancel()
    given_back = threading.Event()
    threading.Timer(0, lambda: (go.set(), wait_for(lambda: not held), given_back.set())).start()
    assert given_back.wait(TIMEOUT_S)


def test_work_of_a_call_that_was_given_up_before_a_thread_had_time_is_not_done(serve: Serve) -> None:
    go, begun, done, raised = threading.Event(), threading.Semaphore(0), [], threading.Event()
    came, over = threading.Semaphore(0), threading.Event()

    def work(name: bytes) -> None:
        begun.release()
        assert go.wait(TIMEOUT_S)
        done.append(name)

    @in_steps
    def work_in_steps(name: bytes, context: Any) -> Steps[bytes]:
        if name == b"late":
            context.add_callback(over.set)
        came.release()
        try:
            yield Work(lambda: work(name))
        except RequestCancelledError:
            raised.set()
            raise
        return name

    method = serve(M=grpc.unary_unary_rpc_method_handler(work_in_steps)).unary_unary("/T/M")
    first = [method.future(b"first", timeout=TIMEOUT_S) for _ in range(2)]  # as many as there are threads
    for _ in first:
        assert begun.acquire(timeout=TIMEOUT_S)
        assert came.acquire(timeout=TIMEOUT_S)
    late = method.future(b"late")
    assert came.acquire(timeout=TIMEOUT_S)
    late.cancel()
    assert over.wait(TIMEOUT_S)
    go.set()
    assert [call.result() for call in first] == [b"first"] * 2
    assert raised.wait(TIMEOUT_S)
    assert done == [b"first"] * 2


def test_call_that_is_given_up_while_it_waits_is_left_at_once(serve: Serve) -> None:
    letter, left = Letter(), threading.Event()

    @in_steps
    def wait(_: bytes, context: Any) -> Steps[bytes]:
        context.add_callback(lambda: left.set())
        try:
            yield Wait(letter)
        finally:
            assert not context.add_callback(left.clear), "it is over"
        return b""

    call = serve(M=grpc.unary_unary_rpc_method_handler(wait)).unary_unary("/T/M").future(b"")
    wait_for(lambda: letter.listener is not None)
    call.cancel()
    assert left.wait(TIMEOUT_S)
    letter.send()


@pytest.mark.parametrize("steps", [False, True])
def test_abort_carries_its_status_and_what_goes_along(serve: Serve, steps: bool) -> None:
    def refuse(_: bytes, context: Any) -> Any:
        context.set_trailing_metadata((*context.trailing_metadata(), ("why", "because")))
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing here: ñ")

    @in_steps
    def refuse_in_steps(request: bytes, context: Any) -> Steps[None]:
        yield from ()
        refuse(request, context)

    chosen = refuse_in_steps if steps else refuse
    channel = serve(M=grpc.unary_unary_rpc_method_handler(chosen))
    error = error_of(lambda: unary(channel))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "nothing here: ñ")
    assert ("why", "because") in [tuple(pair) for pair in error.trailing_metadata()]


def test_method_sees_what_the_call_came_with(serve: Serve) -> None:
    def tell(_: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        assert 0 < context.time_remaining() < 2 * TIMEOUT_S
        assert context.is_active()
        assert context.code() is None
        assert context.peer_identities() is None
        context.set_trailing_metadata((("done", "yes"),))
        return f"{metadata['who']} {context.peer()}".encode()

    channel = serve(M=grpc.unary_unary_rpc_method_handler(tell))
    answer, call = channel.unary_unary("/T/M").with_call(b"", timeout=TIMEOUT_S, metadata=(("who", "me"),))
    assert answer.startswith(b"me ipv4:127.0.0.1:")
    assert ("done", "yes") in [tuple(pair) for pair in call.trailing_metadata()]


def test_stream_is_answered_as_it_comes_and_read_no_further_than_a_little_ahead(serve: Serve) -> None:
    sent = itertools.count()

    def requests() -> Iterator[bytes]:
        for number in range(1000):
            next(sent)
            yield bytes([number % 256]) * 100_000

    def echo(messages: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for message in messages:
            yield message[:1]

    channel = serve(M=grpc.stream_stream_rpc_method_handler(echo))
    answers = channel.stream_stream("/T/M")(requests(), timeout=TIMEOUT_S)
    assert next(answers) == b"\0"
    assert next(sent) < 100, "the client cannot send what nobody takes"
    assert [answer[0] for answer in answers] == [number % 256 for number in range(1, 1000)]


def test_stream_that_fails_sends_what_it_has_before_its_status(serve: Serve) -> None:
    def some(_: bytes, context: Any) -> Iterator[bytes]:
        yield from (b"1", b"2", b"3")
        context.abort(grpc.StatusCode.DATA_LOSS, "no more")

    call = serve(M=grpc.unary_stream_rpc_method_handler(some)).unary_stream("/T/M")(b"", timeout=TIMEOUT_S)
    assert list(itertools.islice(call, 3)) == [b"1", b"2", b"3"]
    assert error_of(lambda: next(call)).code() is grpc.StatusCode.DATA_LOSS


def test_stream_that_the_client_leaves_is_closed_though_it_waits_for_room_or_a_request(serve: Serve) -> None:
    closed = threading.Semaphore(0)

    def endless(_: Any, __: Any) -> Iterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            closed.release()

    def listening(messages: Iterator[bytes], _: Any) -> Iterator[bytes]:
        yield b"begun"
        try:
            yield from messages
        finally:
            closed.release()

    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(TIMEOUT_S)
        yield from ()

    channel = serve(
        M=grpc.unary_stream_rpc_method_handler(endless), L=grpc.stream_stream_rpc_method_handler(listening)
    )
    for call in (channel.unary_stream("/T/M")(b""), channel.stream_stream("/T/L")(never())):
        next(call)
        call.cancel()
        assert closed.acquire(timeout=TIMEOUT_S)
    over.set()


def test_responses_are_sent_at_any_time_without_a_thread(serve: Serve) -> None:
    senders: list[Callable[[Any], None]] = []

    @at_any_time
    def watch(_: bytes, __: Any, send: Callable[[Any], None]) -> None:
        send(b"now")
        senders.append(send)

    channel = serve(M=grpc.unary_stream_rpc_method_handler(watch))
    calls = [channel.unary_stream("/T/M")(b"", timeout=TIMEOUT_S) for _ in range(10)]
    assert [next(call) for call in calls] == [b"now"] * 10
    for send in senders:
        send(b"later")
        send(None)
    assert [list(call) for call in calls] == [[b"later"]] * 10


def test_interceptors_are_asked_in_their_order_for_each_call(serve: Serve) -> None:
    asked = []

    class Asks(grpc.ServerInterceptor):
        def __init__(self, name: str) -> None:
            self._name = name

        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            asked.append((self._name, handler_call_details.method))
            return continuation(handler_call_details)

    channel = serve(
        Asks("first"), Asks("second"), M=grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    )
    assert unary(channel) == b"x"
    assert asked == [("first", "/T/M"), ("second", "/T/M")]
    assert error_of(lambda: unary(channel, name="Other")).code() is grpc.StatusCode.UNIMPLEMENTED


def test_server_that_never_began_leaves_nothing_open() -> None:
    server = LoopServer(ThreadPoolExecutor(1), (), ())
    server.add_insecure_port("127.0.0.1:0")
    assert server.stop(1.0, 1.0)
    server.close()
    server.close()


def test_stopping_waits_for_calls_as_long_as_it_may_and_then_gives_them_up() -> None:
    letter = Letter()

    @in_steps
    def wait(*_: Any) -> Steps[bytes]:
        yield Wait(letter)
        return b"well"

    for grace_s, sends in ((TIMEOUT_S, True), (0.05, False)):
        letter = Letter()
        with ThreadPoolExecutor(1) as pool:
            server = LoopServer(pool, (), ())
            handlers = {"M": grpc.unary_unary_rpc_method_handler(wait)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("T", handlers),))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary("/T/M").future(b"", timeout=TIMEOUT_S)
                wait_for(lambda waited=letter: waited.listener is not None)
                stopped = pool.submit(server.stop, grace_s, TIMEOUT_S * 2)
                if sends:
                    letter.send()
                    assert call.result() == b"well"
                else:
                    assert error_of(call.result).code() in {
                        grpc.StatusCode.UNAVAILABLE,
                        grpc.StatusCode.CANCELLED,
                    }
                assert stopped.result(TIMEOUT_S)
            server.close()
