"""Indexing in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case


def _integers(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _gather_nd(_case: Case, _dtype: np.dtype[Any]) -> Graph:
    """ONNX has the coordinates in rows and the table in columns."""
    return Graph(
        [
            node("Transpose", "indices", output="coordinates", perm=[1, 0]),
            node("GatherND", "data", "coordinates"),
        ]
    )


def _scatter_nd(case: Case, dtype: np.dtype[Any]) -> Graph:
    return Graph(
        [
            node("Transpose", "indices", output="coordinates", perm=[1, 0]),
            node("ScatterND", "zeros", "coordinates", "data"),
        ],
        constants={"zeros": np.zeros((case["rows"], *case.shapes["data"][1:]), dtype)},
    )


def _index_copy(_case: Case, _dtype: np.dtype[Any]) -> Graph:
    return Graph(
        [
            node("Unsqueeze", "indices", "axes", output="coordinates"),
            node("ScatterND", "data", "coordinates", "source"),
        ],
        constants={"axes": _integers([1])},
    )


def _one_hot(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [node("OneHot", "indices", "depth", "values")],
        constants={"depth": _integers([case["depth"]]), "values": _integers([0, 1])},
    )


def _slice(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [node("Slice", "data", "begin", "end")],
        constants={"begin": _integers(case["begin"]), "end": _integers(case["end"])},
    )


def _slice_axis(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [node("Slice", "data", "begin", "end", "axes")],
        constants={name: _integers([case[name]]) for name in ("begin", "end")}
        | {"axes": _integers([case["axis"]])},
    )


def _slice_like(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [node("Shape", "like", output="end"), node("Slice", "data", "begin", "end")],
        constants={"begin": _integers([0] * len(case.shapes["like"]))},
    )


GRAPHS: Mapping[str, Form] = {
    "take": single("Gather", "data", "indices", axis=0),
    "pick": single("GatherElements", "data", "indices", axis=-1),
    "gather": single("GatherElements", "data", "indices", axis=-1),
    "gather_nd": Form("Transpose GatherND", _gather_nd),
    "scatter_nd": Form("Transpose ScatterND", _scatter_nd),
    "index_copy": Form("Unsqueeze ScatterND", _index_copy),
    "one_hot": Form("OneHot", _one_hot),
    "where": single("Where", "mask", "data", "other"),
    "boolean_mask": single("Compress", "data", "mask", axis=0),
    "slice": Form("Slice", _slice),
    "slice_axis": Form("Slice", _slice_axis),
    "slice_like": Form("Shape Slice", _slice_like),
    "tril": single("Trilu", "data", upper=0),
}
MISSING: Mapping[str, str] = {
    "ravel_index": "ONNX has no operator that converts coordinates",
    "unravel_index": "ONNX has no operator that converts coordinates",
    "diag": "ONNX has no operator for the diagonal of a matrix",
}
