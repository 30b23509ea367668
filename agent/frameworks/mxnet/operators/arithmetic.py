"""Element-wise arithmetic, comparisons and functions, reductions, and matrix products in MXNet.

Comparisons return 0 or 1 in the type of the inputs. Reductions include cumulative sums, sorting and
searching; products include linear algebra.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Form, named, with_parameters
from inferometer.agent.operators.operator import Case


def _in_place(name: str, function: Callable[..., Any], covered: str) -> Form:
    # symbols have no operators in place
    return Form(f"NDArray.{name}", lambda _mx, _case: function, (covered,), symbolic=False)


# its own names are the table's
_SAME = (
    "abs sign exp expm1 log log2 log10 log1p sqrt rsqrt cbrt rcbrt square reciprocal sin cos tan arcsin "
    "arccos arctan sinh cosh arcsinh arccosh arctanh degrees radians erf erfinv gamma gammaln ceil floor "
    "rint round"
)


def _reduced(name: str, *covers: str) -> Form:
    return with_parameters(name, "axis", "keepdims", covers=covers)


def _transposes(case: Case) -> dict[str, Any]:
    return {"transpose_a": case["transpose_lhs"], "transpose_b": case["transpose_rhs"]}


def _linalg(name: str) -> Form:
    return named(f"linalg_{name}", f"_linalg_{name}")


def _of_several(name: str) -> Form:
    return Form(name, lambda mx, case: partial(getattr(mx, name), num_arrays=len(case.shapes)))


FORMS: Mapping[str, Form] = {
    "add": named("elemwise_add"),
    "subtract": named("elemwise_sub"),
    "multiply": named("elemwise_mul"),
    "divide": named("elemwise_div"),
    "modulo": named("broadcast_mod"),
    "power": named("broadcast_power"),
    "maximum": named("broadcast_maximum"),
    "minimum": named("broadcast_minimum"),
    "hypot": named("broadcast_hypot"),
    "broadcast_add": named("broadcast_add", "broadcast_plus"),
    "broadcast_subtract": named("broadcast_sub", "broadcast_minus"),
    "broadcast_multiply": named("broadcast_mul"),
    "broadcast_divide": named("broadcast_div"),
    "iadd": _in_place("__iadd__", operator.iadd, "broadcast_add"),
    "isub": _in_place("__isub__", operator.isub, "broadcast_sub"),
    "imul": _in_place("__imul__", operator.imul, "broadcast_mul"),
    "idiv": _in_place("__itruediv__", operator.itruediv, "broadcast_div"),
    "imod": _in_place("__imod__", operator.imod, "broadcast_mod"),
    "add_n": named("add_n", "ElementWiseSum"),
    "negative": named("negative"),
    "equal": named("broadcast_equal"),
    "not_equal": named("broadcast_not_equal"),
    "greater": named("broadcast_greater"),
    "greater_equal": named("broadcast_greater_equal"),
    "less": named("broadcast_lesser"),
    "less_equal": named("broadcast_lesser_equal"),
    "logical_and": named("broadcast_logical_and"),
    "logical_or": named("broadcast_logical_or"),
    "logical_xor": named("broadcast_logical_xor"),
    "logical_not": named("logical_not"),
    **{name: named(name) for name in _SAME.split()},
    "trunc": named("trunc", "fix"),
    "clip": Form("clip", lambda mx, case: lambda data: mx.clip(data, a_min=case["low"], a_max=case["high"])),
    "copy": named("identity"),
    "cast": Form(
        "cast", lambda mx, case: lambda data: mx.cast(data, dtype=case["to"]), ("cast", "Cast", "amp_cast")
    ),
    "amp_multicast": with_parameters("amp_multicast", num_outputs=2),
    # the result is no dense array, of which only mx.nd makes outputs
    "cast_storage": Form("cast_storage", lambda mx, _: partial(mx.cast_storage, stype="csr"), symbolic=False),
    "all_finite": named("all_finite"),
    "multi_all_finite": _of_several("multi_all_finite"),
    "multi_sum_sq": _of_several("multi_sum_sq"),
    "sum": _reduced("sum", "sum_axis"),
    **{name: _reduced(name) for name in ("mean", "nansum", "prod", "nanprod")},
    "max": _reduced("max", "max_axis"),
    "min": _reduced("min", "min_axis"),
    "norm": with_parameters("norm", "ord", "axis", "keepdims"),
    "moments": Form(
        "moments", lambda mx, case: partial(mx.moments, axes=case["axis"], keepdims=case["keepdims"])
    ),
    "cumsum": with_parameters("cumsum", "axis"),
    "argmax": with_parameters("argmax", "axis", covers=("argmax_channel",)),
    "argmin": with_parameters("argmin", "axis"),
    "sort": with_parameters("sort", "axis"),
    "argsort": Form("argsort", lambda mx, case: partial(mx.argsort, axis=case["axis"], dtype="int64")),
    "topk": Form(
        "topk",
        lambda mx, case: partial(mx.topk, axis=case["axis"], k=case["k"], ret_typ="both", dtype="int64"),
    ),
    "dot": Form("dot", lambda mx, case: partial(mx.dot, **_transposes(case))),
    "batch_dot": Form("batch_dot", lambda mx, case: partial(mx.batch_dot, **_transposes(case))),
    "khatri_rao": named("khatri_rao"),
    "gemm": Form(
        "linalg_gemm",
        lambda mx, case: partial(mx.linalg_gemm, alpha=case["alpha"], beta=case["beta"], **_transposes(case)),
    ),
    "gemm2": Form(
        "linalg_gemm2", lambda mx, case: partial(mx.linalg_gemm2, alpha=case["alpha"], **_transposes(case))
    ),
    "syrk": _linalg("syrk"),
    "trmm": _linalg("trmm"),
    "trsm": _linalg("trsm"),
    "cholesky": _linalg("potrf"),
    "cholesky_inverse": _linalg("potri"),
    "det": _linalg("det"),
    "slogdet": _linalg("slogdet"),
    "inverse": _linalg("inverse"),
    "eigh": Form("linalg.syevd", lambda mx, _: lambda data: mx.linalg.syevd(data)[1], ("_linalg_syevd",)),
    "lq": _linalg("gelqf"),
    "sum_log_diagonal": _linalg("sumlogdiag"),
    "extract_diagonal": _linalg("extractdiag"),
    "make_diagonal": _linalg("makediag"),
    "extract_triangle": _linalg("extracttrian"),
    "make_triangle": _linalg("maketrian"),
}


MISSING: Mapping[str, str] = {
    "fmod": "MXNet's remainders have the sign of the divisor, as modulo has",
    "logsumexp": "mx.nd and mx.sym have no logsumexp",
}
