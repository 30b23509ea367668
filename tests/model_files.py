"""Tiny networks as the files and objects that people have, in each framework."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.optional_mxnet import mxnet

DIMENSIONS = (3, 8, 8)


class TinyNet(torch.nn.Module):
    """Four maps, their means, and two scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.dropout = torch.nn.Dropout(0.5)
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.fc(self.dropout(self.conv(data).relu()).mean((2, 3)))
        return scores


def save_program(
    module: torch.nn.Module, path: Path, example: torch.Tensor, *, any_batch: bool = True
) -> Path:
    shapes = ({0: torch.export.Dim("batch", max=1024)},) if any_batch else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        torch.export.save(torch.export.export(module.eval(), (example,), dynamic_shapes=shapes), path)
    return path


def save_script(module: torch.nn.Module, path: Path, example: torch.Tensor | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still read
        made = torch.jit.script(module) if example is None else torch.jit.trace(module.eval(), example)
        torch.jit.save(made, path)
    return path


def save_onnx(
    path: Path,
    shape: tuple[str | int, ...] | None = ("batch", *DIMENSIONS),
    *,
    element_type: int = TensorProto.FLOAT,
    inputs: tuple[str, ...] = ("image",),
    outside: str = "",
) -> Path:
    """Adds a weight to the sum of its inputs; the weight is in the file, or ``outside`` of it."""
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
    weight = numpy_helper.from_array(np.ones((1,), kind), "weight")
    nodes = [
        helper.make_node("Sum", list(inputs), ["sum"]),
        helper.make_node("Add", ["sum", "weight"], ["out"]),
    ]
    given = [helper.make_tensor_value_info(name, element_type, shape) for name in inputs]
    given.append(helper.make_tensor_value_info("weight", element_type, (1,)))  # as older files have it
    out = helper.make_tensor_value_info("out", element_type, shape)
    graph = helper.make_graph(nodes, "graph", given, [out], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if outside:
        onnx.save(model, path, save_as_external_data=True, location=outside, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def make_block() -> mxnet.gluon.HybridBlock:
    block = mxnet.gluon.nn.HybridSequential()
    block.add(
        mxnet.gluon.nn.Conv2D(4, 3, padding=1), mxnet.gluon.nn.GlobalAvgPool2D(), mxnet.gluon.nn.Dense(2)
    )
    block.initialize()
    block.hybridize()
    block(mxnet.nd.zeros((1, *DIMENSIONS)))
    return block


def save_symbol(folder: Path, *epochs: int) -> Path:
    """Writes ``net-symbol.json`` and its parameters; returns the symbol."""
    block = make_block()
    for epoch in epochs or (0,):
        block.export(str(folder / "net"), epoch)
    return folder / "net-symbol.json"
