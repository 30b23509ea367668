"""An agent whose threads are all busy still answers status calls and refusals at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_client import Client, v1_request
from fake_framework import wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inferometer.agent.server.admission import Limits
from inferometer.agent.server.native import registry_service
from inferometer.agent.server.server import AgentServer
from inferometer.agent.server.standard_services import MAX_WATCHES
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

TIMEOUT_S = 20
SOON_S = 5
SECRET = "open sesame"
RIGHT = (("authorization", f"Bearer {SECRET}"),)
HEALTH = "grpc.health.v1.Health"
Start = Callable[..., AgentServer]
ChannelTo = Callable[[str], grpc.Channel]


def own_channel(address: str) -> grpc.Channel:
    """A channel with a connection that it shares with no other."""
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


@pytest.fixture
def never() -> Iterator[Callable[[], Iterator[bytes]]]:
    """Gives requests that do not come until the test is over."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        over.wait(TIMEOUT_S * 2)
        yield from ()

    yield requests
    over.set()


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_agent_whose_threads_all_predict_tells_how_it_is_and_refuses_at_once(
    start_agent: Start, channel_to: ChannelTo, manifest_folder: Path
) -> None:
    agent = start_agent(secret=SECRET, workers=2)
    stub: Any = Client(channel_to(agent.address))
    opened = stub.v1.Open(
        predict_pb2.OpenRequest(model_name="Waiting"), timeout=TIMEOUT_S, metadata=RIGHT
    ).session_id
    calls = [stub.v1.Predict.future(v1_request(opened), timeout=TIMEOUT_S, metadata=RIGHT) for _ in range(6)]
    wait_for((manifest_folder / "begun").exists)
    with own_channel(agent.address) as channel:
        asked: Any = Client(channel)
        status = asked.registry.Status(registry_pb2.StatusRequest(), timeout=SOON_S, metadata=RIGHT)
        assert status.open_sessions == 1
        for method in ("Describe", "ListFrameworks", "ListModels"):
            request = getattr(registry_pb2, f"{method}Request")()
            getattr(asked.registry, method)(request, timeout=SOON_S, metadata=RIGHT)
        assert asked.v2.ServerReady(v2.ServerReadyRequest(), timeout=SOON_S, metadata=RIGHT).ready
        assert asked.v2.ServerLive(v2.ServerLiveRequest(), timeout=SOON_S, metadata=RIGHT).live
        ready = v2.ModelReadyRequest(name="Mean")
        assert not asked.v2.ModelReady(ready, timeout=SOON_S, metadata=RIGHT).ready
        for path in (
            "/inferometer.v1.PredictService/Predict",
            "/inferometer.v1.RegistryService/Status",
            "/made/up",
        ):
            refused = channel.unary_unary(path)
            assert code_of(lambda r=refused: r(b"", timeout=SOON_S)) is grpc.StatusCode.UNAUTHENTICATED
        assert not any(call.done() for call in calls)
    (manifest_folder / "go").touch()
    for call in calls:
        call.result(TIMEOUT_S)


def test_reflection_counts_among_the_streams_and_leaves_threads_to_others(
    start_agent: Start, channel_to: ChannelTo, never: Callable[[], Iterator[bytes]]
) -> None:
    agent = start_agent(workers=3, limits=Limits(max_streams=2))
    channel = channel_to(agent.address)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    idle: list[Any] = []

    def reflected() -> grpc.StatusCode:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return code_of(lambda: list(stub.ServerReflectionInfo(iter([request]), timeout=SOON_S)))

    def reflected_beside_two() -> grpc.StatusCode:
        idle[:] = [stream for stream in idle if not stream.done()]  # without one that a question overtook
        idle.extend(channel.stream_stream(path)(never(), timeout=TIMEOUT_S) for _ in range(2 - len(idle)))
        return reflected()

    wait_for(lambda: reflected_beside_two() is grpc.StatusCode.RESOURCE_EXHAUSTED)
    client: Any = Client(channel)
    assert client.open("Mean")
    for call in idle:
        call.cancel()
    wait_for(lambda: reflected() is grpc.StatusCode.OK)


def test_health_is_told_whoever_sends_half_of_a_call(
    start_agent: Start, never: Callable[[], Iterator[bytes]]
) -> None:
    agent = start_agent(secret=SECRET)
    with own_channel(agent.address) as stalled, own_channel(agent.address) as channel:
        paths = [f"/{HEALTH}/{method}" for method in ("Check", "Watch") for _ in range(10)]
        calls = [stalled.stream_stream(path)(never(), timeout=TIMEOUT_S) for path in paths]
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1
        for call in calls:
            call.cancel()


def test_calls_whose_request_never_comes_hold_no_thread(
    start_agent: Start, never: Callable[[], Iterator[bytes]]
) -> None:
    agent = start_agent(workers=2)
    paths = (
        "inferometer.v1.PredictService/Predict",
        "inferometer.v1.PredictService/Open",
        "inferometer.v1.RegistryService/Describe",
    )
    with own_channel(agent.address) as stalled, own_channel(agent.address) as channel:
        calls = [stalled.stream_stream(f"/{path}")(never(), timeout=TIMEOUT_S) for path in paths * 20]
        client: Any = Client(channel)
        assert client.open("Mean")
        client.registry.Describe(registry_pb2.DescribeRequest(), timeout=SOON_S)
        for call in calls:
            call.cancel()


def test_of_several_requests_of_a_call_that_takes_one_the_first_counts(
    start_agent: Start, channel_to: ChannelTo
) -> None:
    channel = channel_to(start_agent().address)
    for path in (f"/{HEALTH}/Check", "/inferometer.v1.RegistryService/Describe"):
        assert channel.stream_unary(path)(iter([b"", b"x"]), timeout=TIMEOUT_S)


def test_agent_stops_while_those_who_watch_its_health_leave(start_agent: Start) -> None:
    for _ in range(5):
        agent = start_agent()
        with own_channel(agent.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watching = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S) for _ in range(100)]
            assert {next(call).status for call in watching} == {1}
            stopping = threading.Thread(target=agent.stop, args=(5,), daemon=True)
            stopping.start()
            for call in watching:
                call.cancel()
            stopping.join(TIMEOUT_S)
            assert not stopping.is_alive()


def test_what_the_agent_is_is_read_before_anybody_asks(
    start_agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, original = threading.Event(), registry_service.read_agent_info

    def read(*arguments: Any) -> Any:
        reads.set()
        return original(*arguments)

    monkeypatch.setattr(registry_service, "read_agent_info", read)
    start_agent()
    assert reads.wait(TIMEOUT_S)


def test_no_more_than_a_number_watch_the_health(start_agent: Start, channel_to: ChannelTo) -> None:
    stub = health_pb2_grpc.HealthStub(channel_to(start_agent().address))
    watching = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S) for _ in range(MAX_WATCHES)]
    assert {next(call).status for call in watching} == {1}

    def one_more() -> grpc.StatusCode:
        call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        try:
            return code_of(lambda: next(call))
        finally:
            call.cancel()

    assert one_more() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1
    watching.pop().cancel()
    wait_for(lambda: one_more() is grpc.StatusCode.OK)
