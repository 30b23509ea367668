"""Strings over the Open Inference Protocol: BYTES to and from an ONNX graph that the test makes."""

import struct

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from open_inference import TIMEOUT_S, refused

from inferometer.agent.inference.registry import Registry
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

pb = triton.service_pb2
MANIFEST = """
name: {name}
framework: {{name: {framework}, version: "*"}}
inputs: [{{type: tensor, parameters: {{dimensions: [2], element_type: string, input_layer: words}}}}]
output: {{type: raw}}
model: {{graph_path: twice.onnx}}
"""
WORDS = [["", "Größe"], ["a\0b", "😀" * 1000], ["line\nline", "x"]]
RAW = b"".join(struct.pack("<I", len(word)) + word for row in WORDS for word in map(str.encode, row))


def write_graph(path):
    """A graph that gives each word twice, and whether it is x."""
    words = helper.make_tensor_value_info("words", TensorProto.STRING, ["n", 2])
    twice = helper.make_tensor_value_info("twice", TensorProto.STRING, ["n", 2])
    is_x = helper.make_tensor_value_info("is_x", TensorProto.BOOL, ["n", 2])
    constant = helper.make_tensor("x", TensorProto.STRING, [1], [b"x"])
    nodes = [
        helper.make_node("StringConcat", ["words", "words"], ["twice"]),
        helper.make_node("Equal", ["words", "x"], ["is_x"]),
    ]
    graph = helper.make_graph(nodes, "twice", [words], [twice, is_x], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, path)


@pytest.fixture
def client_of(start_agent, manifest_folder):
    write_graph(manifest_folder / "twice.onnx")
    (manifest_folder / "Twice.yml").write_text(MANIFEST.format(name="Twice", framework="ONNXRuntime"))
    (manifest_folder / "Torch.yml").write_text(MANIFEST.format(name="Torch", framework="PyTorch"))
    clients = []

    def connect(**batching):
        agent = start_agent(registry=Registry(), serving=ServingOptions(BatchingOptions(**batching)))
        clients.append(triton.InferenceServerClient(agent.address))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(client_of):
    return client_of()


def words_of(words):
    array = np.array(words, object)
    tensor = triton.InferInput("words", array.shape, "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def request(raw=None, shape=(3, 2), **contents):
    item = pb.ModelInferRequest.InferInputTensor(name="words", datatype="BYTES", shape=shape)
    if contents:
        item.contents.CopyFrom(pb.InferTensorContents(**contents))
    raws = [] if raw is None else [raw]
    return pb.ModelInferRequest(model_name="Twice", inputs=[item], raw_input_contents=raws)


def infer(client, message):
    try:
        return client._client_stub.ModelInfer(message, timeout=TIMEOUT_S)
    except triton.grpc.RpcError as error:
        return error.details()


def test_a_model_of_strings_is_described(client):
    metadata = client.get_model_metadata("Twice")
    found = [(each.name, each.datatype, list(each.shape)) for each in (*metadata.inputs, *metadata.outputs)]
    assert found == [("words", "BYTES", [-1, 2]), ("twice", "BYTES", [-1, 2]), ("is_x", "BOOL", [-1, 2])]
    config = client.get_model_config("Twice").config
    assert config.input[0].data_type == config.output[0].data_type == triton.model_config_pb2.TYPE_STRING


def test_strings_go_in_and_come_out(client):
    answer = client.infer("Twice", [words_of(WORDS)])
    assert answer.as_numpy("twice").tolist() == [[(word * 2).encode() for word in row] for row in WORDS]
    assert answer.as_numpy("is_x").tolist() == [[word == "x" for word in row] for row in WORDS]


def test_typed_and_raw_contents_give_the_same(client):
    raw = infer(client, request(RAW))
    typed = infer(client, request(bytes_contents=[word.encode() for row in WORDS for word in row]))
    assert raw.raw_output_contents == typed.raw_output_contents
    assert raw.outputs == typed.outputs


def test_strings_of_several_requests_are_predicted_together(client_of):
    client = client_of(max_batch_size=4, max_queue_delay_ms=20_000)
    client.load_model("Twice")
    message = request(bytes_contents=[b"a", b"b"], shape=(1, 2))
    calls = [client._client_stub.ModelInfer.future(message, timeout=TIMEOUT_S) for _ in range(4)]
    for call in calls:
        response = call.result()
        assert response.parameters["batch_size"].int64_param == 4
        assert response.raw_output_contents[0] == struct.pack("<I2sI2s", 2, b"aa", 2, b"bb")


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (request(RAW[:-1]), "element 5 has 1 bytes, but only 0 remain"),
        (request(RAW[:-2]), "3 bytes remain after 5 elements"),
        (request(RAW + b"\0"), "1 bytes remain after 6 elements"),
        (request(RAW + bytes(4)), "7 elements for shape [3, 2], which requires 6"),
        (request(RAW + bytes(8)), "4 bytes remain after 7 elements"),
        (request(b""), "0 elements for shape [3, 2], which requires 6"),
        (request(struct.pack("<I", 2**32 - 1), (1, 2)), "element 0 has 4294967295 bytes, but only 0 remain"),
        (request(struct.pack("<I2sI", 2, b"\xc3(", 0), (1, 2)), "element 0 is not UTF-8, in its byte 0"),
        (request(bytes_contents=[b"a"] * 5), "5 elements for shape [3, 2], which requires 6"),
        (request(bytes_contents=[b"a", b"\xff"], shape=(1, 2)), "element 1 is not UTF-8"),
        (request(fp32_contents=[1] * 6), "found fp32_contents; BYTES is in bytes_contents"),
        (request(RAW, (2, 3)), "found shape [2, 3]; the model takes [-1, 2]"),
    ],
)
def test_strings_that_do_not_fit_are_refused(client, message, part):
    assert part in infer(client, message)


def test_other_datatypes_are_refused_for_strings_and_strings_for_numbers(client):
    tensor = triton.InferInput("words", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), np.float32))
    code, message = refused(client.infer, "Twice", [tensor])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert message.endswith("found datatype FP32; the model takes BYTES")
    words = triton.InferInput("data", [1, 1, 16, 16], "BYTES")
    words.set_data_from_numpy(np.full((1, 1, 16, 16), b"a", object))
    code, message = refused(client.infer, "DigitsCNN", [words])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "found datatype BYTES; the model takes FP32" in message


def test_classes_of_strings_are_refused(client):
    best = triton.InferRequestedOutput("twice", class_count=1)
    code, message = refused(client.infer, "Twice", [words_of(WORDS)], outputs=[best])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert 'output "twice": classification needs scores' in message


def test_a_framework_without_strings_refuses_such_a_manifest(client):
    _, message = refused(client.infer, "Torch", [words_of(WORDS)])
    assert "element_type: found 'string', which PyTorch does not accept; supported: ONNXRuntime" in message
