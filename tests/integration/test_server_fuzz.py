"""For any bytes to any method, the agent reports the error in one line and keeps serving."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from agent_client import BATCH, Client
from fake_framework import fake_registry
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from random_messages import RandomMessages

from inferometer.manifests.errors import InputError
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

ROUNDS = int(os.environ.get("INFEROMETER_FUZZ_ROUNDS", "1"))
CALLS = 50
WORKERS = 8
TIMEOUT_S = 20
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in (predict_pb2, registry_pb2, v2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
WORDS = (
    *("Echo", "Mean", "Failing", "Large", "echo", "Nowhere", "", "1.0", ">=1", "2.0", "Fake", "None", "data"),
    *("float32", "FP32", "uint8", "object", "BYTES", "INT64", "parameters", "weights", "random", "device"),
    *("http://127.0.0.1:1/", "file:///etc/passwd", "sequence_id", "classification", "binary_data"),
    *(
        "inferometer.v1.PredictService",
        "inference.GRPCInferenceService",
        "protos/inferometer/v1/predict.proto",
    ),
)
PRIVATE = ("Traceback", "Exception ", 'File "', ".py", "/home", "/root", "site-packages", str(Path.cwd()))


def refuse(url):
    raise InputError(f"{url}: nothing is fetched here")


def send(channel, path, contents, timeout_s):
    """Sends requests as they are; returns how they were answered, as code and message."""
    call = channel.stream_stream(path)(iter(contents), timeout=timeout_s)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def check(path, code, details):
    for part in (*PRIVATE, "\n"):
        assert part not in details, f"{path}: {details}"
    assert code is not grpc.StatusCode.UNKNOWN, f"{path}: {details}"
    assert "failed in the agent" not in details, f"{path}: a fault of the program: {details}"


@pytest.mark.parametrize("path", METHODS)
def test_no_bytes_are_too_strange(start_agent, channel_to, path):
    method = METHODS[path]
    server = start_agent(
        workers=WORKERS, registry=fake_registry(), parts={"fetch": refuse}, max_message_bytes=100_000
    )
    channel = channel_to(server.address)
    client = Client(channel)
    session_id = client.open("Echo")
    messages = RandomMessages(path, (*WORDS, session_id))
    request_class = message_factory.GetMessageClass(method.input_type)
    endless = path.endswith("/Watch")
    for _ in range(ROUNDS):
        for _ in range(CALLS if not endless else 10):
            count = messages.random.randint(1, 3) if method.client_streaming else 1
            contents = [messages.content(request_class) for _ in range(count)]
            code, details = send(channel, path, contents, 0.05 if endless else TIMEOUT_S)
            check(path, code, details)
        assert client.infer("Echo").raw_output_contents == [BATCH.tobytes()]
    with ThreadPoolExecutor(WORKERS) as pool:  # each thread of the agent is still there
        answers = list(pool.map(client.infer, ["Echo"] * WORKERS * 4))
    assert all(answer.raw_output_contents == [BATCH.tobytes()] for answer in answers)
    assert sum(t.name.startswith("grpc-worker") for t in threading.enumerate()) <= WORKERS


@pytest.mark.parametrize(
    "path", ["/", "/inferometer.v1.PredictService/Nothing", "/No.Such/Service", "/" + "x" * 5000]
)
def test_method_that_there_is_not_is_unimplemented(start_agent, channel_to, path):
    channel = channel_to(start_agent().address)
    code, details = send(channel, path, [b""], TIMEOUT_S)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    check(path, code, details)
    assert Client(channel).infer("Echo")


def test_requests_that_stop_in_the_middle_leave_nothing_behind(start_agent, channel_to):
    server = start_agent(workers=WORKERS)
    client = Client(channel_to(server.address))
    for number in range(40):
        channel = grpc.insecure_channel(server.address)
        call = channel.stream_stream("/inferometer.v1.PredictService/PredictStream")(iter([bytes(number)]))
        if number % 2:
            call.cancel()
        channel.close()
    assert client.infer("Echo").raw_output_contents == [BATCH.tobytes()]
