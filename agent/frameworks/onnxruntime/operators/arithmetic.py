"""Element-wise arithmetic, comparisons and functions, reductions, and matrix products in ONNX.

ONNX's logical operators accept only booleans. Reductions include cumulative sums, sorting and searching;
products include linear algebra, partly through ONNX Runtime's own operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.runner import (
    CONTRIBUTED,
    IN_PLACE,
    Form,
    Graph,
    node,
    single,
    with_numbers,
)
from inferometer.agent.operators.operator import Case


def _logical(kind: str, *inputs: str) -> Form:
    """Returns the form of a logical operator whose inputs are first cast to booleans."""
    boolean = onnx.TensorProto.BOOL
    casts = [node("Cast", name, output=f"{name}_is_true", to=boolean) for name in inputs]
    last = node(kind, *(f"{name}_is_true" for name in inputs))
    return Form(f"Cast {kind}", lambda _case, _dtype: Graph([*casts, last]))


def _times(factor: float, *before: onnx.NodeProto) -> Form:
    """Returns the form that multiplies ``last``, the output of ``before``, or else ``data`` by a factor."""

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

_LOSSY = "ONNX has none; {} loses near 0 what it is to keep"
_NO_CUBE_ROOT = "ONNX has no cube root; Pow(x, 1/3) is NaN for negative numbers"


def _reduced(kind: str) -> Form:
    return Form(kind, lambda case, _: _reduction(kind, case))


def _reduction(kind: str, case: Case) -> Graph:
    return Graph(
        [node(kind, "data", "axes", keepdims=int(case["keepdims"]))],
        constants={"axes": np.atleast_1d(case["axis"]).tolist()},
    )


def _top(count: int, case: Case, outputs: tuple[str, ...], *, largest: bool) -> Graph:
    """Returns a graph that finds the top ``count`` elements; it outputs ``values``, ``indices`` or both."""
    made = onnx.helper.make_node(
        "TopK", ["data", "count"], ["values", "indices"], axis=case["axis"], largest=int(largest), sorted=1
    )
    return Graph([made], outputs, {"count": [count]})


def _sorted(output: str) -> Form:
    return Form(
        "TopK", lambda case, _: _top(case.shapes["data"][case["axis"]], case, (output,), largest=False)
    )


def _transposes(case: Case) -> dict[str, Any]:
    return {"transA": int(case["transpose_lhs"]), "transB": int(case["transpose_rhs"])}


def _product(case: Case, _: np.dtype[Any]) -> Graph:
    transposes = _transposes(case)
    if any(transposes.values()):
        return Graph([node("FusedMatMul", "lhs", "rhs", domain=CONTRIBUTED, **transposes)])
    return Graph([node("MatMul", "lhs", "rhs")])


def _gemm(case: Case, _: np.dtype[Any]) -> Graph:
    scales: dict[str, Any] = {"alpha": float(case["alpha"]), "beta": float(case["beta"])}
    return Graph([node("Gemm", "lhs", "rhs", "addend", **scales, **_transposes(case))])


def _gemm2(case: Case, _: np.dtype[Any]) -> Graph:
    alpha = float(case["alpha"])
    return Graph([node("FusedMatMul", "lhs", "rhs", domain=CONTRIBUTED, alpha=alpha, **_transposes(case))])


def _khatri_rao(case: Case, _: np.dtype[Any]) -> Graph:
    columns = case.shapes["lhs"][1]
    return Graph(
        [
            node("Einsum", "lhs", "rhs", output="products", equation="ik,jk->ijk"),
            node("Reshape", "products", "shape"),
        ],
        constants={"shape": [-1, columns]},
    )


_NO_FACTORIZATION = "ONNX has no factorizations of matrices"
_NO_TRIANGLE = "ONNX has Trilu, which masks a triangle, and nothing that computes with one"
_NO_DIAGONAL = "ONNX has no operator for the diagonal of a matrix"


FORMS: Mapping[str, Form] = {
    "add": single("Add", "lhs", "rhs"),
    "subtract": single("Sub", "lhs", "rhs"),
    "multiply": single("Mul", "lhs", "rhs"),
    "divide": single("Div", "lhs", "rhs"),
    "fmod": single("Mod", "lhs", "rhs", fmod=1),
    "power": single("Pow", "lhs", "rhs"),
    "maximum": single("Max", "lhs", "rhs"),
    "minimum": single("Min", "lhs", "rhs"),
    "broadcast_add": single("Add", "lhs", "rhs"),
    "broadcast_subtract": single("Sub", "lhs", "rhs"),
    "broadcast_multiply": single("Mul", "lhs", "rhs"),
    "broadcast_divide": single("Div", "lhs", "rhs"),
    "add_n": single("Sum", "first", "second", "third"),
    "negative": single("Neg", "data"),
    "equal": single("Equal", "lhs", "rhs"),
    "not_equal": Form(
        "Equal Not",
        lambda _case, _dtype: Graph([node("Equal", "lhs", "rhs", output="equal"), node("Not", "equal")]),
    ),
    "greater": single("Greater", "lhs", "rhs"),
    "greater_equal": single("GreaterOrEqual", "lhs", "rhs"),
    "less": single("Less", "lhs", "rhs"),
    "less_equal": single("LessOrEqual", "lhs", "rhs"),
    "logical_and": _logical("And", "lhs", "rhs"),
    "logical_or": _logical("Or", "lhs", "rhs"),
    "logical_xor": _logical("Xor", "lhs", "rhs"),
    "logical_not": _logical("Not", "data"),
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
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "prod": _reduced("ReduceProd"),
    "max": _reduced("ReduceMax"),
    "min": _reduced("ReduceMin"),
    "norm": Form("ReduceL1 ReduceL2", lambda case, _: _reduction(f"ReduceL{case['ord']}", case)),
    "logsumexp": _reduced("ReduceLogSumExp"),
    "cumsum": with_numbers("CumSum", lambda case: case["axis"]),
    "argmax": single("ArgMax", "data", of={"axis": "axis"}, keepdims=0),
    "argmin": single("ArgMin", "data", of={"axis": "axis"}, keepdims=0),
    "sort": _sorted("values"),
    "argsort": _sorted("indices"),
    "topk": Form("TopK", lambda case, _: _top(case["k"], case, ("values", "indices"), largest=True)),
    "dot": Form("MatMul FusedMatMul", _product),
    "batch_dot": Form("MatMul FusedMatMul", _product),
    "khatri_rao": Form("Einsum Reshape", _khatri_rao),
    "gemm": Form("Gemm", _gemm),
    "gemm2": Form("FusedMatMul", _gemm2),
    "syrk": single("FusedMatMul", "data", "data", domain=CONTRIBUTED, transB=1),
    "det": single("Det", "data"),
    "inverse": single("Inverse", "data", domain=CONTRIBUTED),
}


MISSING: Mapping[str, str] = {
    "modulo": "ONNX's Mod of floating-point numbers has the sign of the dividend, as fmod has",
    "hypot": "ONNX has no hypot; the root of the sum of squares overflows where hypot does not",
    **dict.fromkeys(("iadd", "isub", "imul", "idiv", "imod"), IN_PLACE),
    "expm1": _LOSSY.format("Exp and Sub"),
    "log1p": _LOSSY.format("Add and Log"),
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "erfinv": "ONNX has no inverse of Erf",
    "gamma": "ONNX has no gamma function",
    "gammaln": "ONNX has no gamma function",
    "round": "ONNX's Round rounds halves to even, as rint does",
    "nansum": "ONNX has no reduction that leaves out what is not a number",
    "nanprod": "ONNX has no reduction that leaves out what is not a number",
    "moments": "ONNX has no variance",
    "trmm": _NO_TRIANGLE,
    "trsm": "ONNX solves no linear systems",
    "cholesky": _NO_FACTORIZATION,
    "cholesky_inverse": _NO_FACTORIZATION,
    "slogdet": "ONNX has Det, and nothing for its logarithm",
    "eigh": _NO_FACTORIZATION,
    "lq": _NO_FACTORIZATION,
    "sum_log_diagonal": _NO_DIAGONAL,
    "extract_diagonal": _NO_DIAGONAL,
    "make_diagonal": _NO_DIAGONAL,
    "extract_triangle": _NO_TRIANGLE,
    "make_triangle": _NO_TRIANGLE,
}
