"""Fused operators in ONNX Runtime: parts that its optimiser fuses, or ONNX Runtime's own fused operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.runner import CONTRIBUTED, Form, Graph, node
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.fused import EPSILON

_STATISTICS = ("gamma", "beta", "mean", "var")


def _convolution(case: Case, output: str) -> onnx.NodeProto:
    pads = [*case["pad"], *case["pad"]]
    attributes = {"kernel_shape": case["kernel"], "strides": case["stride"], "pads": pads}
    return node("Conv", "data", "weight", "bias", output=output, **attributes)


def _normalized(case: Case, _: np.dtype[Any], *, relu: bool = False) -> Graph:
    nodes = [
        _convolution(case, "made"),
        node(
            "BatchNormalization",
            "made",
            *_STATISTICS,
            output="normalized" if relu else "output",
            epsilon=EPSILON,
        ),
    ]
    # the optimiser folds the normalisation into a weight and bias that do not change, and only into such; the
    # convolution itself depends on the data and stays
    fixed = ("weight", "bias", *_STATISTICS)
    return Graph([*nodes, *([node("Relu", "normalized")] if relu else [])], fixed=fixed)


def _chain(*nodes: onnx.NodeProto) -> Any:
    return lambda *_: Graph(nodes)


def _gemm(output: str) -> onnx.NodeProto:
    return node("Gemm", "data", "weight", "bias", output=output, transB=1)


def _attention(case: Case, dtype: np.dtype[Any]) -> Graph:
    nodes: Sequence[onnx.NodeProto] = [
        node("Transpose", "key", output="turned", perm=[0, 1, 3, 2]),
        node("MatMul", "query", "turned", output="products"),
        node("Mul", "products", "scale", output="scores"),
        node("Softmax", "scores", output="weights", axis=-1),
        node("MatMul", "weights", "value"),
    ]
    return Graph(nodes, constants={"scale": np.array(1 / sqrt(case.shapes["query"][-1]), dtype)})


_ATTENTION = Graph([node("Attention", "query", "key", "value")], opset=23)

FORMS: Mapping[str, Form] = {
    "conv2d_relu": Form(
        "Conv Relu", lambda case, _: Graph([_convolution(case, "made"), node("Relu", "made")])
    ),
    "conv2d_batch_norm": Form("Conv BatchNormalization", _normalized),
    "conv2d_batch_norm_relu": Form("Conv BatchNormalization Relu", partial(_normalized, relu=True)),
    "dense_relu": Form("Gemm Relu", _chain(_gemm("made"), node("Relu", "made"))),
    # The optimiser leaves Gemm and Gelu, and makes a Gemm of MatMul and Add before it looks for a BiasGelu.
    "dense_gelu": Form(
        "Gemm Gelu",
        _chain(_gemm("made"), node("Gelu", "made")),
        joined=Form(
            "FusedMatMul BiasGelu",
            _chain(
                node("FusedMatMul", "data", "weight", output="product", transB=1, domain=CONTRIBUTED),
                node("BiasGelu", "product", "bias", domain=CONTRIBUTED),
            ),
        ),
    ),
    "add_relu": Form("Add Relu", _chain(node("Add", "lhs", "rhs", output="sum"), node("Relu", "sum"))),
    "layer_norm_residual": Form(
        "Add LayerNormalization",
        _chain(
            node("Add", "data", "residual", output="sum"),
            node("LayerNormalization", "sum", "gamma", "beta", axis=-1, epsilon=EPSILON),
        ),
    ),
    "scaled_dot_product_attention": Form(
        "Transpose MatMul Mul Softmax MatMul", _attention, joined=Form("Attention", lambda *_: _ATTENTION)
    ),
}
MISSING: Mapping[str, str] = {}
