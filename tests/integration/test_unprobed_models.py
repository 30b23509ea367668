"""Models that do not take zeros of 128 along a dynamic axis: described and used all the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from open_inference import refused
from rest_client import Rest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.manifests.catalog import Catalog

POSITIONS, KERNEL = 64, 400
MANIFEST = """
name: {name}
framework: {{name: {framework}, version: "*"}}
inputs: [{{type: tensor, parameters: {{dimensions: [-1], element_type: {dtype}, input_layer: x}}}}]
output: {{type: raw}}
model: {{graph_path: {file}}}
"""
TABLE = np.arange(POSITIONS * 2, dtype=np.float32).reshape(POSITIONS, 2)
OUTPUTS = {"Positions": [("hidden", "FP32", [-1, -1, 2])], "Audio": [], "Halves": [("y", "BF16", [-1, -1])]}
"""The outputs of each model by metadata: those that its file states."""


def write_positions(path: Path) -> None:
    """A graph of ``hidden``, the table's row of each token's place, which has no more than 64 places."""
    constants = [
        numpy_helper.from_array(TABLE, "table"),
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
        numpy_helper.from_array(np.array([-1], np.int64), "last"),
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["rows"]),
        helper.make_node("Unsqueeze", ["x", "last"], ["columns"]),
        helper.make_node("Cast", ["columns"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["floats", "rows"], ["hidden"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", "l"])
    hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["n", "l", 2])
    save(path, helper.make_graph(nodes, "positions", [x], [hidden], constants))


def write_halves(path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "l"])
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n", "l"])
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)
    save(path, helper.make_graph([node], "halves", [x], [y]))


def save(path: Path, graph: onnx.GraphProto) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


class Audio(torch.nn.Module):
    """A convolution over sound, which takes no fewer than 400 samples; TorchScript states no outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(1, 1, KERNEL, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.convolution(x.unsqueeze(1)).squeeze(1)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("unprobed")
    write_positions(made / "positions.onnx")
    write_halves(made / "halves.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still read
        torch.jit.save(torch.jit.trace(Audio().eval(), torch.zeros(1, 2 * KERNEL)), made / "audio.pt")
    for name, framework, dtype, file in (
        ("Positions", "ONNXRuntime", "int64", "positions.onnx"),
        ("Halves", "ONNXRuntime", "float32", "halves.onnx"),
        ("Audio", "PyTorch", "float32", "audio.pt"),
    ):
        text = MANIFEST.format(name=name, framework=framework, dtype=dtype, file=file)
        (made / f"{name}.yml").write_text(text)
    return made


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[AgentServer]:
    with AgentServer(Catalog([folder]), Registry(), ServerOptions(port=0, http_port=0)) as started:
        yield started


@pytest.fixture(scope="module")
def client(agent: AgentServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(agent.address) as found:
        yield found


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_model_is_described_as_far_as_it_is_known(
    agent: AgentServer, client: triton.InferenceServerClient, name: str
) -> None:
    metadata = client.get_model_metadata(name)
    assert [list(each.shape) for each in metadata.inputs] == [[-1, -1]]
    assert [(o.name, o.datatype, list(o.shape)) for o in metadata.outputs] == OUTPUTS[name]
    config = client.get_model_config(name).config
    assert [(o.name, list(o.dims)) for o in config.output] == [(o[0], o[2][1:]) for o in OUTPUTS[name]]
    assert agent.http_url is not None
    with closing(Rest(agent.http_url)) as ask:
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/config"):
            assert ask.get(path).status == 200


def given(name: str) -> tuple[NDArray[np.generic], str]:
    if name == "Positions":
        return np.zeros((2, POSITIONS), np.int64), "INT64"
    return np.ones((2, KERNEL + 1), np.float32), "FP32"


@pytest.mark.parametrize("name", ["Positions", "Audio"])
def test_an_output_is_asked_for_by_its_name(client: triton.InferenceServerClient, name: str) -> None:
    array, datatype = given(name)
    tensor = triton.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    [every] = [each.name for each in client.infer(name, [tensor]).get_response().outputs]
    wanted = triton.InferRequestedOutput(every)
    found = client.infer(name, [tensor], outputs=[wanted]).as_numpy(every)
    assert found.shape == ((2, POSITIONS, 2) if name == "Positions" else (2, 2))
    code, message = refused(client.infer, name, [tensor], outputs=[triton.InferRequestedOutput(every + "s")])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert f'has no output "{every}s"; did you mean "{every}"?' in message


@pytest.mark.parametrize("name", ["Positions", "Audio"])
@pytest.mark.parametrize("wire", ["grpc", "http"])
def test_it_is_evaluated_over_the_open_inference_protocol(
    agent: AgentServer, folder: Path, name: str, wire: str
) -> None:
    address = f"kserve://{agent.address}" if wire == "grpc" else f"kserve+{agent.http_url}"
    with open_kserve(address, Catalog([folder]), ModelChoice(name)) as session:
        result = session.predict_tensor(given(name)[0])
    assert result.failures == ()
    assert isinstance(result.outputs, RawOutputs)
    if name == "Positions":
        np.testing.assert_array_equal(result.outputs.tensors["hidden"][1], TABLE)
