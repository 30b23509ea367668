"""Matrix products and linear algebra.

A product of m × k and k × n requires 2·m·n·k floating-point operations, and its gradients twice as many. The
others use the leading terms of LAPACK Working Note 41 ("Installation Guide for LAPACK", appendix C), and the
symmetric eigenproblem uses the 9·n³ of Golub and Van Loan, "Matrix Computations", section 8.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Presets,
    Shape,
    Sizes,
    TensorSpec,
    Values,
    by_preset,
    same_shape,
    sized,
)

_UNIT_DETERMINANT = 0.56
"""The scale that keeps the determinant of a large ``Values.POSITIVE_DEFINITE`` matrix within float32."""


def _swapped(array: NDArray[Any], transpose: object = True) -> NDArray[Any]:
    return np.swapaxes(array, -1, -2) if transpose else array


def _product(arrays: Arrays, parameters: Parameters) -> NDArray[Any]:
    lhs, rhs = arrays[:2]
    found: NDArray[Any] = _swapped(lhs, parameters["transpose_lhs"]) @ _swapped(
        rhs, parameters["transpose_rhs"]
    )
    return found


def _result_shape(case: Case) -> Shape:
    lhs, rhs = case.shapes["lhs"], case.shapes["rhs"]
    (m, k), (l, n) = lhs[-2:], rhs[-2:]  # noqa: E741 - the letters of BLAS
    if case["transpose_lhs"]:
        m, k = k, m
    if case["transpose_rhs"]:
        l, n = n, l  # noqa: E741
    if k != l or lhs[:-2] != rhs[:-2]:
        raise ValueError(f"{lhs} cannot be multiplied by {rhs}")
    return (*lhs[:-2], m, n)


def _factors(rank: int | None) -> Callable[[Case], tuple[TensorSpec, ...]]:
    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        if len(_result_shape(case)) != (rank or len(case.shapes["lhs"])):
            raise ValueError(f"the matrices must have {rank} axes")
        return same_shape("lhs", "rhs")(case)

    return tensors


def _product_flops(case: Case, outputs: Sequence[Shape]) -> int:
    """Returns 2·m·n·k for each pair of matrices."""
    k = case.shapes["lhs"][-2 if case["transpose_lhs"] else -1]
    return 2 * k * prod(outputs[0])


def _pair(lhs: Shape, rhs: Shape, **parameters: Any) -> Sizes:
    return {"lhs": lhs, "rhs": rhs}, parameters


_TRANSPOSES: Parameters = {"transpose_lhs": False, "transpose_rhs": False}
_MATRICES: Presets = by_preset(
    [
        _pair((32, 24), (24, 20)),
        _pair((32, 24), (20, 24), transpose_rhs=True),
        _pair((24, 32), (20, 24), transpose_lhs=True, transpose_rhs=True),
    ],
    _pair((1024, 1024), (1024, 1000)),
    _pair((2048, 2048), (2048, 2048)),
    _pair((1000, 10), (1000, 10), transpose_rhs=True),
    _pair((1000, 1), (1, 1000)),
    _pair((10, 1000), (1000, 10), transpose_lhs=True, transpose_rhs=True),
)
_BATCHES: Presets = by_preset(
    [
        _pair((3, 16, 24), (3, 24, 20)),
        _pair((3, 16, 24), (3, 20, 24), transpose_rhs=True),
        _pair((3, 24, 16), (3, 20, 24), transpose_lhs=True, transpose_rhs=True),
    ],
    _pair((32, 1024, 1024), (32, 1024, 1000)),
    _pair((128, 1024, 1024), (128, 1024, 1000)),
    _pair((32, 1000, 10), (32, 1000, 10), transpose_rhs=True),
    _pair((10000, 8, 8), (10000, 8, 8)),
)


def _khatri_rao(arrays: Arrays, _: Parameters) -> Arrays:
    lhs, rhs = arrays
    return ((lhs[:, None, :] * rhs[None, :, :]).reshape(-1, lhs.shape[1]),)


def _same_columns(case: Case) -> tuple[TensorSpec, ...]:
    lhs, rhs = case.shapes["lhs"], case.shapes["rhs"]
    if len(lhs) != 2 or len(rhs) != 2 or lhs[1] != rhs[1]:
        raise ValueError(f"the matrices {lhs} and {rhs} have different numbers of columns")
    return same_shape("lhs", "rhs")(case)


_multiplied = partial(Operator, given=("lhs", "rhs"), flops=_product_flops, backward_flops=2.0)

_PRODUCTS = (
    _multiplied(
        name="dot",
        category=Category.GEMM,
        summary="product of two matrices, each transposed before if asked for",
        tensors=_factors(2),
        presets=_MATRICES,
        parameters=_TRANSPOSES,
        reference=lambda arrays, parameters: (_product(arrays, parameters),),
    ),
    _multiplied(
        name="batch_dot",
        category=Category.GEMM,
        summary="products of the pairs of matrices in two batches, each transposed before if asked for",
        tensors=_factors(3),
        presets=_BATCHES,
        parameters=_TRANSPOSES,
        reference=lambda arrays, parameters: (_product(arrays, parameters),),
    ),
    Operator(
        name="khatri_rao",
        category=Category.GEMM,
        summary="column-wise Kronecker product of two matrices",
        given=("lhs", "rhs"),
        tensors=_same_columns,
        presets=by_preset(
            _pair((6, 8), (5, 8)),
            _pair((32, 1024), (64, 1024)),
            _pair((128, 1024), (64, 1024)),
            _pair((10000, 10), (10, 10)),
        ),
        reference=_khatri_rao,
        flops=lambda _, outputs: prod(outputs[0]),
    ),
    _multiplied(
        name="gemm",
        category=Category.LINEAR_ALGEBRA,
        summary="alpha · lhs · rhs + beta · addend, each factor transposed before if asked for",
        tensors=lambda case: (*same_shape("lhs", "rhs")(case), TensorSpec("addend", _result_shape(case))),
        presets=_MATRICES,
        parameters={**_TRANSPOSES, "alpha": 0.5, "beta": 2.0},
        reference=lambda arrays, given: (
            given["alpha"] * _product(arrays, given) + given["beta"] * arrays[2],
        ),
    ),
    _multiplied(
        name="gemm2",
        category=Category.LINEAR_ALGEBRA,
        summary="alpha · lhs · rhs, each factor transposed before if asked for",
        tensors=_factors(None),
        presets=_MATRICES,
        parameters={**_TRANSPOSES, "alpha": 0.5},
        reference=lambda arrays, given: (given["alpha"] * _product(arrays, given),),
    ),
)


_SQUARES: Presets = by_preset(
    [sized(3, 8, 8), sized(12, 12)], sized(512, 512), sized(1024, 1024), sized(1000, 8, 8)
)
_MANY: Presets = {
    **_SQUARES,
    Preset.NORMAL: (sized(1024, 1024),),
    Preset.LARGE: (sized(4096, 4096),),
    Preset.SKEWED: (sized(10000, 8, 8),),
}


def _square(values: Values, scale: float = 1.0) -> Callable[[Case], tuple[TensorSpec, ...]]:
    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["data"]
        if shape[-1] != shape[-2]:
            raise ValueError(f"{shape} is not square")
        return (TensorSpec("data", shape, values, scale=scale),)

    return tensors


def _cubed(factor: float) -> Callable[[Case, Sequence[Shape]], int]:
    """Returns a function that counts ``factor`` · n³ operations for each matrix with n rows."""
    return lambda case, _: round(factor * case.shapes["data"][-1] * prod(case.shapes["data"]))


def _on_square(
    name: str,
    summary: str,
    reference: Callable[[NDArray[Any]], Any],
    values: Values = Values.NORMAL,
    cubes: float = 0.0,
    *,
    scale: float = 1.0,
    rtol: float = 1e-5,
) -> Operator:
    def computed(arrays: Arrays, _: Parameters) -> Arrays:
        found = reference(arrays[0])
        return found if isinstance(found, tuple) else (found,)

    return Operator(
        name=name,
        category=Category.LINEAR_ALGEBRA,
        summary=f"{summary}; for each matrix in the last two axes",
        tensors=_square(values, scale),
        presets=_SQUARES if cubes else _MANY,
        reference=computed,
        flops=_cubed(cubes),
        rtol=rtol,
    )


def _symmetric(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the symmetric part, so gradients of one triangle spread over both, as in all frameworks."""
    found: NDArray[Any] = (array + _swapped(array)) / 2
    return found


def _inverse_of_product(lower: NDArray[Any]) -> Any:
    lower = np.tril(lower)
    return np.linalg.inv(lower @ _swapped(lower))


def _lower_entries(array: NDArray[Any]) -> NDArray[Any]:
    rows, columns = np.tril_indices(array.shape[-1])
    return array[..., rows, columns]


def _triangle_order(entries: int) -> int:
    order = isqrt(2 * entries)
    if order * (order + 1) != 2 * entries:
        raise ValueError(f"no triangle has {entries} entries")
    return order


def _triangle(array: NDArray[Any]) -> Arrays:
    order = _triangle_order(array.shape[-1])
    found = np.zeros((*array.shape[:-1], order, order))
    rows, columns = np.tril_indices(order)
    found[..., rows, columns] = array
    return (found,)


def _entries(case: Case) -> tuple[TensorSpec, ...]:
    _triangle_order(case.shapes["data"][-1])
    return same_shape("data")(case)


def _lq(array: NDArray[Any]) -> Arrays:
    q, r = np.linalg.qr(_swapped(array))
    return (_swapped(q), _swapped(r))


def _triangular(case: Case) -> tuple[TensorSpec, ...]:
    triangle, data = case.shapes["triangle"], case.shapes["data"]
    if triangle[-1] != triangle[-2] or triangle[:-1] != data[:-1]:
        raise ValueError(f"the triangle {triangle} does not fit the matrix {data}")
    return (TensorSpec("triangle", triangle, Values.LOWER_TRIANGULAR), TensorSpec("data", data))


def _with_triangle(
    name: str, summary: str, reference: Callable[[NDArray[Any], NDArray[Any]], Any]
) -> Operator:
    def sizes(triangle: Shape, columns: int) -> Sizes:
        return {"triangle": triangle, "data": (*triangle[:-1], columns)}, {}

    return Operator(
        name=name,
        category=Category.LINEAR_ALGEBRA,
        summary=f"{summary}; for each pair of matrices in the last two axes",
        given=("triangle", "data"),
        tensors=_triangular,
        presets=by_preset(
            [sizes((3, 8, 8), 5), sizes((12, 12), 7)],
            sizes((1024, 1024), 1000),
            sizes((2048, 2048), 2048),
            *(sizes((1000, 8, 8), 4), sizes((1024, 1024), 1)),
        ),
        reference=lambda arrays, _: (reference(np.tril(arrays[0]), arrays[1]),),
        flops=lambda case, _: case.shapes["triangle"][-1] * prod(case.shapes["data"]),
        backward_flops=2.0,
    )


_DEFINITE = Values.POSITIVE_DEFINITE
_diagonals = partial(np.diagonal, axis1=-2, axis2=-1)

OPERATORS = (
    *_PRODUCTS,
    Operator(
        name="syrk",
        category=Category.LINEAR_ALGEBRA,
        summary="the product of a matrix and its transpose; for each matrix in the last two axes",
        tensors=same_shape("data"),
        presets=by_preset(
            [sized(3, 8, 5), sized(12, 7)],
            sized(1024, 1024),
            sized(2048, 2048),
            sized(1000, 10),
            sized(10, 10000),
        ),
        reference=lambda arrays, _: (arrays[0] @ _swapped(arrays[0]),),
        flops=lambda case, _: prod(case.shapes["data"]) * (case.shapes["data"][-2] + 1),
    ),
    _with_triangle("trmm", "product of a lower triangular matrix and another", np.matmul),
    _with_triangle(
        "trsm", "solution of a lower triangular system with many right-hand sides", np.linalg.solve
    ),
    _on_square(
        "cholesky",
        "lower Cholesky factor of a positive definite matrix",
        lambda array: np.linalg.cholesky(_symmetric(array)),
        _DEFINITE,
        1 / 3,
    ),
    _on_square(
        "cholesky_inverse",
        "inverse of a matrix of which the lower Cholesky factor is given",
        _inverse_of_product,
        Values.LOWER_TRIANGULAR,
        2 / 3,
    ),
    # the error of the product grows with the number of its factors
    _on_square(
        "det", "determinant of a matrix", np.linalg.det, _DEFINITE, 2 / 3, scale=_UNIT_DETERMINANT, rtol=1e-4
    ),
    _on_square(
        "slogdet", "sign and logarithm of the determinant of a matrix", np.linalg.slogdet, _DEFINITE, 2 / 3
    ),
    _on_square("inverse", "inverse of a matrix", np.linalg.inv, _DEFINITE, 2.0),
    _on_square(
        "eigh",
        "eigenvalues of a symmetric matrix; the eigenvectors, whose signs are free, are computed and dropped",
        lambda array: np.linalg.eigvalsh(_symmetric(array)),
        _DEFINITE,
        9.0,
        scale=1024.0,  # which keeps the eigenvalues apart, so that finite differences change no order
        rtol=1e-4,  # for the gradients: the eigenvectors of close eigenvalues are inexact
    ),
    _on_square(
        "lq",
        "LQ factorization of a square matrix, as Q and L, by Householder reflections, as in LAPACK",
        _lq,
        _DEFINITE,
        4 / 3,
    ),
    _on_square(
        "sum_log_diagonal",
        "sum of the logarithms of a matrix's diagonal",
        lambda array: np.log(_diagonals(array)).sum(-1),
        Values.POSITIVE,
    ),
    _on_square("extract_diagonal", "diagonal of a matrix, copied", _diagonals),
    _on_square("extract_triangle", "entries of the lower triangle of a matrix, row by row", _lower_entries),
    Operator(
        name="make_diagonal",
        category=Category.LINEAR_ALGEBRA,
        summary="matrix with a given diagonal; for each vector in the last axis",
        tensors=same_shape("data"),
        presets=by_preset([sized(3, 8), sized(12)], sized(1024), sized(4096), sized(10000, 8)),
        reference=lambda arrays, _: (arrays[0][..., None] * np.eye(arrays[0].shape[-1]),),
    ),
    Operator(
        name="make_triangle",
        category=Category.LINEAR_ALGEBRA,
        summary="lower triangular matrix of given entries, row by row; for each vector in the last axis",
        tensors=_entries,
        presets=by_preset(
            [sized(3, 10), sized(15)], sized(1024 * 1025 // 2), sized(4096 * 4097 // 2), sized(10000, 36)
        ),
        reference=lambda arrays, _: _triangle(arrays[0]),
    ),
)
