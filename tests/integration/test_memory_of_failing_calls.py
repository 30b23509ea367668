"""A call that has failed keeps nothing of its request, in whatever way it failed."""

import gc
import tracemalloc

import grpc
import numpy as np
import pytest
from agent_client import TIMEOUT_S, Client
from fake_framework import SIDE, fake_registry

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, tensor_pb2

CALLS = 40
REQUEST_BYTES = 1024 * 1024
KEPT_BYTES = 8 * REQUEST_BYTES
SHAPE = [REQUEST_BYTES // (4 * SIDE * SIDE), 1, SIDE, SIDE]
TENSOR = np.ones(SHAPE, np.float32).tobytes()


def inference(model="Mean", shape=SHAPE, datatype="FP32", name="data"):
    tensor = v2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    return v2.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[TENSOR])


def batch(session_id, shape=SHAPE):
    tensor = tensor_pb2.Tensor(dtype="float32", shape=shape, content=TENSOR)
    return predict_pb2.PredictRequest(session_id=session_id, batch=tensor)


INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT = "/inferometer.v1.PredictService/Predict"
PREDICT_STREAM = "/inferometer.v1.PredictService/PredictStream"
FAILURES = {
    "a tensor of another length": (INFER, lambda _: inference(shape=[1, 1, SIDE, SIDE])),
    "a batch that is too large": (INFER, lambda _: inference()),
    "another datatype": (INFER, lambda _: inference(datatype="INT8")),
    "an unknown input": (INFER, lambda _: inference(name="date")),
    "an unknown model": (INFER, lambda _: inference(model="Nowhere")),
    "a model that fails": (INFER, lambda _: inference(model="Failing")),
    "a fault of the program": (INFER, lambda _: inference(model="Crashing")),
    "a message of another method": (INFER, lambda _: batch("nobody")),
    "a batch of another length": (PREDICT, lambda client: batch(client.open("Mean"), shape=[2])),
    "a prediction that fails": (PREDICT, lambda client: batch(client.open("Failing"))),
    "an unknown session": (PREDICT, lambda _: batch("nobody")),
    "a stream of an unknown session": (PREDICT_STREAM, lambda _: batch("nobody")),
    "a stream with a wrong batch": (PREDICT_STREAM, lambda client: batch(client.open("Mean"), shape=[2])),
}


def memory_kept(call):
    """The bytes that calls leave behind, as long as nothing collects cycles."""
    for _ in range(3):  # what the first ones make stays
        call()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(CALLS):
            call()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.fixture(scope="module")
def channel(start_shared_agent):
    with grpc.insecure_channel(start_shared_agent(registry=fake_registry()).address) as found:
        yield found


@pytest.mark.parametrize(("path", "request_of"), FAILURES.values(), ids=FAILURES)
def test_failing_calls_keep_nothing(channel, path, request_of):
    # the same bytes each time: what the client keeps of a stream does not count
    content = request_of(Client(channel)).SerializeToString()
    method = channel.stream_stream(path)

    def call():
        assert method(iter([content]), timeout=TIMEOUT_S).code() is not grpc.StatusCode.OK

    assert memory_kept(call) < KEPT_BYTES


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, 0.002], ids=["cancelled", "expired"])
def test_calls_that_their_client_leaves_keep_nothing(channel, timeout_s):
    content = inference().SerializeToString()
    method = channel.unary_unary(INFER)

    def call():
        left = method.future(content, timeout=timeout_s)
        if timeout_s == TIMEOUT_S:
            left.cancel()
        assert left.code() is not grpc.StatusCode.OK

    assert memory_kept(call) < KEPT_BYTES


def test_a_stream_in_which_an_inference_fails_keeps_nothing(channel):
    content = inference(shape=[1]).SerializeToString()
    method = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        response_deserializer=v2.ModelStreamInferResponse.FromString,
    )

    def call():
        [answer] = method(iter([content]), timeout=TIMEOUT_S)
        assert answer.error_message

    assert memory_kept(call) < KEPT_BYTES
