"""The Open Inference Protocol with random bytes, damaged messages and invalid fields."""

import logging

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from open_inference import INFER, TIMEOUT_S, images, tensor_of

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService"
UNARY = sorted(
    method.name
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    if not method.server_streaming
)
CLIENT_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # of the parameter timeout
}
NAMES = (
    "",
    "data",
    "Mean",
    "Echo",
    "Mean@Fake",
    "@",
    "x" * 300,
    "\u2028\u0000",
    "scores",
    "1.0",
    ">=",
    "==1.0",
)
ROUNDS = 400


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent()


@pytest.fixture
def ask(agent, channel_to, caplog):
    """Sends bytes to a method; the answer is a message or a fault of the client's, told in one line."""
    channel = channel_to(agent.address)

    def call(content, method=INFER):
        done = channel.unary_unary(method).future(content, timeout=TIMEOUT_S)
        if done.code() is grpc.StatusCode.OK:
            return done.result()
        details = done.details()
        assert done.code() in CLIENT_ERRORS, f"{done.code()}: {details}; {content!r:.300}"
        assert len(details.splitlines()) == 1
        assert "Traceback" not in details
        return None

    with caplog.at_level(logging.ERROR):
        yield call
        with triton.InferenceServerClient(agent.address) as client:
            assert client.infer("Mean", [tensor_of(images(1))]).as_numpy("scores").shape == (1, 3)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def valid():
    batch = images(2)
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=batch.shape)
    return pb.ModelInferRequest(
        model_name="Mean", model_version="1.0", id="7", inputs=[item], raw_input_contents=[batch.tobytes()]
    ).SerializeToString()


@pytest.mark.parametrize("method", UNARY)
def test_random_bytes_are_refused_by_every_method(ask, method):
    random = np.random.default_rng(0)
    for _ in range(ROUNDS // 4):
        ask(random.bytes(int(random.integers(1, 200))), f"{SERVICE}/{method}")


def test_truncated_requests_are_refused(ask, valid):
    # what ends between two fields is a message still, but of a request without its tensor
    answered = [ask(valid[:length]) for length in range(len(valid))]
    assert not any(answered)
    assert ask(valid)


def test_damaged_requests_are_refused_or_answered(ask, valid):
    random = np.random.default_rng(1)
    head = len(valid) - images(2).nbytes
    for _ in range(ROUNDS):
        damaged = bytearray(valid)
        for place in random.integers(0, head + 8, int(random.integers(1, 4))):
            damaged[place] = int(random.integers(0, 256))
        ask(bytes(damaged))


def test_messages_of_nonsense_are_refused_or_answered(ask):
    random = np.random.default_rng(2)

    def number():
        return int(random.choice([-(2**63), -1, 0, 1, 2, 4, 16, 2**31, 2**63 - 1]))

    def parameter():
        kind = random.choice(["bool_param", "int64_param", "string_param", "double_param", "none"])
        value = {"bool_param": True, "int64_param": number(), "string_param": "x", "double_param": 1e308}
        return pb.InferParameter() if kind == "none" else pb.InferParameter(**{kind: value[kind]})

    def item():
        tensor = pb.ModelInferRequest.InferInputTensor(
            name=str(random.choice(["data", *NAMES])),
            datatype=str(random.choice(["FP32", "FP64", "BYTES", "INT8", "", "x"])),
            shape=[number() for _ in range(int(random.integers(0, 6)))],
        )
        if random.random() < 0.5:
            tensor.shape[:] = [1, 1, 4, 4]
        if random.random() < 0.5:
            tensor.contents.fp32_contents.extend([float("nan")] * int(random.choice([0, 1, 16])))
        if random.random() < 0.1:
            tensor.contents.int_contents.extend([number() % 2**31])
        if random.random() < 0.1:
            tensor.parameters[str(random.choice(NAMES))].CopyFrom(parameter())
        return tensor

    for _ in range(ROUNDS):
        message = pb.ModelInferRequest(
            model_name=str(random.choice(["Mean", "Echo", *NAMES])),
            model_version=str(random.choice(["", "", "1.0", *NAMES])),
            inputs=[item() for _ in range(int(random.choice([0, 1, 1, 1, 2])))],
            raw_input_contents=[b"\0" * int(random.choice([0, 64, 63]))] * int(random.choice([0, 1, 1, 2])),
        )
        for key in ("timeout", "priority", "sequence_id"):
            if random.random() < 0.1:
                message.parameters[key].CopyFrom(parameter())
        if random.random() < 0.3:
            output = message.outputs.add(name=str(random.choice(["scores", "data", *NAMES])))
            output.parameters["classification"].CopyFrom(parameter())
        ask(message.SerializeToString())
