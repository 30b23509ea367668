"""The graphs of single operators by the table's names, from the files of its folder ``table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from inferometer.agent.operators.operator import NOTHING, Case
from inferometer.agent.operators.table.registry import joined

OPSET = 21
_IR_VERSION = 10
_NEXT_IR_VERSION = 11
"""The version that has opset 23."""
_FOLDER = "inferometer.agent.frameworks.onnxruntime.operators.table"


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes of an operator, mostly one.

    Attributes:
        nodes: From ``onnx.helper.make_node``; their inputs are the table's names.
        outputs: The names of the graph's outputs.
        constants: What the operator takes as a tensor and the table as a parameter, such as axes.
        fed: The same as inputs of the graph, for nodes that ONNX Runtime would fold if all were constant.
        any_shape: Whether the graph leaves the shapes of the inputs open, so that they are not folded.
        fixed: The inputs of the table that are initialisers, whose values the optimiser may fold.
        opset: The version of the default domain.
    """

    nodes: Sequence[onnx.NodeProto]
    outputs: Sequence[str] = ("output",)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=lambda: NOTHING)
    fed: Mapping[str, NDArray[Any]] = field(default_factory=lambda: NOTHING)
    any_shape: bool = False
    fixed: Sequence[str] = ()
    opset: int = OPSET


@dataclass(frozen=True, slots=True)
class Form:
    """How ONNX Runtime runs an operator.

    Attributes:
        api: The operators of ONNX that a graph of it may have, with spaces between.
        make: Returns the graph for a case and the type of its floating-point inputs.
        arrange: Returns the graph's inputs, where ONNX has another order or layout of the table's; not timed.
        joined: The operators of a fused one that ONNX Runtime has, but does not make of the graph by itself.
    """

    api: str
    make: Callable[[Case, np.dtype[Any]], Graph]
    arrange: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]] | None = None
    joined: Form | None = None


def single(kind: str, *inputs: str, **attributes: Any) -> Form:
    """Returns the form of an operator whose inputs are the table's, and whose attributes are fixed."""
    return Form(kind, lambda _case, _dtype: Graph([node(kind, *inputs, **attributes)]))


def node(kind: str, *inputs: str, output: str = "output", **attributes: Any) -> onnx.NodeProto:
    """Returns a node with one output."""
    return onnx.helper.make_node(kind, list(inputs), [output], **attributes)


@cache
def graphs() -> Mapping[str, Form]:
    """Returns the forms by the operator's name."""
    return joined(_FOLDER, "GRAPHS")


@cache
def reasons() -> Mapping[str, str]:
    """Returns why ONNX lacks operators of the table, by name."""
    return joined(_FOLDER, "MISSING")


def model_of(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns the graph in ONNX's format; ONNX Runtime infers the types of the outputs."""
    used = {name for each in graph.nodes for name in each.input}
    constants = {**graph.constants, **{name: inputs[name] for name in graph.fixed}}
    made = onnx.helper.make_graph(
        list(graph.nodes),
        "operator",
        [
            onnx.helper.make_tensor_value_info(
                name,
                onnx.helper.np_dtype_to_tensor_dtype(a.dtype),
                [None] * a.ndim if graph.any_shape else a.shape,
            )
            for name, a in inputs.items()
            if name in used and name not in constants
        ],
        [onnx.helper.make_empty_tensor_value_info(name) for name in graph.outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", graph.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(
        made, opset_imports=opsets, ir_version=_IR_VERSION if graph.opset <= OPSET else _NEXT_IR_VERSION
    ).SerializeToString()
