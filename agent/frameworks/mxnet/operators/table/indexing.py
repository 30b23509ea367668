"""Indexing in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


def _scatter(mx: Any, case: Case) -> Function:
    return partial(mx.scatter_nd, shape=(case["rows"], *case.shapes["data"][1:]))


FUNCTIONS: Mapping[str, Form] = {
    "take": Form("take", lambda mx, _: mx.take),
    "pick": Form(
        "pick",
        lambda mx, _: partial(mx.pick, axis=-1, keepdims=True),
        ("pick", "batch_take", "choose_element_0index"),
    ),
    "gather_nd": Form("gather_nd", lambda mx, _: mx.gather_nd),
    "scatter_nd": Form("scatter_nd", _scatter),
    "index_copy": Form("contrib.index_copy", lambda mx, _: mx.contrib.index_copy, ("_contrib_index_copy",)),
    "one_hot": Form("one_hot", lambda mx, case: partial(mx.one_hot, depth=case["depth"], dtype="int64")),
    "where": Form("where", lambda mx, _: mx.where),
    # a symbol's shape may not depend on values
    "boolean_mask": Form(
        "contrib.boolean_mask",
        lambda mx, _: mx.contrib.boolean_mask,
        ("_contrib_boolean_mask",),
        symbolic=False,
    ),
    "slice": Form(
        "slice", lambda mx, case: partial(mx.slice, begin=case["begin"], end=case["end"]), ("slice", "crop")
    ),
    "slice_axis": Form(
        "slice_axis",
        lambda mx, case: partial(mx.slice_axis, axis=case["axis"], begin=case["begin"], end=case["end"]),
    ),
    "slice_like": Form("slice_like", lambda mx, _: mx.slice_like),
    "ravel_index": Form(
        "ravel_multi_index",
        lambda mx, case: partial(mx.ravel_multi_index, shape=case["shape"]),
        ("ravel_multi_index", "_ravel_multi_index"),
    ),
    "unravel_index": Form(
        "unravel_index",
        lambda mx, case: partial(mx.unravel_index, shape=case["shape"]),
        ("unravel_index", "_unravel_index"),
    ),
    "diag": Form("diag", lambda mx, _: mx.diag),
}
MISSING: Mapping[str, str] = {
    "gather": "MXNet has pick, which takes one element of each row, and nothing for several",
    "tril": "mx.nd and mx.sym extract triangles as vectors and do not mask matrices",
}
