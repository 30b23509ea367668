"""Tensors of the Open Inference Protocol: every datatype, typed and raw."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from inferometer.agent.open_inference.codec import (
    BF16,
    DATATYPES,
    TensorSignature,
    converted_to,
    decode_request,
    encode_answer,
    read_inputs,
)
from inferometer.agent.server.v2.service import RequestedOutput, add_outputs
from inferometer.client.remote.kserve.server import decode_reply
from inferometer.manifests.errors import InputError, PredictionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

TYPED = [datatype for datatype in DATATYPES.values() if datatype.contents]
WHOLE = [datatype for datatype in TYPED if datatype.dtype.kind in "iu"]


def values_of(datatype):
    """Three inputs of two elements, with the extremes of the type."""
    if datatype.dtype.kind == "b":
        return np.array([[True, False]] * 3)
    limits = np.iinfo(datatype.dtype) if datatype.dtype.kind in "iu" else np.finfo(datatype.dtype)
    return np.array([[limits.min, limits.max], [0, 1], [1, 0]], datatype.dtype)


def call_of(datatype, shape=(3, 2), raw=None, **contents):
    item = pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype.name, shape=shape)
    if contents:
        item.contents.CopyFrom(pb.InferTensorContents(**contents))
    message = pb.ModelInferRequest(inputs=[item], raw_input_contents=[] if raw is None else [raw])
    return decode_request(message.SerializeToString())


def read(call, datatype):
    return read_inputs(call, {"x": TensorSignature("x", datatype, (2,))}, 10, "model m")["x"]


def read_reply(datatype, shape, elements):
    contents = pb.InferTensorContents(**{datatype.contents: elements})
    output = pb.ModelInferResponse.InferOutputTensor(
        name="y", datatype=datatype.name, shape=shape, contents=contents
    )
    return decode_reply(pb.ModelInferResponse(outputs=[output]).SerializeToString()).outputs["y"]


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=DATATYPES.keys())
def test_raw_elements_of_every_datatype_are_read_and_written(datatype):
    values = values_of(datatype)
    got = read(call_of(datatype, raw=values.tobytes()), datatype)
    assert got.dtype == datatype.dtype
    np.testing.assert_array_equal(got, values)
    answer = add_outputs(pb.ModelInferResponse(), [RequestedOutput("y")], {"y": values}, ())
    response = pb.ModelInferResponse.FromString(encode_answer(answer))
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == (datatype.name, [3, 2])
    assert response.raw_output_contents[0] == values.tobytes()


@pytest.mark.parametrize("datatype", TYPED, ids=lambda datatype: datatype.name)
def test_typed_elements_of_every_datatype_are_read(datatype):
    values = values_of(datatype)
    elements = values.reshape(-1).tolist()
    request = read(call_of(datatype, **{datatype.contents: elements}), datatype)
    for got in (request, read_reply(datatype, (3, 2), elements)):
        assert got.dtype == datatype.dtype
        np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(
    "datatype", [d for d in WHOLE if d.dtype.itemsize < 4], ids=lambda datatype: datatype.name
)
def test_typed_element_that_the_datatype_cannot_hold_is_refused(datatype):
    too_large = np.iinfo(datatype.dtype).max + 1
    call = call_of(datatype, (1, 2), **{datatype.contents: [0, too_large]})
    with pytest.raises(InputError, match=f"has an element outside .* of {datatype.name}"):
        read(call, datatype)
    with pytest.raises(
        PredictionError, match=f'answer: output "y": has an element outside .* of {datatype.name}'
    ):
        read_reply(datatype, (1, 2), [0, too_large])


def test_half_floats_have_no_typed_contents():
    with pytest.raises(InputError, match="FP16 has no typed contents; send raw_input_contents"):
        read(call_of(DATATYPES["FP16"], fp32_contents=[0.0] * 6), DATATYPES["FP16"])


@pytest.mark.parametrize("datatype", TYPED, ids=lambda datatype: datatype.name)
def test_missing_contents_are_refused(datatype):
    with pytest.raises(InputError, match=f"0 elements in {datatype.contents} for shape"):
        read(call_of(datatype), datatype)


def test_byte_that_is_no_bool_is_refused():
    with pytest.raises(InputError, match="a bool is the byte 0 or 1"):
        read(call_of(DATATYPES["BOOL"], raw=b"\2" * 6), DATATYPES["BOOL"])


CONVERTED = [
    (DATATYPES[given], DATATYPES[wanted])
    for wanted, names in {
        "UINT16": ["UINT8"],
        "INT32": ["INT8", "INT16", "UINT8", "UINT16"],
        "INT64": ["INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32"],
        "FP16": ["INT8", "UINT8"],
        "FP32": ["FP16", "INT8", "INT16", "UINT8", "UINT16"],
        "FP64": ["FP16", "FP32", "INT32", "UINT32"],
    }.items()
    for given in names
]


@pytest.mark.parametrize(("given", "wanted"), CONVERTED, ids=lambda datatype: datatype.name)
def test_what_the_models_datatype_holds_exactly_is_converted(given, wanted):
    values = values_of(given)
    calls = [call_of(given, raw=values.tobytes())]
    if given.contents:
        calls.append(call_of(given, **{given.contents: values.reshape(-1).tolist()}))
    for call in calls:
        got = read(call, wanted)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, values)
        assert [int(each) if given.dtype.kind != "f" else each for each in got.flat] == values.reshape(
            -1
        ).tolist()


@pytest.mark.parametrize("wanted", ["FP32", "FP64"])
def test_the_upper_halves_of_floats_are_converted(wanted):
    values = np.array([[1.5, -2.0], [np.inf, -0.0], [3.3895314e38, np.nan]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    got = read(call_of(BF16, raw=halves.tobytes()), DATATYPES[wanted])
    assert got.dtype == DATATYPES[wanted].dtype
    np.testing.assert_array_equal(got, values)
    with pytest.raises(InputError, match="BF16 has no typed contents; send raw_input_contents"):
        read(call_of(BF16, fp32_contents=[0.0] * 6), DATATYPES[wanted])
    with pytest.raises(InputError, match="24 bytes for shape"):
        read(call_of(BF16, raw=values.tobytes()), DATATYPES[wanted])


@pytest.mark.parametrize(
    ("given", "wanted", "others"),
    [
        ("FP64", "FP32", ", and types it represents exactly: BF16, FP16, INT16, INT8, UINT16, UINT8"),
        ("INT32", "FP32", ", and types it represents exactly: "),
        ("INT64", "INT32", ", and types it represents exactly: INT16, INT8, UINT16, UINT8"),
        *(("INT64", "FP64", ", and "), ("UINT64", "FP64", ", and "), ("UINT32", "INT32", ", and ")),
        *(("FP32", "FP16", ", and types it represents exactly: INT8, UINT8"), ("BF16", "FP16", ", and ")),
        *(("BOOL", "FP32", ", and "), ("BOOL", "UINT16", ", and "), ("INT8", "UINT16", ", and ")),
        *(("FP32", "INT64", ", and "), ("FP16", "UINT8", ""), ("UINT8", "BOOL", ""), ("BYTES", "UINT8", "")),
    ],
)
def test_what_could_lose_anything_is_refused_with_what_is_accepted(given, wanted, others):
    datatype = DATATYPES.get(given) or replace(BF16, name=given)
    message = f'model m: input "x": found datatype {given}; the model takes {wanted}{others}'
    with pytest.raises(InputError) as error:
        read(call_of(datatype, raw=bytes(6 * datatype.dtype.itemsize)), DATATYPES[wanted])
    assert str(error.value).startswith(message)
    assert bool(others) or str(error.value) == message
    assert given not in converted_to(DATATYPES[wanted])


def test_big_endian_output_is_sent_little_endian():
    values = np.array([[1, 2]], ">f4")
    answer = add_outputs(pb.ModelInferResponse(), [RequestedOutput("y")], {"y": values}, ())
    assert answer.message.outputs[0].datatype == "FP32"
    assert bytes(answer.raw[0]) == struct.pack("<ff", 1, 2)


def test_output_that_the_protocol_cannot_carry_is_a_failure_of_the_model():
    with pytest.raises(PredictionError, match="element type complex64 cannot be sent"):
        add_outputs(
            pb.ModelInferResponse(), [RequestedOutput("y")], {"y": np.zeros((1, 1), np.complex64)}, ()
        )


def test_classes_are_written_with_their_labels_the_first_of_equal_ones_first():
    scores = {"y": np.array([[0.5, 2.0, 2.0, -1.0]], np.float32)}
    answer = add_outputs(
        pb.ModelInferResponse(), [RequestedOutput("y", classes=3)], scores, ("a", "b", "c", "d")
    )
    texts = [b"2.000000:1:b", b"2.000000:2:c", b"0.500000:0:a"]
    assert (answer.message.outputs[0].datatype, list(answer.message.outputs[0].shape)) == ("BYTES", [1, 3])
    assert answer.raw[0] == b"".join(struct.pack("<I", len(text)) + text for text in texts)
