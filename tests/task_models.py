"""Tiny networks of segmentation, image enhancement and regression, as files of each framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.model_files import save_script
from tests.optional_mxnet import mxnet

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
SIDE = 8
TAILS = ("none", "larger", "mean")
"""What follows the convolution: nothing, twice as many pixels to each side, or the mean over the pixels."""


def write_model(
    folder: Path,
    framework: str,
    name: str,
    task: str,
    tail: str,
    weight: Any,
    bias: Any,
    image: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> None:
    """Writes a manifest and its files: a convolution of 1 × 1 over images of 8 × 8 pixels, and its tail.

    ``image`` has parameters of the input instead, such as None for ``dimensions`` of any size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.asarray(weight, np.float32)[:, :, np.newaxis, np.newaxis]
    biases = np.asarray(bias, np.float32)
    writer = {"PyTorch": _torch, "MXNet": _mxnet, "ONNXRuntime": _onnx}[framework]
    content = {
        "name": name,
        "framework": {"name": framework},
        "inputs": [
            {
                "type": "image",
                "parameters": {
                    "dimensions": [3, SIDE, SIDE],
                    "scale": 255,
                    "crop_method": "none",
                    "interpolation": "nearest",
                    **(image or {}),
                },
            }
        ],
        "output": {"type": task, "parameters": parameters},
        "model": writer(folder, f"{name}_{framework}", tail, weights, biases),
    }
    (folder / f"{name}_{framework}.yml").write_text(yaml.safe_dump(content))


def _torch(folder: Path, name: str, tail: str, weights: NDArray[Any], biases: NDArray[Any]) -> dict[str, str]:
    layer = torch.nn.Conv2d(3, len(weights), 1)
    layer.weight.data, layer.bias = torch.from_numpy(weights), torch.nn.Parameter(torch.from_numpy(biases))
    tails: dict[str, tuple[torch.nn.Module, ...]] = {
        "none": (),
        "larger": (torch.nn.Upsample(scale_factor=2, mode="nearest"),),
        "mean": (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()),
    }
    save_script(
        torch.nn.Sequential(layer, *tails[tail]), folder / f"{name}.pt", torch.zeros(1, 3, SIDE, SIDE)
    )
    return {"graph_path": f"{name}.pt"}


def _mxnet(folder: Path, name: str, tail: str, weights: NDArray[Any], biases: NDArray[Any]) -> dict[str, str]:
    symbol = mxnet.sym
    net = symbol.Convolution(symbol.Variable("data"), name="conv", kernel=(1, 1), num_filter=len(weights))
    if tail == "larger":
        net = symbol.UpSampling(net, scale=2, sample_type="nearest")
    elif tail == "mean":
        net = symbol.Flatten(symbol.Pooling(net, global_pool=True, pool_type="avg", kernel=(1, 1)))
    net.save(str(folder / f"{name}-symbol.json"))
    arrays = {"arg:conv_weight": mxnet.nd.from_numpy(weights), "arg:conv_bias": mxnet.nd.from_numpy(biases)}
    mxnet.nd.save(str(folder / f"{name}-0000.params"), arrays)
    return {"graph_path": f"{name}-symbol.json", "weights_path": f"{name}-0000.params"}


def _onnx(folder: Path, name: str, tail: str, weights: NDArray[Any], biases: NDArray[Any]) -> dict[str, str]:
    nodes = [helper.make_node("Conv", ["data", "weight", "bias"], ["maps"])]
    last, sides = "maps", ("height", "width")
    if tail == "larger":
        nodes.append(
            helper.make_node(
                "Resize",
                ["maps", "", "factors"],
                ["large"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        )
        last = "large"
    elif tail == "mean":
        nodes += [
            helper.make_node("GlobalAveragePool", ["maps"], ["means"]),
            helper.make_node("Flatten", ["means"], ["values"]),
        ]
        last, sides = "values", ()
    shape = ("batch", len(weights), *sides)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ("batch", 3, "height", "width"))],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(weights, "weight"),
            numpy_helper.from_array(biases, "bias"),
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "factors"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / f"{name}.onnx")
    return {"graph_path": f"{name}.onnx"}
