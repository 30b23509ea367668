"""A model whose boxes are constants and whose masks are channels of its input, and a dataset for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

SIDE = 8
# the whole image, and its lower right quarter
BOXES = np.array([[0, 0, 8, 8], [4, 4, 8, 8]], np.float32)
SCORES = np.array([0.875, 0.75], np.float32)
CLASSES = np.array([1, 2], np.int64)
SHAPES = {"boxes": [2, 4], "scores": [2], "labels": [2], "masks": [2, 1, SIDE, SIDE]}


def write_mask_detectors(folder: Path) -> Path:
    """Models whose outputs have a batch axis (Batched) or none, as torchvision's Mask R-CNN (Single, Fixed).

    Single takes batches of any size, of which it sees the first image; Fixed takes batches of one.
    """
    for name, inputs in (("Batched", "n"), ("Single", "n"), ("Fixed", 1)):
        _write_onnx(folder / f"{name}.onnx", inputs, batched=name == "Batched")
        (folder / f"{name}.yml").write_text(
            f"""
name: {name}
framework: {{name: ONNXRuntime}}
inputs:
  - type: image
    parameters: {{dimensions: [3, {SIDE}, {SIDE}], input_layer: data, mean: [0, 0, 0], scale: 255}}
output:
  type: instance_segmentation
  parameters:
    boxes_layer: boxes
    probabilities_layer: scores
    classes_layer: labels
    masks_layer: masks
    mask_frame: input
    box_units: pixels
    class_offset: 1
    labels: [cat, dog]
model: {{graph_path: {name}.onnx}}
"""
        )
    return folder


def _write_onnx(path: Path, inputs: str | int, *, batched: bool) -> None:
    leading: list[str | int] = ["n"] if batched else []
    constants = {
        "first": np.array([0]),
        "second": np.array([1]),
        "third": np.array([2]),
        "channels": np.array([1]),
        "axes": np.array([1, 2, 3]),
        "zero": np.float32(0),
        "boxes0": BOXES,
        "scores0": SCORES,
        "labels0": CLASSES.astype(np.float32),
    }
    nodes = [helper.make_node("Slice", ["data", "first", "third", "channels"], ["of_batch"])]
    if batched:
        nodes.append(helper.make_node("Unsqueeze", ["of_batch", "third"], ["masks"]))
        nodes.append(helper.make_node("ReduceMean", ["data"], ["mean"], axes=[1, 2, 3], keepdims=0))
        nodes.append(helper.make_node("Mul", ["mean", "zero"], ["nothing"]))
        nodes.append(helper.make_node("Unsqueeze", ["nothing", "second"], ["row"]))
        nodes.append(helper.make_node("Unsqueeze", ["row", "third"], ["rows"]))
        nodes += [
            helper.make_node("Add", [nothing, f"{name}0"], [name])
            for name, nothing in (("boxes", "rows"), ("scores", "row"), ("labels", "row"))
        ]
    else:
        nodes.append(helper.make_node("Slice", ["of_batch", "first", "second", "first"], ["one"]))
        nodes.append(helper.make_node("Transpose", ["one"], ["masks"], perm=[1, 0, 2, 3]))
        nodes += [
            helper.make_node("Identity", [f"{name}0"], [name]) for name in ("boxes", "scores", "labels")
        ]
    graph = helper.make_graph(
        nodes,
        "masks",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [inputs, 3, SIDE, SIDE])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [*leading, *shape])
            for name, shape in SHAPES.items()
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_coco(folder: Path) -> Path:
    """Two images of 16 × 8 pixels with polygons.

    The left half is red in both, and a quarter is green in the first. The truth has the same, but for the cat
    of the second image, which is half as large as the red.
    """
    (folder / "images").mkdir(parents=True)
    for number in (1, 2):
        pixels = np.zeros((8, 16, 3), np.uint8)
        pixels[:, :8, 0] = 255
        if number == 1:
            pixels[4:, 8:, 1] = 255
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    objects = [(1, 17, (0, 0, 8, 8)), (1, 18, (8, 4, 8, 4)), (2, 17, (0, 0, 8, 4))]
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.png", "width": 16, "height": 8} for number in (1, 2)
        ],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {
                "id": place,
                "image_id": image,
                "category_id": category,
                "bbox": box,
                "segmentation": [_corners(*box)],
            }
            for place, (image, category, box) in enumerate(objects, 1)
        ],
    }
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def _corners(left: int, top: int, width: int, height: int) -> Sequence[int]:
    right, bottom = left + width, top + height
    return [left, top, right, top, right, bottom, left, bottom]
