"""Reductions, cumulative sums, sorting and searching in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node
from inferometer.agent.operators.operator import Case


def _reduction(kind: str, case: Case) -> Graph:
    return Graph(
        [node(kind, "data", "axes", keepdims=int(case["keepdims"]))],
        constants={"axes": np.atleast_1d(np.array(case["axis"], np.int64))},
    )


def _reduced(kind: str) -> Form:
    return Form(kind, lambda case, _: _reduction(kind, case))


def _found(kind: str) -> Form:
    return Form(kind, lambda case, _: Graph([node(kind, "data", axis=case["axis"], keepdims=0)]))


def _cumulative(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph([node("CumSum", "data", "axis")], constants={"axis": np.array(case["axis"], np.int64)})


def _top(count: int, case: Case, outputs: tuple[str, ...], *, largest: bool) -> Graph:
    """The ``count`` first elements in order; ``outputs`` are some of ``values`` and ``indices``."""
    made = onnx.helper.make_node(
        "TopK",
        ["data", "count"],
        ["values", "indices"],
        axis=case["axis"],
        largest=int(largest),
        sorted=1,
    )
    return Graph([made], outputs, {"count": np.array([count], np.int64)})


def _sorted(output: str) -> Form:
    return Form(
        "TopK",
        lambda case, _: _top(case.shapes["data"][case["axis"]], case, (output,), largest=False),
    )


GRAPHS: Mapping[str, Form] = {
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "prod": _reduced("ReduceProd"),
    "max": _reduced("ReduceMax"),
    "min": _reduced("ReduceMin"),
    "norm": Form("ReduceL1 ReduceL2", lambda case, _: _reduction(f"ReduceL{case['ord']}", case)),
    "logsumexp": _reduced("ReduceLogSumExp"),
    "cumsum": Form("CumSum", _cumulative),
    "argmax": _found("ArgMax"),
    "argmin": _found("ArgMin"),
    "sort": _sorted("values"),
    "argsort": _sorted("indices"),
    "topk": Form("TopK", lambda case, _: _top(case["k"], case, ("values", "indices"), largest=True)),
}
MISSING: Mapping[str, str] = {
    "nansum": "ONNX has no reduction that leaves out what is not a number",
    "nanprod": "ONNX has no reduction that leaves out what is not a number",
    "moments": "ONNX has no variance",
}
