"""Products of matrices and linear algebra in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


def _factor(matrix: Any, transpose: object) -> Any:
    """A transposed view, which the product reads without a copy."""
    return matrix.mT if transpose else matrix


def _product(function: Function, case: Case, *, scaled: bool = False) -> Function:
    left, right = case["transpose_lhs"], case["transpose_rhs"]
    if scaled:
        return lambda lhs, rhs: case["alpha"] * function(_factor(lhs, left), _factor(rhs, right))
    if left or right:
        return lambda lhs, rhs: function(_factor(lhs, left), _factor(rhs, right))
    return function


def _gemm(case: Case) -> Function:
    left, right, alpha, beta = (case[name] for name in ("transpose_lhs", "transpose_rhs", "alpha", "beta"))
    return lambda lhs, rhs, addend: torch.addmm(
        addend, _factor(lhs, left), _factor(rhs, right), beta=beta, alpha=alpha
    )


def _extract_triangle(case: Case) -> Function:
    size = case.shapes["data"][-1]
    rows, columns = torch.tril_indices(size, size)
    return lambda data: data[..., rows, columns]


def _make_triangle(case: Case) -> Function:
    *batch, entries = case.shapes["data"]
    size = isqrt(2 * entries)
    rows, columns = torch.tril_indices(size, size)

    def make(data: torch.Tensor) -> torch.Tensor:
        found = data.new_zeros((*batch, size, size))
        found[..., rows, columns] = data
        return found

    return make


def _lq(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, r = torch.linalg.qr(data.mT)
    return q.mT.contiguous(), r.mT.contiguous()


FUNCTIONS: Mapping[str, Form] = {
    "dot": Form("torch.mm", lambda case: _product(torch.mm, case), ("mm", "matmul", "linalg_matmul")),
    "batch_dot": Form("torch.bmm", lambda case: _product(torch.bmm, case), ("bmm",)),
    "khatri_rao": Form(
        "torch.mul, torch.flatten",
        lambda _: lambda lhs, rhs: (lhs[:, None] * rhs).flatten(0, 1),
        ("mul",),
    ),
    "gemm": Form("torch.addmm", _gemm, ("addmm",)),
    "gemm2": Form(
        "torch.matmul, torch.mul", lambda case: _product(torch.matmul, case, scaled=True), ("matmul",)
    ),
    "syrk": Form("torch.matmul", lambda _: lambda data: torch.matmul(data, data.mT), ("matmul",)),
    "trmm": Form(
        "torch.tril, torch.matmul", lambda _: lambda lower, data: torch.matmul(lower.tril(), data), ("tril",)
    ),
    "trsm": Form(
        "torch.linalg.solve_triangular",
        lambda _: lambda lower, data: torch.linalg.solve_triangular(lower, data, upper=False),
        ("linalg_solve_triangular", "triangular_solve"),
    ),
    "cholesky": Form(
        "torch.linalg.cholesky",
        lambda _: torch.linalg.cholesky,
        ("linalg_cholesky", "linalg_cholesky_ex", "cholesky"),
    ),
    "cholesky_inverse": Form(
        # without tril its gradient has values for what it does not read
        "torch.tril, torch.cholesky_inverse",
        lambda _: lambda data: torch.cholesky_inverse(data.tril()),
        ("cholesky_inverse",),
    ),
    "det": Form("torch.linalg.det", lambda _: torch.linalg.det, ("det", "linalg_det")),
    "slogdet": Form("torch.linalg.slogdet", lambda _: torch.linalg.slogdet, ("slogdet", "linalg_slogdet")),
    "inverse": Form(
        "torch.linalg.inv", lambda _: torch.linalg.inv, ("inverse", "linalg_inv", "linalg_inv_ex")
    ),
    "eigh": Form(
        "torch.linalg.eigh", lambda _: lambda data: torch.linalg.eigh(data).eigenvalues, ("linalg_eigh",)
    ),
    "lq": Form("torch.linalg.qr, torch.Tensor.contiguous", lambda _: _lq, ("linalg_qr", "qr")),
    "sum_log_diagonal": Form(
        "torch.diagonal, torch.log, torch.sum",
        lambda _: lambda data: data.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        ("diagonal",),
    ),
    "extract_diagonal": Form(
        "torch.diagonal_copy",
        lambda _: lambda data: torch.diagonal_copy(data, dim1=-2, dim2=-1),
        ("diagonal_copy", "diagonal", "linalg_diagonal"),
    ),
    "make_diagonal": Form("torch.diag_embed", lambda _: torch.diag_embed),
    "extract_triangle": Form("torch.Tensor.__getitem__", _extract_triangle, ("index",)),
    "make_triangle": Form("torch.Tensor.new_zeros, torch.Tensor.__setitem__", _make_triangle, ("index_put",)),
}
MISSING: Mapping[str, str] = {}
