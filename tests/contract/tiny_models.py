"""The tiny network of the predictor suite, in every framework."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from inferometer.agent.artifacts.files import Artifacts
from inferometer.manifests.schema import ModelManifest
from tests.optional_mxnet import mxnet

DIMENSIONS = (1, 8, 8)
CLASSES = 10


@dataclass(frozen=True)
class TinyModel:
    """A manifest and the files that it stands for."""

    manifest: ModelManifest
    artifacts: Artifacts


def tiny_manifest(framework: str, dimensions: tuple[int, ...] = DIMENSIONS, **model: str) -> ModelManifest:
    return ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": framework},
            "inputs": [
                {"type": "image", "parameters": {"dimensions": list(dimensions), "color_mode": "GRAY"}}
            ],
            "output": {"type": "raw"},
            "model": model or {"graph_path": "graph"},
        }
    )


def random_weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "conv_weight": (4, 1, 3, 3),
        "conv_bias": (4,),
        "fc_weight": (CLASSES, 4 * 4 * 4),
        "fc_bias": (CLASSES,),
    }
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


class TinyNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.fc = torch.nn.Linear(64, CLASSES)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        data = torch.nn.functional.max_pool2d(torch.relu(self.conv(data)), 2)
        scores: torch.Tensor = self.fc(data.flatten(1))
        return scores


def save_torchscript(module: torch.nn.Module, path: Path) -> Artifacts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated, and still read
        torch.jit.script(module).save(path)
    return Artifacts(graph=path)


def write_torchscript(folder: Path, weights: Mapping[str, np.ndarray]) -> Artifacts:
    net = TinyNet()
    net.load_state_dict({name.replace("_", "."): torch.from_numpy(array) for name, array in weights.items()})
    return save_torchscript(net, folder / "tiny.pt")


def write_symbol(folder: Path, weights: Mapping[str, np.ndarray]) -> Artifacts:
    sym = mxnet.sym
    net = sym.Convolution(sym.var("data"), name="conv", kernel=(3, 3), num_filter=4, pad=(1, 1))
    net = sym.Pooling(sym.Activation(net, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = sym.FullyConnected(sym.Flatten(net), name="fc", num_hidden=CLASSES)
    artifacts = Artifacts(graph=folder / "tiny-symbol.json", weights=folder / "tiny.params")
    net.save(str(artifacts.graph))
    arrays = {f"arg:{name}": mxnet.nd.from_numpy(array, zero_copy=False) for name, array in weights.items()}
    mxnet.nd.save(str(artifacts.weights), arrays)
    return artifacts


def write_onnx(folder: Path, weights: Mapping[str, np.ndarray]) -> Artifacts:
    nodes = [
        helper.make_node("Conv", ["data", "conv_weight", "conv_bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "fc_weight", "fc_bias"], ["scores"], transB=1),
    ]
    return save_onnx(
        nodes,
        folder / "tiny.onnx",
        ("batch", *DIMENSIONS),
        {"scores": ("batch", CLASSES)},
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


def save_onnx(
    nodes: list[Any],
    path: Path,
    shape: tuple[int | str, ...],
    outputs: dict[str, tuple[int | str, ...]],
    initializers: list[Any] | None = None,
    input_name: str = "data",
) -> Artifacts:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(input_name, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        initializers or [],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return Artifacts(graph=path)


WRITERS = {"PyTorch": write_torchscript, "MXNet": write_symbol, "ONNXRuntime": write_onnx}


def write_all(folder: Path, weights: Mapping[str, np.ndarray]) -> dict[str, TinyModel]:
    return {
        framework: TinyModel(tiny_manifest(framework), write(folder, weights))
        for framework, write in WRITERS.items()
    }
