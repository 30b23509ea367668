"""The limits of a served agent, over sockets: each one is hit, and the agent keeps serving."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from agent_client import as_stream
from certificates import Authority
from fake_framework import SIDE, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image

from inferometer.agent.protocol.status import RETRY_KEY
from inferometer.agent.protocol.tensors import fill_tensor
from inferometer.agent.server import admission
from inferometer.agent.server.admission import Limits
from inferometer.agent.server.server import AgentServer
from inferometer.agent.server.tls import ServerTls
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.calls import translate_errors
from inferometer.client.remote.native.connection import Connection
from inferometer.manifests.errors import ConfigurationError, InputError, RateLimitError
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from inferometer.protos.inferometer.v1.registry_pb2_grpc import RegistryServiceStub

TIMEOUT_S = 20
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SLOW_RPS = 0.001
"""So few requests that no second one is let in while a test runs."""
Start = Callable[..., AgentServer]
ChannelTo = Callable[[str], grpc.Channel]


def ask(channel: grpc.Channel) -> None:
    RegistryServiceStub(channel).ListFrameworks(registry_pb2.ListFrameworksRequest(), timeout=TIMEOUT_S)


def check_health(channel: grpc.Channel) -> int:
    request = health_pb2.HealthCheckRequest()
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status


def refusal(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value


def batch(inputs: int) -> np.ndarray:
    return np.ones((inputs, 1, SIDE, SIDE), np.float32)


def test_batch_with_too_many_inputs_is_refused_in_each_way_that_it_may_come(start_agent: Start) -> None:
    agent = start_agent(limits=Limits(max_inputs=2))
    with open_remote_agent(agent.address, "Mean") as model:
        assert len(model.predict_tensor(batch(2)).input_ids) == 2
        with pytest.raises(InputError, match=r"has 3 inputs, but the agent takes at most 2.*--max_inputs"):
            model.predict_tensor(batch(3))
    with grpc.insecure_channel(agent.address) as channel:
        stub = PredictServiceStub(channel)
        id_ = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=TIMEOUT_S).session_id
        inputs = [predict_pb2.Input(id=str(i), url="http://example.org/") for i in range(3)]
        request = predict_pb2.PredictRequest(session_id=id_, inputs=inputs)
        for call in (
            lambda: stub.Predict(request, timeout=TIMEOUT_S),
            lambda: next(stub.PredictStream(as_stream([request]), timeout=TIMEOUT_S)),
        ):
            assert "has 3 inputs" in refusal(call).details()
        infer = v2.ModelInferRequest(model_name="Mean", raw_input_contents=[batch(3).tobytes()])
        infer.inputs.add(name="data", datatype="FP32", shape=[3, 1, SIDE, SIDE])
        error = refusal(lambda: GRPCInferenceServiceStub(channel).ModelInfer(infer, timeout=TIMEOUT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "at most 2" in error.details()


def test_image_with_too_many_pixels_fails_before_it_is_decoded(start_agent: Start) -> None:
    def png(side: int) -> bytes:
        file = io.BytesIO()
        Image.new("L", (side, side)).save(file, "PNG")
        return file.getvalue()

    agent = start_agent(limits=Limits(max_pixels=100))
    with grpc.insecure_channel(agent.address) as channel:
        stub = PredictServiceStub(channel)
        id_ = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=TIMEOUT_S).session_id
        inputs = [predict_pb2.Input(id=str(side), encoded_image=png(side)) for side in (10, 11)]
        answer = stub.Predict(predict_pb2.PredictRequest(session_id=id_, inputs=inputs), timeout=TIMEOUT_S)
    assert list(answer.input_ids) == ["10"]
    assert [failure.message for failure in answer.failures] == [
        "image of 11 × 11 pixels; at most 100 are decoded"
    ]


def test_client_that_asks_too_often_is_told_when_to_ask_again(
    start_agent: Start, channel_to: ChannelTo
) -> None:
    channel = channel_to(start_agent(limits=Limits(max_client_rps=SLOW_RPS, client_burst=3)).address)
    for _ in range(3):
        ask(channel)
    error = refusal(lambda: ask(channel))
    assert error.code() is EXHAUSTED
    wait_ms = int(dict(error.trailing_metadata())[RETRY_KEY])
    assert 900_000 < wait_ms <= 1_000_000
    assert f"try again in {wait_ms} ms" in error.details()
    assert check_health(channel) == 1, "health is asked at any rate"


def test_client_that_asks_too_often_gets_the_error_of_that(start_agent: Start) -> None:
    address = start_agent(limits=Limits(max_client_rps=SLOW_RPS, client_burst=1)).address
    with Connection(AgentAddress.parse(address)) as connection, translate_errors(address):
        connection.registry.ListFrameworks(registry_pb2.ListFrameworksRequest())
        with (
            pytest.raises(RateLimitError, match="no more requests from this client"),
            translate_errors(address),
        ):
            connection.registry.ListFrameworks(registry_pb2.ListFrameworksRequest())


def test_clients_are_told_apart_by_their_certificates(start_agent: Start, tmp_path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    agent = start_agent(
        tls=ServerTls(files.cert, files.key, authority.ca),
        limits=Limits(max_client_rps=SLOW_RPS, client_burst=1),
    )
    with ExitStack() as stack:

        def channel(name: str) -> grpc.Channel:
            shown = authority.issue(f"{name}@example.org", file=name)
            credentials = grpc.ssl_channel_credentials(
                authority.ca.read_bytes(), shown.key.read_bytes(), shown.cert.read_bytes()
            )
            return stack.enter_context(grpc.secure_channel(agent.address, credentials))

        ask(channel("alice"))
        ask(channel("bob"))
        assert refusal(lambda: ask(channel("alice"))).code() is EXHAUSTED


def test_messages_of_a_stream_wait_for_their_turn(start_agent: Start, channel_to: ChannelTo) -> None:
    agent = start_agent(limits=Limits(max_client_rps=SLOW_RPS, client_burst=4))
    stub = PredictServiceStub(channel_to(agent.address))
    id_ = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=TIMEOUT_S).session_id
    request = predict_pb2.PredictRequest(session_id=id_)
    fill_tensor(request.batch, batch(1))
    answers = stub.PredictStream(as_stream([request] * 5), timeout=TIMEOUT_S)
    # one token was for Open, one for the stream with its first message, and two are left
    for _ in range(3):
        assert len(next(answers).input_ids) == 1
    came = threading.Event()

    def wait_for_next() -> None:
        try:
            next(answers)
        except grpc.RpcError:
            return
        came.set()

    waiting = threading.Thread(target=wait_for_next)
    waiting.start()
    assert not came.wait(0.3)
    answers.cancel()
    waiting.join(TIMEOUT_S)
    assert not came.is_set()
    assert check_health(channel_to(agent.address)) == 1


@pytest.fixture
def watch(channel_to: ChannelTo) -> Iterator[Callable[[str], grpc.Call]]:
    """Begins to watch an agent's health over a connection of its own, and waits for the first answer."""
    with ExitStack() as stack:

        def begin(address: str) -> grpc.Call:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(address, options))
            call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            stack.callback(call.cancel)
            assert next(call).status == 1
            return call

        yield begin


def test_client_with_too_many_streams_gets_no_more_until_one_ends(
    start_agent: Start, watch: Callable[[str], grpc.Call]
) -> None:
    address = start_agent(limits=Limits(max_client_streams=2)).address
    first, _ = watch(address), watch(address)
    error = refusal(lambda: watch(address))
    assert error.code() is EXHAUSTED
    assert "its limit of 2 streams" in error.details()
    first.cancel()

    def let_in() -> bool:
        try:
            watch(address)
        except grpc.RpcError:
            return False
        return True

    wait_for(let_in)


def test_streams_of_all_clients_are_limited(start_agent: Start, channel_to: ChannelTo) -> None:
    stub = PredictServiceStub(channel_to(start_agent(limits=Limits(max_streams=1)).address))
    id_ = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=TIMEOUT_S).session_id
    request = predict_pb2.PredictRequest(session_id=id_)
    fill_tensor(request.batch, batch(1))
    done = threading.Event()

    def requests() -> Iterator[predict_pb2.PredictRequest]:
        yield request
        done.wait(TIMEOUT_S)

    held = stub.PredictStream(as_stream(requests()), timeout=TIMEOUT_S)
    next(held)
    error = refusal(lambda: next(stub.PredictStream(as_stream([request]), timeout=TIMEOUT_S)))
    assert error.code() is EXHAUSTED
    done.set()
    assert next(held, None) is None


def test_connections_are_limited_and_renewed(start_agent: Start, channel_to: ChannelTo) -> None:
    agent = start_agent(limits=Limits(max_connections=1, max_connection_age_s=0.2))
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(agent.address, options) as first:
        call = health_pb2_grpc.HealthStub(first).Watch(health_pb2.HealthCheckRequest())
        next(call)  # holds the connection past its age
        with grpc.insecure_channel(agent.address, options) as second:
            assert refusal(lambda: check_health(second)).code() is grpc.StatusCode.UNAVAILABLE
        call.cancel()
    with grpc.insecure_channel(agent.address, options) as third:
        states: list[grpc.ChannelConnectivity] = []
        third.subscribe(states.append, try_to_connect=True)
        # at the end of its age the client is asked to go, and finds an agent that takes a new connection
        wait_for(lambda: grpc.ChannelConnectivity.IDLE in states[1:])
        wait_for(lambda: _is_healthy(third))


def _is_healthy(channel: grpc.Channel) -> bool:
    try:
        return check_health(channel) == 1
    except grpc.RpcError:
        return False


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_inputs": 0}, "max_inputs is 0; it must be above 0"),
        ({"max_client_rps": float("nan")}, "max_client_rps is nan"),
        ({"max_client_rps": float("inf")}, "max_client_rps is inf"),
        ({"max_pixels": 100_000_001}, "at most 100000000 are decoded"),
        ({"client_burst": 2}, "client_burst requires max_client_rps"),
        ({"max_streams": 32}, "max_streams is 32; it must be below 32"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    start_agent: Start, limits: dict[str, float], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        start_agent(limits=Limits(**limits))


def test_metadata_is_bounded(start_agent: Start, channel_to: ChannelTo) -> None:
    check = health_pb2_grpc.HealthStub(channel_to(start_agent(secret="correct horse").address)).Check
    request = health_pb2.HealthCheckRequest()
    for _ in range(10):  # gRPC's own bounds refuse these by chance
        check(request, metadata=[("x-long", "y" * 15_000)], timeout=TIMEOUT_S)
    error = refusal(lambda: check(request, metadata=[("x-long", "y" * 17_000)], timeout=TIMEOUT_S))
    assert error.code() is EXHAUSTED


@pytest.mark.parametrize("sent", [b"", b"PRI * HTT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_connection_that_does_not_begin_is_closed(
    start_agent: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(admission, "_HANDSHAKE_MS", 100)
    host, _, port = start_agent().address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(sent)
        while connection.recv(65536):
            pass
