"""The secret of an agent: every method of every service requires it, over sockets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inferometer.agent.server.server import AgentServer
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.connection import RemoteOptions, open_channel
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.manifests.errors import AgentError, ConfigurationError

TIMEOUT_S = 20
SECRET = "open sesame"
HEALTH = "grpc.health.v1.Health"
SERVICES = {
    HEALTH,
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "inferometer.v1.PredictService",
    "inferometer.v1.RegistryService",
}
RIGHT = (("authorization", f"Bearer {SECRET}"),)
WRONG = [
    (),
    (("authorization", ""),),
    (("authorization", SECRET),),
    (("authorization", f"bearer {SECRET}"),),
    (("authorization", f"Bearer {SECRET} "),),
    (("authorization", f"Bearer {SECRET[:-1]}"),),
    (("authorization", "Bearer "),),
    (("authorization-bin", f"Bearer {SECRET}".encode()),),
    (("secret", SECRET),),
    (("authorization", "Bearer wrong"), ("authorization", "Bearer other")),
]
Metadata = Sequence[tuple[str, str | bytes]]
Method = tuple[str, bool]
"""A method's path, and whether its answers are a stream."""


@pytest.fixture
def channel(
    start_agent: Callable[..., AgentServer], channel_to: Callable[[str], grpc.Channel]
) -> grpc.Channel:
    return channel_to(start_agent(secret=SECRET).address)


def reflected(channel: grpc.Channel, **request: object) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = iter([reflection_pb2.ServerReflectionRequest(**request)])
    return next(stub.ServerReflectionInfo(requests, timeout=TIMEOUT_S, metadata=RIGHT))


def methods_of(channel: grpc.Channel, service: str) -> Iterator[Method]:
    """The methods of a service, as the server describes them."""
    answer = reflected(channel, file_containing_symbol=service).file_descriptor_response
    for content in answer.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
        for each in file.service:
            if f"{file.package}.{each.name}" == service:
                yield from ((f"/{service}/{method.name}", method.server_streaming) for method in each.method)


def every_method(channel: grpc.Channel) -> list[Method]:
    services = {each.name for each in reflected(channel, list_services="").list_services_response.service}
    assert services == SERVICES
    methods = [method for service in sorted(services) for method in methods_of(channel, service)]
    assert len(methods) > 20
    return methods


def code_of(channel: grpc.Channel, method: Method, metadata: Metadata) -> grpc.StatusCode:
    """What a call with an empty message gives; of a stream, its first answer."""
    path, is_stream = method
    call = channel.stream_stream(path)(iter([b""]), timeout=TIMEOUT_S, metadata=metadata)
    try:
        next(call, None)
        if not is_stream:
            assert next(call, None) is None
    except grpc.RpcError as error:
        return error.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


def test_every_method_but_health_asks_for_the_secret(channel: grpc.Channel) -> None:
    for method in every_method(channel):
        for metadata in WRONG:
            code = code_of(channel, method, metadata)
            if method[0].startswith(f"/{HEALTH}/"):
                assert code is not grpc.StatusCode.UNAUTHENTICATED, method
            else:
                assert code is grpc.StatusCode.UNAUTHENTICATED, (method, metadata)
        assert code_of(channel, method, RIGHT) is not grpc.StatusCode.UNAUTHENTICATED, method


def test_nobody_learns_without_the_secret_which_methods_there_are(channel: grpc.Channel) -> None:
    for path in (
        "/inferometer.v1.PredictService/None",
        "/none",
        f"/{HEALTH}x/Check",
        "/grpc.health.v1/Check",
    ):
        assert code_of(channel, (path, False), ()) is grpc.StatusCode.UNAUTHENTICATED
        assert code_of(channel, (path, False), RIGHT) is grpc.StatusCode.UNIMPLEMENTED


def test_right_secret_among_others_is_enough(channel: grpc.Channel) -> None:
    metadata = (("authorization", "Bearer wrong"), *RIGHT)
    assert (
        code_of(channel, ("/inferometer.v1.RegistryService/ListFrameworks", False), metadata)
        is grpc.StatusCode.OK
    )


def test_calls_without_secret_that_send_no_request_hold_no_thread(
    start_agent: Callable[..., AgentServer], channel_to: Callable[[str], grpc.Channel]
) -> None:
    channel = channel_to(start_agent(secret=SECRET, workers=2).address)
    for _ in range(4):
        # the request never comes, as its iterator would wait for ever
        call = channel.stream_unary("/inferometer.v1.PredictService/Predict")
        with pytest.raises(grpc.RpcError) as error:
            call(_Never(), timeout=TIMEOUT_S)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1


class _Never:
    """Requests that nobody sends, until the call ends."""

    def __iter__(self) -> _Never:
        return self

    def __next__(self) -> bytes:
        threading.Event().wait(TIMEOUT_S / 10)
        raise StopIteration


@pytest.mark.parametrize("secret", ["", "naïve", "two\nlines", "\x00", "☃"])
def test_secret_that_cannot_be_sent_is_refused_on_both_sides_and_not_shown(
    start_agent: Callable[..., AgentServer], secret: str
) -> None:
    with pytest.raises(ConfigurationError, match="printable ASCII") as error:
        start_agent(secret=secret)
    assert not secret or secret not in str(error.value)
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        open_remote_agent("127.0.0.1:1", "Mean", remote=RemoteOptions(secret=secret))


def test_wrong_secret_is_not_shown(
    start_agent: Callable[..., AgentServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = start_agent(secret=SECRET)
    with pytest.raises(AgentError, match="requires a secret") as error:
        open_remote_agent(agent.address, "Mean", remote=RemoteOptions(secret="a wrong one"))
    for secret in (SECRET, "a wrong one"):
        assert secret not in caplog.text
        assert secret not in str(error.value)
        assert secret not in repr(RemoteOptions(secret=secret))


@pytest.mark.parametrize(
    ("address", "is_warned"),
    [
        ("gpu-host:50051", True),
        ("192.0.2.1:50051", True),
        ("grpc://gpu-host:50051", True),
        ("127.0.0.1.example.org:50051", True),
        ("grpcs://gpu-host:50051", False),
        ("127.0.0.1:50051", False),
        ("localhost:50051", False),
        ("[::1]:50051", False),
    ],
)
def test_secret_that_goes_over_the_network_in_clear_is_warned_of(
    caplog: pytest.LogCaptureFixture, address: str, is_warned: bool
) -> None:
    open_channel(AgentAddress.parse(address), None, (), secret=True).close()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == is_warned
    assert all("INSECURE: the secret goes to" in warning for warning in warnings)
    caplog.clear()
    open_channel(AgentAddress.parse(address), None, ()).close()
    assert not caplog.records


def test_health_calls_that_send_no_request_do_not_keep_others_from_being_answered(
    start_agent: Callable[..., AgentServer], channel_to: Callable[[str], grpc.Channel]
) -> None:
    agent = start_agent(secret=SECRET, workers=2)
    stalled = channel_to(agent.address)
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        done.wait(TIMEOUT_S)
        yield b""

    calls = [stalled.stream_unary(f"/{HEALTH}/Check").future(requests()) for _ in range(8)]
    try:
        listing = ("/inferometer.v1.RegistryService/ListFrameworks", False)
        assert code_of(channel_to(agent.address), listing, RIGHT) is grpc.StatusCode.OK
    finally:
        done.set()
    assert all(call.exception(TIMEOUT_S) is None for call in calls)
