"""Messages with tensors: wire format, alignment, and messages that cannot be parsed."""

from contextlib import suppress

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor, Text, Url
from inferometer.agent.protocol.conversion import read_inputs
from inferometer.agent.protocol.messages import (
    decode_request,
    decode_response,
    encode_batch_request,
    encode_inputs_request,
    encode_response,
)
from inferometer.agent.protocol.tensors import NUMERIC_TYPES, read_array
from inferometer.agent.tasks.predictions import Classifications, RawOutputs
from inferometer.manifests.errors import InputError, PredictionError
from inferometer.protos.inferometer.v1 import predict_pb2

TIMES = StageTimes(1, 2, 3, 2**40)


def raw_result(**tensors):
    return BatchResult(("a", "b"), RawOutputs(tensors), (), TIMES)


@pytest.mark.parametrize("dtype", NUMERIC_TYPES)
@pytest.mark.parametrize("shape", [(2, 3), (1,), (0, 4), (2, 1, 1, 2)])
def test_batch_request_is_what_protobuf_itself_reads(dtype, shape):
    array = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    content = encode_batch_request("session", array)
    message = predict_pb2.PredictRequest.FromString(content)
    assert message.session_id == "session"
    assert message.batch.dtype == dtype
    assert tuple(message.batch.shape) == shape
    assert message.batch.content == array.tobytes()
    call = decode_request(message.SerializeToString())
    assert call.message.session_id == "session"
    np.testing.assert_array_equal(call.batch.array("batch"), array, strict=True)


@pytest.mark.parametrize("shape", [(2, 3), (1,), (0, 4), (2, 1, 3)])
def test_strings_arrive_as_they_were(shape):
    words = np.array(["", "a\0b", "Größe", "😀" * 9, "x", "line\nline"], object)
    array = words[: np.prod(shape)].reshape(shape)
    call = decode_request(encode_batch_request("session", array))
    np.testing.assert_array_equal(call.batch.array("batch"), array, strict=True)
    answer = decode_response(encode_response(raw_result(words=array)))
    np.testing.assert_array_equal(answer.outputs.tensors["words"], array, strict=True)


def test_strings_that_are_damaged_are_refused():
    content = encode_batch_request("session", np.array(["ab", "c"], object))
    for damaged, reason in (
        (content.replace(b"ab", b"\xff\xff"), "element 0 is not UTF-8, in its byte 0"),
        (content.replace(b"\2\0\0\0ab", b"\3\0\0\0ab"), "element 1 has .* bytes, but only 0 remain"),
        (content.replace(b"\1\0\0\0c", b"\2\0\0\0c"), "element 1 has 2 bytes, but only 1 remain"),
    ):
        with pytest.raises(InputError, match=reason):
            decode_request(damaged).batch.array("batch")
    with pytest.raises(PredictionError, match="has an element that is not a string"):
        encode_response(raw_result(words=np.array([1], object)))


def test_big_endian_and_strided_arrays_arrive_as_their_values():
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    got = decode_request(encode_batch_request("s", array)).batch.array("batch")
    np.testing.assert_array_equal(got, array)


def test_request_batch_is_not_copied():
    content = encode_batch_request("s", np.zeros((2, 300), np.float32))
    assert np.shares_memory(decode_request(content).batch.array("b"), np.frombuffer(content, np.uint8))


@pytest.mark.parametrize("length", range(33))
def test_tensor_is_aligned_whatever_comes_before_it(length):
    array = np.arange(600, dtype=np.float64).reshape(2, 300)
    message = encode_batch_request("s" * length, array)
    assert decode_request(message).message.session_id == "s" * length
    for content in (message, encode_response(raw_result(**{"x" * length: array}))):
        assert content.index(array.tobytes()) % 16 == 0


def test_tensor_that_is_not_aligned_is_copied_to_where_it_is():
    array = np.arange(6, dtype=np.float64)
    for shift in range(1, 9):
        got = read_array("float64", [6], memoryview(b"x" * shift + array.tobytes())[shift:], "t")
        assert got.flags.aligned
        np.testing.assert_array_equal(got, array)


def test_inputs_of_every_kind_arrive():
    pixels, tensor = np.ones((2, 2, 3), np.uint8), np.ones((1, 2), np.float16)
    content = encode_inputs_request(
        "s", [("a", EncodedImage(b"x")), ("b", Url("http://h")), ("c", Pixels(pixels)), ("d", Tensor(tensor))]
    )
    inputs = decode_request(content).message.inputs
    assert [i.id for i in inputs] == ["a", "b", "c", "d"]
    assert [i.WhichOneof("data") for i in inputs] == ["encoded_image", "url", "pixels", "tensor"]


def test_texts_and_pairs_arrive_as_they_are():
    texts = [Text("seven is not less\nthan – three"), Text("who?", "Ada."), Text("", "")]
    content = encode_inputs_request("s", [(str(n), text) for n, text in enumerate(texts)])
    assert [each.data for each in read_inputs(decode_request(content).message.inputs)] == texts


def test_raw_response_is_what_protobuf_itself_reads_and_comes_back():
    x, y = np.random.default_rng(0).random((2, 500), np.float32), np.array([[1], [2]], np.int64)
    content = encode_response(raw_result(x=x, y=y))
    message = predict_pb2.PredictResponse.FromString(content)
    assert [t.name for t in message.raw.tensors] == ["x", "y"]
    assert message.raw.tensors[0].tensor.content == x.tobytes()
    result = decode_response(message.SerializeToString())
    assert result.input_ids == ("a", "b")
    assert result.times == TIMES
    assert list(result.outputs.tensors) == ["x", "y"]
    np.testing.assert_array_equal(result.outputs.tensors["x"], x, strict=True)
    np.testing.assert_array_equal(result.outputs.tensors["y"], y, strict=True)


def test_classifications_and_failures_come_back():
    outputs = Classifications(np.array([[2, 0]]), np.array([[0.75, 0.25]], np.float32))
    failures = tuple(InputFailure(f"i{stage.value}", stage, "why") for stage in Stage)
    result = decode_response(encode_response(BatchResult(("a",), outputs, failures, TIMES)))
    assert result.failures == failures
    np.testing.assert_array_equal(result.outputs.indices, outputs.indices, strict=True)
    np.testing.assert_array_equal(result.outputs.probabilities, outputs.probabilities, strict=True)


def test_batch_without_predictions_comes_back_without_outputs():
    failures = (InputFailure("a", Stage.READ, "why"),)
    result = decode_response(encode_response(BatchResult((), None, failures, TIMES)))
    assert result.outputs is None
    assert result.input_ids == ()


def test_output_whose_type_cannot_travel_is_a_prediction_error():
    with pytest.raises(PredictionError, match="output x: element type complex64 cannot be sent"):
        encode_response(raw_result(x=np.zeros(2, np.complex64)))


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_and_nothing_else(content):
    for decode in (decode_request, decode_response):
        with suppress(DecodeError):
            decode(content)


@given(st.data())
def test_cut_message_is_read_or_refused_and_nothing_else(data):
    content = encode_response(raw_result(x=np.zeros((2, 3), np.float32)))
    cut = data.draw(st.integers(0, len(content) - 1))
    with suppress(DecodeError):
        decode_response(content[:cut])


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "message"),
    [
        ("object", [1], 8, 'element type "object" is not known; allowed: bool, int8'),
        ("<f4", [1], 4, 'element type "<f4" is not known'),
        ("float32", [2, 2], 15, r"15 bytes for shape \[2, 2\] of float32, which requires 16 bytes"),
        ("float32", [-1, -1], 4, "negative dimension"),
        ("float32", [0, 2**63 - 1, 16, 16], 0, "larger sides than an array can have"),
        ("float32", [2**40, 2**40], 4, "4 bytes for shape"),
        ("uint8", [1] * 33, 1, "33 axes"),
    ],
)
def test_tensor_that_does_not_fit_its_own_description_is_refused(dtype, shape, size, message):
    with pytest.raises(InputError, match=f"input 7: .*{message}"):
        read_array(dtype, shape, b"\0" * size, "input 7")


def test_bool_that_is_neither_0_nor_1_is_refused():
    with pytest.raises(InputError, match="a bool is the byte 0 or 1"):
        read_array("bool", [2], b"\1\2", "mask")
