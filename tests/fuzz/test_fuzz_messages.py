"""Damaged messages of both protocols, requests and replies, and redirects of web servers."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from mutations import assert_one_clean_line, damaged_bytes, fuzzed

from inferometer.agent.artifacts import web
from inferometer.agent.artifacts.web import WebError
from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.open_inference import codec as v2
from inferometer.agent.open_inference.codec import DATATYPES, TensorSignature
from inferometer.agent.open_inference.codec import read_inputs as read_v2_inputs
from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor, Url
from inferometer.agent.protocol.conversion import read_inputs, read_options
from inferometer.agent.protocol.messages import (
    PredictCall,
    decode_answer,
    decode_request,
    decode_response,
    encode_batch_request,
    encode_inputs_request,
    encode_response,
)
from inferometer.agent.tasks.predictions import Classifications, RawOutputs
from inferometer.client.remote.kserve.server import RequestForm, ServedInput, decode_reply
from inferometer.manifests.errors import InferometerError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inferometer.v1 import predict_pb2

ARRAY = np.arange(12, dtype=np.float32).reshape(2, 6)
TIMES = StageTimes(1, 2, 3, 4)
REQUESTS = [
    encode_batch_request("session", ARRAY),
    encode_inputs_request(
        "s",
        [
            ("a", EncodedImage(b"x")),
            ("b", Url("http://h")),
            ("c", Pixels(np.ones((2, 2, 3), np.uint8))),
            ("d", Tensor(ARRAY)),
        ],
    ),
]
RESPONSES = [
    encode_response(BatchResult(("a", "b"), RawOutputs({"x": ARRAY}), (), TIMES)),
    encode_response(
        BatchResult(
            ("a",),
            Classifications(np.array([[2, 0]]), np.array([[0.75, 0.25]], np.float32)),
            (InputFailure("b", Stage.READ, "why"),),
            TIMES,
        )
    ),
]
OPENINGS = [
    predict_pb2.OpenRequest(
        model_name="M", device=predict_pb2.Device(index=1), threads=2, weights=1, seed=3
    ).SerializeToString()
]
FORM = RequestForm("M", "1", (ServedInput("data", "data", DATATYPES["FP32"]),), ("scores",))
SIGNATURES = {"data": TensorSignature("data", DATATYPES["FP32"], (6,))}
REPLY = pb.ModelInferResponse(
    model_name="M",
    outputs=[pb.ModelInferResponse.InferOutputTensor(name="scores", datatype="FP32", shape=[2, 6])],
    raw_output_contents=[ARRAY.tobytes()],
)
TYPED = pb.ModelInferResponse(
    outputs=[
        pb.ModelInferResponse.InferOutputTensor(
            name="n", datatype="INT8", shape=[2], contents=pb.InferTensorContents(int_contents=[1, 300])
        )
    ]
)


def arrays_of(call: PredictCall) -> None:
    if call.batch is not None:
        call.batch.array("batch")
    read_inputs(call.message.inputs)


@fuzzed
@given(damaged_bytes(REQUESTS))
def test_requests_of_the_agents_protocol(content: bytes) -> None:
    try:
        arrays_of(decode_request(content))
    except DecodeError:
        pass
    except InferometerError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes(OPENINGS))
def test_requests_for_a_session(content: bytes) -> None:
    try:
        read_options(predict_pb2.OpenRequest.FromString(content))
    except DecodeError:
        pass
    except InferometerError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes(RESPONSES))
def test_responses_of_the_agents_protocol(content: bytes) -> None:
    for decode in (decode_response, decode_answer):
        try:
            decode(content)
        except DecodeError:
            pass
        except InferometerError as error:
            assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes([FORM.encode({"data": ARRAY}), FORM.encode({"data": ARRAY[:1]})]))
def test_requests_of_the_open_inference_protocol(content: bytes) -> None:
    try:
        read_v2_inputs(v2.decode_request(content), SIGNATURES, 4, "M")
    except DecodeError:
        pass
    except InferometerError as error:
        assert_one_clean_line(error)


@fuzzed
@given(damaged_bytes([REPLY.SerializeToString(), TYPED.SerializeToString()]))
def test_replies_of_the_open_inference_protocol(content: bytes) -> None:
    try:
        decode_reply(content)
    except InferometerError as error:
        assert_one_clean_line(error)


URLS = [
    *(
        b"http://example.org:80/a/b?c=d#e",
        b"https://[::1]:443/x",
        b"//h/p",
        b"../up",
        b"?q",
        b"http://u:p@h/",
    ),
    *(b"http://2130706433/", b"HTTP://\xc3\xa9.example/", b"http://a..b/", b"ftp://x/y"),
]


@fuzzed
@given(damaged_bytes(URLS), st.sampled_from(URLS[:2]))
def test_redirects(location: bytes, first: bytes) -> None:
    try:
        address = web._Address.parse(first.decode())
        redirected = web._redirected(address, location.decode("latin-1"))
        assert redirected.scheme in {"http", "https"}
        assert redirected.host
    except WebError as error:
        assert_one_clean_line(error)
