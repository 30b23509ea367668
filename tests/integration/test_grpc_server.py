"""Starting and stopping the event loop that answers calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from fake_framework import wait_for
from served_methods import TIMEOUT_S, dispatcher, error_of

from inferometer.agent.server.rpc import GrpcServer


def test_server_that_never_began_leaves_nothing_open() -> None:
    server = GrpcServer(dispatcher(ThreadPoolExecutor(1), {}), ())
    server.add_insecure_port("127.0.0.1:0")
    assert server.stop(1.0, 1.0)
    server.close()
    server.close()


def test_stopping_waits_for_calls_within_the_grace_period_and_then_cancels_them() -> None:
    for grace_s, answers in ((TIMEOUT_S, True), (0.05, False)):
        events: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

        async def wait(*_: Any, events: list[Any] = events) -> bytes:
            events.append((asyncio.get_running_loop(), asyncio.Event()))
            await events[0][1].wait()
            return b"well"

        with ThreadPoolExecutor(1) as pool:
            server = GrpcServer(dispatcher(pool, {"M": wait}), ())
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary("/T/M").future(b"", timeout=TIMEOUT_S)
                wait_for(lambda events=events: events)
                stopped = pool.submit(server.stop, grace_s, TIMEOUT_S * 2)
                if answers:
                    loop, event = events[0]
                    loop.call_soon_threadsafe(event.set)
                    assert call.result() == b"well"
                else:
                    assert error_of(call.result).code() in {
                        grpc.StatusCode.UNAVAILABLE,
                        grpc.StatusCode.CANCELLED,
                    }
                assert stopped.result(TIMEOUT_S)
            server.close()
