"""Models with tensor inputs of every element type and rank, in every framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from tiny_models import save_torchscript

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import EncodedImage, Input, Pixels, Tensor
from inferometer.agent.tasks.predictions import Classifications
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InputError, PredictionError
from inferometer.manifests.schema import ModelManifest
from tests.optional_mxnet import mxnet

WANTED = "the model takes tensors of float32 of shape [784]"
ELEMENT_TYPES = ("float32", "float16", "uint8", "int32", "int64")


class Reversal(torch.nn.Module):
    """Reverses the last axis, and changes no value."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data.flip(-1)


def write_torchscript(folder: Path, dimensions: tuple[int, ...], element_type: str) -> Artifacts:
    return save_torchscript(Reversal(), folder / "reversal.pt")


def write_symbol(folder: Path, dimensions: tuple[int, ...], element_type: str) -> Artifacts:
    path = folder / "reversal-symbol.json"
    mxnet.sym.reverse(mxnet.sym.var("data"), axis=len(dimensions)).save(str(path))
    return Artifacts(graph=path)


def write_onnx(folder: Path, dimensions: tuple[int, ...], element_type: str) -> Artifacts:
    def integers(name: str, *values: int) -> Any:
        return helper.make_tensor(name, onnx.TensorProto.INT64, (len(values),), values)

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(element_type))
    shape = ("batch", *dimensions)
    nodes = [helper.make_node("Slice", ["data", "start", "end", "axis", "step"], ["output"])]
    graph = helper.make_graph(
        nodes,
        "reversal",
        [helper.make_tensor_value_info("data", kind, shape)],
        [helper.make_tensor_value_info("output", kind, shape)],
        [
            integers("start", -1),
            integers("end", -(2**62)),
            integers("axis", len(dimensions)),
            integers("step", -1),
        ],
    )
    path = folder / "reversal.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return Artifacts(graph=path)


WRITERS: dict[str, Callable[[Path, tuple[int, ...], str], Artifacts]] = {
    "PyTorch": write_torchscript,
    "MXNet": write_symbol,
    "ONNXRuntime": write_onnx,
}


def reversal(framework: str, dimensions: tuple[int, ...], element_type: str) -> ModelManifest:
    parameters = {"dimensions": dimensions, "element_type": element_type}
    return ModelManifest.model_validate(
        {
            "name": "Reversal",
            "framework": {"name": framework},
            "inputs": [{"type": "tensor", "parameters": parameters}],
            "output": {"type": "raw"},
            "model": {"graph_path": "graph"},
        }
    )


def values(dimensions: tuple[int, ...], element_type: str) -> np.ndarray:
    """Three inputs with the largest and the smallest values of the element type among them."""
    dtype = np.dtype(element_type)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    array = np.arange(3 * np.prod(dimensions)).astype(dtype)
    array[:3] = limits.max, limits.min, 7
    return array.reshape(3, *dimensions)


@pytest.mark.parametrize("element_type", ELEMENT_TYPES)
def test_values_of_every_element_type_arrive_unchanged(framework, open_predictor, element_type, tmp_path):
    dimensions = (4,)
    predictor = open_predictor(
        framework,
        manifest=reversal(framework, dimensions, element_type),
        artifacts=WRITERS[framework](tmp_path, dimensions, element_type),
    )
    batch = values(dimensions, element_type)
    for size in (3, 1, 2):
        (output,) = predictor.predict({"data": batch[:size]}).values()
        assert output.dtype == np.dtype(element_type)
        np.testing.assert_array_equal(output, batch[:size, ::-1])


@pytest.mark.parametrize("dimensions", [(1,), (5,), (2, 3), (1, 4, 3), (2, 1, 3, 2)])
def test_tensors_of_any_rank_are_taken(framework, open_predictor, dimensions, tmp_path):
    predictor = open_predictor(
        framework,
        manifest=reversal(framework, dimensions, "float32"),
        artifacts=WRITERS[framework](tmp_path, dimensions, "float32"),
    )
    batch = values(dimensions, "float32")
    (output,) = predictor.predict({"data": batch}).values()
    np.testing.assert_array_equal(output, batch[..., ::-1])


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        (np.zeros((1, 4), np.float32), "found float32; allowed: int64"),
        (np.zeros((1, 4), np.int32), "found int32; allowed: int64"),
        (np.zeros((1, 5), np.int64), "found the shape (1, 5); allowed: (batch, 4)"),
        (np.zeros(4, np.int64), "found the shape (4,); allowed: (batch, 4)"),
        (np.zeros((0, 4), np.int64), "found the shape (0, 4); allowed: (batch, 4)"),
    ],
)
def test_another_batch_reads_the_same_in_every_framework(framework, open_predictor, batch, part, tmp_path):
    predictor = open_predictor(
        framework,
        manifest=reversal(framework, (4,), "int64"),
        artifacts=WRITERS[framework](tmp_path, (4,), "int64"),
    )
    with pytest.raises(PredictionError) as caught:
        predictor.predict({"data": batch})
    assert part in str(caught.value)


def shipped(name: str, framework: str) -> ModelManifest:
    return next(m for m in Catalog().models if (m.name, m.framework.name) == (name, framework))


def test_a_session_fails_each_input_that_is_no_such_tensor(framework):
    options = SessionOptions(weights=Weights.RANDOM)
    good = np.ones(784, np.float32)
    with open_session(shipped("SensorNet", framework), options, Registry()) as session:
        result = session.predict(
            [
                Input("encoded", EncodedImage(b"GIF89a")),
                Input("good", Tensor(good)),
                Input("decoded", Pixels(np.zeros((28, 28), np.uint8))),
                Input("short", Tensor(good[:-1])),
                Input("double", Tensor(good.astype(np.float64))),
                Input("complex", Tensor(good.astype(np.complex64))),
            ]
        )
        assert isinstance(result.outputs, Classifications)
        assert result.input_ids == ("good", "double")
        np.testing.assert_array_equal(result.outputs.indices[0], result.outputs.indices[1])
        assert {(f.input_id, f.stage.value): f.message for f in result.failures} == {
            ("encoded", "preprocess"): f"{WANTED}; found an encoded image of 6 bytes",
            ("decoded", "preprocess"): f"{WANTED}; found a decoded image of shape [28, 28]",
            ("short", "preprocess"): "tensor has shape [783]; the model takes [784]",
            ("complex", "preprocess"): "tensor has element type complex64; the model takes float32",
        }
        with pytest.raises(InputError, match="tensor has shape"):
            session.predict_tensor(np.ones((2, 1, 28, 28), np.float32))
