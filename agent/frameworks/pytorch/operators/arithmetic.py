"""Element-wise arithmetic, comparisons and functions, reductions, and matrix products in PyTorch.

Reductions include cumulative sums, sorting and searching; products include linear algebra.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import isqrt
from typing import Any

import torch

from inferometer.agent.frameworks.pytorch.operators.runner import Form, Function, function
from inferometer.agent.operators.operator import Case


def _method(name: str, *covers: str) -> Form:
    found = getattr(torch.Tensor, name)
    return Form(f"torch.Tensor.{name}", lambda _: found, covers)


_ADD = function("add", "add")
_SUBTRACT = function("sub", "sub", "subtract")
_MULTIPLY = function("mul", "mul", "multiply")
_DIVIDE = function("div", "div", "divide", "true_divide")


# its own names are the table's
_SAME = (
    "fmod maximum minimum hypot logical_and logical_or logical_xor logical_not sign exp log log2 log10 sqrt "
    "rsqrt square reciprocal sin cos tan sinh cosh ceil floor"
)
_NO_CUBE_ROOT = "PyTorch has no cube root; torch.pow(x, 1/3) is NaN for negative numbers"


def _reduced(name: str, *covers: str, **renamed: str) -> Form:
    return function(name, *covers, dim="axis", keepdim="keepdims", **renamed)


def _moments(case: Case) -> Function:
    whole = partial(torch.var_mean, dim=case["axis"], correction=0, keepdim=case["keepdims"])
    return lambda data: whole(data)[::-1]


def _factor(matrix: Any, transpose: object) -> Any:
    """Returns a transposed view, which the product reads without a copy."""
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


FORMS: Mapping[str, Form] = {
    "all_finite": Form(
        "torch.isfinite torch.all", lambda _: lambda data: data.isfinite().all(), ("isfinite", "all")
    ),
    "add": _ADD,
    "subtract": _SUBTRACT,
    "multiply": _MULTIPLY,
    "divide": _DIVIDE,
    **{name: function(name) for name in _SAME.split()},
    "modulo": function("remainder"),
    "power": function("pow"),
    "broadcast_add": _ADD,
    "broadcast_subtract": _SUBTRACT,
    "broadcast_multiply": _MULTIPLY,
    "broadcast_divide": _DIVIDE,
    "iadd": _method("add_", "add"),
    "isub": _method("sub_", "sub", "subtract"),
    "imul": _method("mul_", "mul", "multiply"),
    "idiv": _method("div_", "div", "divide", "true_divide"),
    "imod": _method("remainder_", "remainder"),
    "negative": function("neg", "neg", "negative"),
    "equal": function("eq"),
    "not_equal": function("ne", "ne", "not_equal"),
    "greater": function("gt", "gt", "greater"),
    "greater_equal": function("ge", "ge", "greater_equal"),
    "less": function("lt", "lt", "less"),
    "less_equal": function("le", "le", "less_equal"),
    "abs": function("abs", "abs", "absolute"),
    "expm1": function("expm1", "expm1", "special_expm1"),
    "log1p": function("log1p", "log1p", "special_log1p"),
    "arcsin": function("asin", "asin", "arcsin"),
    "arccos": function("acos", "acos", "arccos"),
    "arctan": function("atan", "atan", "arctan"),
    "arcsinh": function("asinh", "asinh", "arcsinh"),
    "arccosh": function("acosh", "acosh", "arccosh"),
    "arctanh": function("atanh", "atanh", "arctanh"),
    "degrees": function("rad2deg"),
    "radians": function("deg2rad"),
    "erf": function("erf", "erf", "special_erf"),
    "erfinv": function("erfinv", "erfinv", "special_erfinv"),
    "gammaln": function("lgamma", "lgamma", "special_gammaln"),
    "rint": function("round", "round", "special_round"),
    "trunc": function("trunc", "trunc", "fix"),
    "clip": Form(
        "torch.clamp",
        lambda case: lambda data: torch.clamp(data, case["low"], case["high"]),
        ("clamp", "clip"),
    ),
    "copy": function("clone"),
    "cast": Form(
        "torch.Tensor.to", lambda case: lambda data: data.to(getattr(torch, case["to"])), ("to", "type_as")
    ),
    **{name: _reduced(name) for name in ("sum", "mean", "nansum", "prod")},
    "max": _reduced("amax", "amax", "max"),
    "min": _reduced("amin", "amin", "min"),
    "norm": _reduced(
        "linalg.vector_norm", "linalg_vector_norm", "linalg_norm", "norm", "frobenius_norm", ord="ord"
    ),
    "logsumexp": _reduced("logsumexp", "logsumexp", "special_logsumexp"),
    "moments": Form("torch.var_mean", _moments, ("var_mean", "var")),
    **{name: function(name, dim="axis") for name in ("cumsum", "argmax", "argmin", "argsort")},
    "sort": Form(
        "torch.sort", lambda case: lambda data: torch.sort(data, dim=case["axis"]).values, ("sort", "msort")
    ),
    "topk": function("topk", k="k", dim="axis"),
    "dot": Form("torch.mm", lambda case: _product(torch.mm, case), ("mm", "matmul", "linalg_matmul")),
    "batch_dot": Form("torch.bmm", lambda case: _product(torch.bmm, case), ("bmm",)),
    "khatri_rao": Form(
        "torch.mul, torch.flatten", lambda _: lambda lhs, rhs: (lhs[:, None] * rhs).flatten(0, 1), ("mul",)
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
    "cholesky": function("linalg.cholesky", "linalg_cholesky", "linalg_cholesky_ex", "cholesky"),
    "cholesky_inverse": Form(
        # without tril its gradient has values for what it does not read
        "torch.tril, torch.cholesky_inverse",
        lambda _: lambda data: torch.cholesky_inverse(data.tril()),
        ("cholesky_inverse",),
    ),
    "det": function("linalg.det", "det", "linalg_det"),
    "slogdet": function("linalg.slogdet", "slogdet", "linalg_slogdet"),
    "inverse": function("linalg.inv", "inverse", "linalg_inv", "linalg_inv_ex"),
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
    "make_diagonal": function("diag_embed"),
    "extract_triangle": Form("torch.Tensor.__getitem__", _extract_triangle, ("index",)),
    "make_triangle": Form("torch.Tensor.new_zeros, torch.Tensor.__setitem__", _make_triangle, ("index_put",)),
}


MISSING: Mapping[str, str] = {
    "cast_storage": "PyTorch's tensors of compressed rows are a beta version, and torch.compile returns none",
    "add_n": "PyTorch has no sum of several tensors; torch.sum takes a torch.stack of them, which copies",
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "gamma": "PyTorch has the logarithm of the gamma function only, torch.lgamma",
    "round": "torch.round rounds halves to even, as rint does",
    "nanprod": "PyTorch has nansum, and no product that leaves out what is not a number",
}
