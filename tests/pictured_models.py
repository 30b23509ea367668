"""Models of tasks whose predictions are known: they return their input, or its means, or constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LABELS = "[red, green, blue]"
SHAPE = (3, 8, 8)
_BOXES = np.array([[1, 1, 5, 5], [3, 2, 8, 8], [0, 0, 8, 8]], np.float32)
_SCORES = np.array([0.9, 0.5, 0.01], np.float32)
_CLASSES = np.array([0, 2, 1], np.float32)
_MANIFEST = """
name: {name}
framework: {{name: ONNXRuntime}}
inputs: [{{type: image, parameters: {{dimensions: [3, 8, 8], input_layer: image, crop_method: none}}}}]
output: {{type: {task}, parameters: {{{parameters}}}}}
model: {{graph_path: {file}}}
"""


def write_models(folder: Path) -> Path:
    """A model of each task in ONNX, with its manifest: Detector, Segmenter, Enhancer and Means."""
    folder.mkdir(parents=True, exist_ok=True)
    echo = [helper.make_node("Identity", ["image"], ["out"])]
    _save(folder / "echo.onnx", echo, {"out": ("n", *SHAPE)}, {})
    means = [helper.make_node("ReduceMean", ["image"], ["out"], axes=[2, 3], keepdims=0)]
    _save(folder / "means.onnx", means, {"out": ("n", 3)}, {})
    constants = {"boxes": _BOXES, "scores": _SCORES, "classes": _CLASSES}
    expanded = [
        helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Unsqueeze", ["nothing", "one_axis"], ["column"]),
        helper.make_node("Unsqueeze", ["column", "next_axis"], ["cube"]),
        *(
            helper.make_node("Add", ["cube" if value.ndim == 2 else "column", f"{name}0"], [name])
            for name, value in constants.items()
        ),
    ]
    weights = {"zero": np.float32(0), "one_axis": np.array([1]), "next_axis": np.array([2])}
    weights |= {f"{name}0": value for name, value in constants.items()}
    _save(folder / "boxes.onnx", expanded, {k: ("n", *v.shape) for k, v in constants.items()}, weights)
    boxes = f"boxes_layer: boxes, probabilities_layer: scores, classes_layer: classes, labels: {LABELS}"
    for name, task, parameters, file in (
        ("Detector", "object_detection", boxes, "boxes.onnx"),
        ("Segmenter", "semantic_segmentation", f"labels: {LABELS}", "echo.onnx"),
        ("Enhancer", "image_enhancement", "image_range: [0, 255]", "echo.onnx"),
        ("Means", "regression", f"labels: {LABELS}", "means.onnx"),
    ):
        text = _MANIFEST.format(name=name, task=task, parameters=parameters, file=file)
        (folder / f"{name}.yml").write_text(text)
    return folder


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    outputs: dict[str, tuple[str | int, ...]],
    weights: dict[str, object],
) -> None:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", *SHAPE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
