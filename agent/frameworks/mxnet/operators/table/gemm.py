"""Products of matrices and linear algebra in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


def _transposes(case: Case) -> dict[str, Any]:
    return {"transpose_a": case["transpose_lhs"], "transpose_b": case["transpose_rhs"]}


def _plain(name: str) -> Form:
    """The operator of a name, called without parameters."""
    return Form(name, lambda mx, _: getattr(mx, name), (name, f"_{name}"))


def _eigenvalues(mx: Any, _: Case) -> Function:
    return lambda data: mx.linalg.syevd(data)[1]


FUNCTIONS: Mapping[str, Form] = {
    "dot": Form("dot", lambda mx, case: partial(mx.dot, **_transposes(case))),
    "batch_dot": Form("batch_dot", lambda mx, case: partial(mx.batch_dot, **_transposes(case))),
    "khatri_rao": Form("khatri_rao", lambda mx, _: mx.khatri_rao),
    "gemm": Form(
        "linalg_gemm",
        lambda mx, case: partial(mx.linalg_gemm, alpha=case["alpha"], beta=case["beta"], **_transposes(case)),
    ),
    "gemm2": Form(
        "linalg_gemm2",
        lambda mx, case: partial(mx.linalg_gemm2, alpha=case["alpha"], **_transposes(case)),
    ),
    "syrk": _plain("linalg_syrk"),
    "trmm": _plain("linalg_trmm"),
    "trsm": _plain("linalg_trsm"),
    "cholesky": _plain("linalg_potrf"),
    "cholesky_inverse": _plain("linalg_potri"),
    "det": _plain("linalg_det"),
    "slogdet": _plain("linalg_slogdet"),
    "inverse": _plain("linalg_inverse"),
    "eigh": Form("linalg.syevd", _eigenvalues, ("_linalg_syevd",)),
    "lq": _plain("linalg_gelqf"),
    "sum_log_diagonal": _plain("linalg_sumlogdiag"),
    "extract_diagonal": _plain("linalg_extractdiag"),
    "make_diagonal": _plain("linalg_makediag"),
    "extract_triangle": _plain("linalg_extracttrian"),
    "make_triangle": _plain("linalg_maketrian"),
}
MISSING: Mapping[str, str] = {}
