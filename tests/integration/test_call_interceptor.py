"""What the interceptor does around a service that is not the agent's own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from agent.server.observing.call import Call
from agent.server.observing.interceptor import CallInterceptor

DETAIL = "a detail of /srv/secret_place.py"


class Told:
    """Remembers how calls ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, grpc.StatusCode]] = []

    def call_began(self, call: Call) -> None:
        self.began.append(call.method)

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        assert duration_ns > 0
        self.ended.append((call.method, code))


def fail(_: object, __: grpc.ServicerContext) -> Any:
    raise ZeroDivisionError(DETAIL)


def fail_later(_: object, __: grpc.ServicerContext) -> Iterator[bytes]:
    yield b"first"
    raise ZeroDivisionError(DETAIL)


@contextmanager
def channel_to(told: Told) -> Iterator[grpc.Channel]:
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(fail),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(fail),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(fail_later),
        "StreamStream": grpc.stream_stream_rpc_method_handler(fail_later),
    }
    server = grpc.server(
        ThreadPoolExecutor(2), interceptors=[CallInterceptor([told], [f"Faulty/{name}" for name in methods])]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Faulty", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        server.stop(0).wait(30)


@pytest.mark.parametrize("method", ["UnaryUnary", "StreamUnary", "UnaryStream", "StreamStream"])
def test_what_a_service_raises_is_told_without_its_details(method: str) -> None:
    told = Told()
    with channel_to(told) as channel, pytest.raises(grpc.RpcError) as error:
        list(channel.stream_stream(f"/Faulty/{method}")(iter([b""]), timeout=30))
    assert error.value.code() is grpc.StatusCode.INTERNAL
    assert error.value.details() == (
        f"Faulty/{method} failed in the agent (ZeroDivisionError); the agent's log says more"
    )
    assert dict(error.value.trailing_metadata())["x-request-id"]
    assert told.began == [f"Faulty/{method}"]
    assert told.ended == [(f"Faulty/{method}", grpc.StatusCode.INTERNAL)]
