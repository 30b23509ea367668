"""Products of matrices and linear algebra in ONNX and its contributed operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case

_CONTRIBUTED = "com.microsoft"


def _transposes(case: Case) -> dict[str, Any]:
    return {"transA": int(case["transpose_lhs"]), "transB": int(case["transpose_rhs"])}


def _product(case: Case, _: np.dtype[Any]) -> Graph:
    transposes = _transposes(case)
    if any(transposes.values()):
        return Graph([node("FusedMatMul", "lhs", "rhs", domain=_CONTRIBUTED, **transposes)])
    return Graph([node("MatMul", "lhs", "rhs")])


def _gemm(case: Case, _: np.dtype[Any]) -> Graph:
    scales: dict[str, Any] = {"alpha": float(case["alpha"]), "beta": float(case["beta"])}
    return Graph([node("Gemm", "lhs", "rhs", "addend", **scales, **_transposes(case))])


def _gemm2(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [
            node(
                "FusedMatMul",
                "lhs",
                "rhs",
                domain=_CONTRIBUTED,
                alpha=float(case["alpha"]),
                **_transposes(case),
            )
        ]
    )


def _khatri_rao(case: Case, _: np.dtype[Any]) -> Graph:
    columns = case.shapes["lhs"][1]
    return Graph(
        [
            node("Einsum", "lhs", "rhs", output="products", equation="ik,jk->ijk"),
            node("Reshape", "products", "shape"),
        ],
        constants={"shape": np.array([-1, columns], np.int64)},
    )


GRAPHS: Mapping[str, Form] = {
    "dot": Form("MatMul FusedMatMul", _product),
    "batch_dot": Form("MatMul FusedMatMul", _product),
    "khatri_rao": Form("Einsum Reshape", _khatri_rao),
    "gemm": Form("Gemm", _gemm),
    "gemm2": Form("FusedMatMul", _gemm2),
    "syrk": single("FusedMatMul", "data", "data", domain=_CONTRIBUTED, transB=1),
    "det": single("Det", "data"),
    "inverse": single("Inverse", "data", domain=_CONTRIBUTED),
}
_NO_FACTORIZATION = "ONNX has no factorizations of matrices"
_NO_TRIANGLE = "ONNX has Trilu, which masks a triangle, and nothing that computes with one"
_NO_DIAGONAL = "ONNX has no operator for the diagonal of a matrix"
MISSING: Mapping[str, str] = {
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
