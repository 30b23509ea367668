"""Reductions, cumulative sums, sorting and searching in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from inferometer.agent.frameworks.mxnet.operators.functions import Form


def _reduced(name: str, *covers: str) -> Form:
    return Form(
        name,
        lambda mx, case: partial(getattr(mx, name), axis=case["axis"], keepdims=case["keepdims"]),
        (name, *covers),
    )


FUNCTIONS: Mapping[str, Form] = {
    "sum": _reduced("sum", "sum_axis"),
    "mean": _reduced("mean"),
    "nansum": _reduced("nansum"),
    "prod": _reduced("prod"),
    "nanprod": _reduced("nanprod"),
    "max": _reduced("max", "max_axis"),
    "min": _reduced("min", "min_axis"),
    "norm": Form(
        "norm",
        lambda mx, case: partial(mx.norm, ord=case["ord"], axis=case["axis"], keepdims=case["keepdims"]),
    ),
    "moments": Form(
        "moments", lambda mx, case: partial(mx.moments, axes=case["axis"], keepdims=case["keepdims"])
    ),
    "cumsum": Form("cumsum", lambda mx, case: partial(mx.cumsum, axis=case["axis"])),
    "argmax": Form(
        "argmax", lambda mx, case: partial(mx.argmax, axis=case["axis"]), ("argmax", "argmax_channel")
    ),
    "argmin": Form("argmin", lambda mx, case: partial(mx.argmin, axis=case["axis"])),
    "sort": Form("sort", lambda mx, case: partial(mx.sort, axis=case["axis"])),
    "argsort": Form("argsort", lambda mx, case: partial(mx.argsort, axis=case["axis"], dtype="int64")),
    "topk": Form(
        "topk",
        lambda mx, case: partial(mx.topk, axis=case["axis"], k=case["k"], ret_typ="both", dtype="int64"),
    ),
}
MISSING: Mapping[str, str] = {
    "logsumexp": "mx.nd and mx.sym have no logsumexp",
}
