"""Element-wise functions of one tensor in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case


def _times(factor: float, *before: onnx.NodeProto) -> Form:
    """Returns the form of a multiplication: of ``last``, which the nodes before make, or of ``data``."""

    def make(_: Case, dtype: np.dtype[Any]) -> Graph:
        last = node("Mul", "last" if before else "data", "factor")
        return Graph([*before, last], constants={"factor": np.array(factor, dtype)})

    return Form(" ".join([*(each.op_type for each in before), "Mul"]), make)


def _clip(case: Case, dtype: np.dtype[Any]) -> Graph:
    bounds = {name: np.array(case[name], dtype) for name in ("low", "high")}
    return Graph([node("Clip", "data", *bounds)], constants=bounds)


def _cast(case: Case, _: np.dtype[Any]) -> Graph:
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(case["to"]))
    return Graph([node("Cast", "data", to=to)])


_LOG = node("Log", "data", output="last")
_ROOT = node("Sqrt", "data", output="root")
_NAMES = {
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "erf": "Erf",
    "ceil": "Ceil",
    "floor": "Floor",
    "rint": "Round",
    "copy": "Identity",
}

GRAPHS: Mapping[str, Form] = {
    **{name: single(kind, "data") for name, kind in _NAMES.items()},
    "log2": _times(1 / log(2), _LOG),
    "log10": _times(1 / log(10), _LOG),
    "rsqrt": Form("Sqrt Reciprocal", lambda _case, _dtype: Graph([_ROOT, node("Reciprocal", "root")])),
    "square": single("Mul", "data", "data"),
    "degrees": _times(180 / pi),
    "radians": _times(pi / 180),
    "trunc": Form(
        "Abs Floor Sign Mul",
        lambda _case, _dtype: Graph(
            [
                node("Abs", "data", output="size"),
                node("Floor", "size", output="whole"),
                node("Sign", "data", output="sign"),
                node("Mul", "whole", "sign"),
            ]
        ),
    ),
    "clip": Form("Clip", _clip),
    "cast": Form("Cast", _cast),
}
_LOSSY = "ONNX has none; {} loses near 0 what it is to keep"
_NO_CUBE_ROOT = "ONNX has no cube root; Pow(x, 1/3) is NaN for negative numbers"
MISSING: Mapping[str, str] = {
    "expm1": _LOSSY.format("Exp and Sub"),
    "log1p": _LOSSY.format("Add and Log"),
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "erfinv": "ONNX has no inverse of Erf",
    "gamma": "ONNX has no gamma function",
    "gammaln": "ONNX has no gamma function",
    "round": "ONNX's Round rounds halves to even, as rint does",
}
