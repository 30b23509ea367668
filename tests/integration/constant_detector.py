"""A detector that sees the same box in each image, as files of each framework, and a dataset for it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.optional_mxnet import mxnet

FILES = {
    "ONNXRuntime": "{graph_path: detector.onnx}",
    "PyTorch": "{graph_path: detector.pt}",
    "MXNet": "{graph_path: detector.json, weights_path: detector.params}",
}
# as GluonCV's models: ids, scores and boxes, with an entry of padding
CONSTANTS = {
    "ids": np.array([[[0], [-1]]], np.float32),
    "scores": np.array([[[0.875], [-1]]], np.float32),
    "boxes": np.array([[[2, 2, 6, 6], [-1, -1, -1, -1]]], np.float32),
}


class _Constant(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, value in CONSTANTS.items():
            self.register_buffer(name, torch.from_numpy(value))

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        nothing = data.mean((1, 2, 3)).reshape(-1, 1, 1) * 0
        return nothing + self.ids, nothing + self.scores, nothing + self.boxes  # type: ignore[operator]


def write_detectors(folder: Path) -> Path:
    """The model in each framework, with its manifests."""
    _write_onnx(folder / "detector.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated, and still read
        torch.jit.script(_Constant()).save(folder / "detector.pt")
    nothing = mxnet.sym.mean(mxnet.sym.var("data"), axis=(1, 2, 3)).reshape((-1, 1, 1)) * 0
    outputs = [mxnet.sym.broadcast_add(nothing, mxnet.sym.var(f"{name}0"), name=name) for name in CONSTANTS]
    mxnet.sym.Group(outputs).save(str(folder / "detector.json"))
    arrays = {
        f"arg:{name}0": mxnet.nd.from_numpy(value, zero_copy=False) for name, value in CONSTANTS.items()
    }
    mxnet.nd.save(str(folder / "detector.params"), arrays)
    for framework, files in FILES.items():
        (folder / f"{framework}.yml").write_text(
            f"""
name: ConstantDetector
framework: {{name: {framework}}}
inputs: [{{type: image, parameters: {{dimensions: [3, 8, 8], input_layer: data}}}}]
output:
  type: boundingbox
  parameters: {{classes_layer: 0, probabilities_layer: 1, boxes_layer: 2, labels: [cat, dog]}}
model: {files}
"""
        )
    return folder


def _write_onnx(path: Path) -> None:
    constants = {
        "axes": np.array([1, 2]),
        "zero": np.float32(0),
        **{f"{name}0": value for name, value in CONSTANTS.items()},
    }
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["data"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["mean", "axes"], ["column"]),
            helper.make_node("Mul", ["column", "zero"], ["nothing"]),
            *(helper.make_node("Add", ["nothing", f"{name}0"], [name]) for name in CONSTANTS),
        ],
        "detector",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *value.shape[1:]])
            for name, value in CONSTANTS.items()
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_coco(folder: Path) -> Path:
    """Four images of 16 × 8 pixels: the box is right in two of them, one has another object too."""
    (folder / "images").mkdir(parents=True)
    for number in range(1, 5):
        Image.new("RGB", (16, 8)).save(folder / "images" / f"{number}.png")
    boxes = [(1, [4, 2, 8, 4]), (2, [4, 2, 8, 4]), (2, [0, 0, 2, 2])]
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.png", "width": 16, "height": 8} for number in range(1, 5)
        ],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"id": place, "image_id": image, "category_id": 17, "bbox": box}
            for place, (image, box) in enumerate(boxes)
        ],
    }
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder
