"""What makes tensors in ONNX. Sizes and bounds are fed, for ONNX Runtime folds nodes of constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node
from inferometer.agent.operators.operator import Case


def _constant(output: str, shape: str, value: float, dtype: np.dtype[Any]) -> onnx.NodeProto:
    tensor = onnx.numpy_helper.from_array(np.array([value], dtype))
    return node("ConstantOfShape", shape, output=output, value=tensor)


def _filled(value: float | None = None) -> Form:
    """Returns the form of a filled tensor; without a value, of the one that the case has."""

    def make(case: Case, dtype: np.dtype[Any]) -> Graph:
        filling = case["value"] if value is None else value
        return Graph(
            [_constant("output", "shape", filling, dtype)], fed={"shape": np.array(case["shape"], np.int64)}
        )

    return Form("ConstantOfShape", make)


def _like(value: float) -> Form:
    def make(_: Case, dtype: np.dtype[Any]) -> Graph:
        nodes = [node("Shape", "data", output="shape"), _constant("output", "shape", value, dtype)]
        return Graph(nodes, any_shape=True)

    return Form("Shape ConstantOfShape", make)


def _range(case: Case, dtype: np.dtype[Any]) -> Graph:
    bounds = {name: np.array(case[name], dtype) for name in ("start", "stop", "step")}
    repeat = case["repeat"]
    if repeat == 1:
        return Graph([node("Range", *bounds)], fed=bounds)
    nodes = [
        node("Range", *bounds, output="once"),
        node("Unsqueeze", "once", "last_axis", output="column"),
        node("Expand", "column", "row", output="table"),
        node("Reshape", "table", "flat"),
    ]
    constants = {"last_axis": [1], "row": [1, repeat], "flat": [-1]}
    return Graph(
        nodes, constants={name: np.array(each, np.int64) for name, each in constants.items()}, fed=bounds
    )


def _random(kind: str, **attributes: str) -> Form:
    """Returns the form of an operator whose attributes are parameters of the table."""

    def make(case: Case, dtype: np.dtype[Any]) -> Graph:
        given = {name: case[parameter] for name, parameter in attributes.items()}
        element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return Graph([node(kind, shape=case["shape"], dtype=element, **given)])

    return Form(kind, make)


def _multinomial(case: Case, _: np.dtype[Any]) -> Graph:
    int64 = onnx.TensorProto.INT64
    last = node("Multinomial", "logarithms", sample_size=case["draws"], dtype=int64)
    return Graph([node("Log", "data", output="logarithms"), last])


GRAPHS: Mapping[str, Form] = {
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "full": _filled(),
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "arange": Form("Range Unsqueeze Expand Reshape", _range),
    "random_uniform": _random("RandomUniform", low="low", high="high"),
    "random_normal": _random("RandomNormal", mean="loc", scale="scale"),
    "bernoulli": Form("Bernoulli", lambda _case, _dtype: Graph([node("Bernoulli", "data")])),
    "multinomial": Form("Log Multinomial", _multinomial),
}
_FEW = "ONNX draws uniform, normal, Bernoulli and multinomial numbers only"
MISSING: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "random_gamma",
            "random_exponential",
            "random_poisson",
            "random_negative_binomial",
            "random_randint",
        ),
        _FEW,
    ),
    "shuffle": "ONNX has no random permutation",
    "custom_add_one": "ONNX Runtime takes custom operators from compiled libraries only, not from Python",
}
