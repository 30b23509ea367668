"""Operators of tensors in ONNX: arithmetic, reductions, products, creation, indexing and rearrangement.

Arithmetic includes comparisons and functions of each element; ONNX's logical operators accept only booleans.
Reductions include cumulative sums, sorting and searching; products include linear algebra, partly through
ONNX Runtime's own operators. Sizes and bounds of created tensors are inputs, because ONNX Runtime folds
constant nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, pi
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.runner import (
    CONTRIBUTED,
    IN_PLACE,
    Form,
    Graph,
    node,
    single,
    with_numbers,
)
from inferometer.agent.operators.operator import Case, Category, operators


def _logical(kind: str, *inputs: str) -> Form:
    """Returns the form of a logical operator whose inputs are first cast to booleans."""
    boolean = onnx.TensorProto.BOOL
    casts = [node("Cast", name, output=f"{name}_is_true", to=boolean) for name in inputs]
    last = node(kind, *(f"{name}_is_true" for name in inputs))
    return Form(f"Cast {kind}", lambda _case, _dtype: Graph([*casts, last]))


def _times(factor: float, *before: onnx.NodeProto) -> Form:
    """Returns the form that multiplies ``last``, the output of ``before``, or else ``data`` by a factor."""

    def make(_: Case, dtype: np.dtype[Any]) -> Graph:
        last = node("Mul", "last" if before else "data", "factor")
        return Graph([*before, last], constants={"factor": np.array(factor, dtype)})

    return Form(" ".join([*(each.op_type for each in before), "Mul"]), make)


def _clip(case: Case, dtype: np.dtype[Any]) -> Graph:
    bounds = {name: np.array(case[name], dtype) for name in ("low", "high")}
    return Graph([node("Clip", "data", *bounds)], constants=bounds)


def _cast(case: Case, _: np.dtype[Any]) -> Graph:
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(case["to"]))
    return Graph([node("Cast", "data", to=to)])


_LOG = node("Log", "data", output="last")
_ROOT = node("Sqrt", "data", output="root")
_NAMES = {
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "erf": "Erf",
    "ceil": "Ceil",
    "floor": "Floor",
    "rint": "Round",
    "copy": "Identity",
}

_LOSSY = "ONNX has none; {} loses near 0 what it is to keep"
_NO_CUBE_ROOT = "ONNX has no cube root; Pow(x, 1/3) is NaN for negative numbers"


def _reduced(kind: str) -> Form:
    return Form(kind, lambda case, _: _reduction(kind, case))


def _reduction(kind: str, case: Case) -> Graph:
    return Graph(
        [node(kind, "data", "axes", keepdims=int(case["keepdims"]))],
        constants={"axes": np.atleast_1d(case["axis"]).tolist()},
    )


def _top(count: int, case: Case, outputs: tuple[str, ...], *, largest: bool) -> Graph:
    """Returns a graph that finds the top ``count`` elements; it outputs ``values``, ``indices`` or both."""
    made = onnx.helper.make_node(
        "TopK", ["data", "count"], ["values", "indices"], axis=case["axis"], largest=int(largest), sorted=1
    )
    return Graph([made], outputs, {"count": [count]})


def _sorted(output: str) -> Form:
    return Form(
        "TopK", lambda case, _: _top(case.shapes["data"][case["axis"]], case, (output,), largest=False)
    )


def _transposes(case: Case) -> dict[str, Any]:
    return {"transA": int(case["transpose_lhs"]), "transB": int(case["transpose_rhs"])}


def _product(case: Case, _: np.dtype[Any]) -> Graph:
    transposes = _transposes(case)
    if any(transposes.values()):
        return Graph([node("FusedMatMul", "lhs", "rhs", domain=CONTRIBUTED, **transposes)])
    return Graph([node("MatMul", "lhs", "rhs")])


def _gemm(case: Case, _: np.dtype[Any]) -> Graph:
    scales: dict[str, Any] = {"alpha": float(case["alpha"]), "beta": float(case["beta"])}
    return Graph([node("Gemm", "lhs", "rhs", "addend", **scales, **_transposes(case))])


def _gemm2(case: Case, _: np.dtype[Any]) -> Graph:
    alpha = float(case["alpha"])
    return Graph([node("FusedMatMul", "lhs", "rhs", domain=CONTRIBUTED, alpha=alpha, **_transposes(case))])


def _khatri_rao(case: Case, _: np.dtype[Any]) -> Graph:
    columns = case.shapes["lhs"][1]
    return Graph(
        [
            node("Einsum", "lhs", "rhs", output="products", equation="ik,jk->ijk"),
            node("Reshape", "products", "shape"),
        ],
        constants={"shape": [-1, columns]},
    )


_NO_FACTORIZATION = "ONNX has no factorizations of matrices"
_NO_TRIANGLE = "ONNX has Trilu, which masks a triangle, and nothing that computes with one"
_NO_DIAGONAL = "ONNX has no operator for the diagonal of a matrix"


def _constant(output: str, shape: str, value: float, dtype: np.dtype[Any]) -> onnx.NodeProto:
    tensor = onnx.numpy_helper.from_array(np.array([value], dtype))
    return node("ConstantOfShape", shape, output=output, value=tensor)


def _filled(value: float | None = None) -> Form:
    """Returns the form that fills a tensor; the value defaults to that of the case."""

    def make(case: Case, dtype: np.dtype[Any]) -> Graph:
        filling = case["value"] if value is None else value
        return Graph(
            [_constant("output", "shape", filling, dtype)], fed={"shape": np.array(case["shape"], np.int64)}
        )

    return Form("ConstantOfShape", make)


def _like(value: float) -> Form:
    def make(_: Case, dtype: np.dtype[Any]) -> Graph:
        nodes = [node("Shape", "data", output="shape"), _constant("output", "shape", value, dtype)]
        return Graph(nodes, any_shape=True)

    return Form("Shape ConstantOfShape", make)


def _range(case: Case, dtype: np.dtype[Any]) -> Graph:
    bounds = {name: np.array(case[name], dtype) for name in ("start", "stop", "step")}
    repeat = case["repeat"]
    if repeat == 1:
        return Graph([node("Range", *bounds)], fed=bounds)
    nodes = [
        node("Range", *bounds, output="once"),
        node("Unsqueeze", "once", "last_axis", output="column"),
        node("Expand", "column", "row", output="table"),
        node("Reshape", "table", "flat"),
    ]
    return Graph(nodes, constants={"last_axis": [1], "row": [1, repeat], "flat": [-1]}, fed=bounds)


def _random(kind: str, **attributes: str) -> Form:
    """Returns the form of a random operator whose attributes come from the table's parameters."""

    def make(case: Case, dtype: np.dtype[Any]) -> Graph:
        given = {name: case[parameter] for name, parameter in attributes.items()}
        element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return Graph([node(kind, shape=case["shape"], dtype=element, **given)])

    return Form(kind, make)


def _multinomial(case: Case, _: np.dtype[Any]) -> Graph:
    int64 = onnx.TensorProto.INT64
    last = node("Multinomial", "logarithms", sample_size=case["draws"], dtype=int64)
    return Graph([node("Log", "data", output="logarithms"), last])


_FEW = "ONNX draws uniform, normal, Bernoulli and multinomial numbers only"


def _gather_nd(_case: Case, _dtype: np.dtype[Any]) -> Graph:
    """Transposes the coordinates first: they are rows in ONNX and columns in the table."""
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
        constants={"axes": [1]},
    )


def _fill_element(_case: Case, _dtype: np.dtype[Any]) -> Graph:
    apart = [node("Unsqueeze", name, "axes", output=f"{name}_apart") for name in ("indices", "source")]
    scatter = node("ScatterElements", "data", "indices_apart", "source_apart", axis=1)
    return Graph([*apart, scatter], constants={"axes": [1]})


def _slice_like(case: Case, _: np.dtype[Any]) -> Graph:
    return Graph(
        [node("Shape", "like", output="end"), node("Slice", "data", "begin", "end")],
        constants={"begin": [0] * len(case.shapes["like"])},
    )


_ENDS = np.iinfo(np.int64)
_JOINED = ("data0", "data1", "data2")


def _with_shape(kind: str) -> Form:
    """Returns the form of an operator that takes the shape of the input ``like``."""
    nodes = [node("Shape", "like", output="shape"), node(kind, "data", "shape")]
    return Form(f"Shape {kind}", lambda _case, _dtype: Graph(nodes))


def _swap(case: Case, _: np.dtype[Any]) -> Graph:
    order = list(range(len(case.shapes["data"])))
    first, second = case["dim1"], case["dim2"]
    order[first], order[second] = order[second], order[first]
    return Graph([node("Transpose", "data", perm=order)])


def _repeat(case: Case, _: np.dtype[Any]) -> Graph:
    """Expands a new axis after the repeated axis, and merges the two axes."""
    shape, times = list(case.shapes["data"]), case["repeats"]
    axis = case["axis"] % len(shape)
    expanded = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    whole = [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]]
    numbers = {"axes": [axis + 1], "expanded": expanded, "whole": whole}
    return Graph(
        [
            node("Unsqueeze", "data", "axes", output="apart"),
            node("Expand", "apart", "expanded", output="repeated"),
            node("Reshape", "repeated", "whole"),
        ],
        constants=numbers,
    )


def _pad(case: Case, dtype: np.dtype[Any]) -> Graph:
    width = case["pad_width"]
    return Graph(
        [node("Pad", "data", "pads", "value", mode=case["mode"])],
        constants={"pads": [*width[::2], *width[1::2]], "value": np.array(case["value"], dtype)},
    )


def _broadcast_shape(case: Case) -> Mapping[str, list[int]]:
    shape = list(case.shapes["data"])
    shape[case["axis"]] = case["size"]
    return {"shape": shape}


def _split(case: Case, sizes: Sequence[int]) -> Graph:
    outputs = [f"output{number}" for number in range(len(sizes))]
    made = onnx.helper.make_node("Split", ["data", "sizes"], outputs, axis=case["axis"])
    return Graph([made], outputs, {"sizes": sizes})


def _split_evenly(case: Case, _: np.dtype[Any]) -> Graph:
    parts = case["num_outputs"]
    return _split(case, [case.shapes["data"][case["axis"]] // parts] * parts)


def _split_at(case: Case, _: np.dtype[Any]) -> Graph:
    return _split(case, np.diff((0, *case["indices"], case.shapes["data"][case["axis"]])).tolist())


def _stack(case: Case, _: np.dtype[Any]) -> Graph:
    """Stacks with Unsqueeze and Concat, because ONNX stacks only sequences."""
    apart = [node("Unsqueeze", name, "axes", output=f"{name}_apart") for name in _JOINED]
    joined = node("Concat", *(f"{name}_apart" for name in _JOINED), axis=case["axis"])
    return Graph([*apart, joined], constants={"axes": [case["axis"]]})


FORMS: Mapping[str, Form] = {
    "add": single("Add", "lhs", "rhs"),
    "subtract": single("Sub", "lhs", "rhs"),
    "multiply": single("Mul", "lhs", "rhs"),
    "divide": single("Div", "lhs", "rhs"),
    "fmod": single("Mod", "lhs", "rhs", fmod=1),
    "power": single("Pow", "lhs", "rhs"),
    "maximum": single("Max", "lhs", "rhs"),
    "minimum": single("Min", "lhs", "rhs"),
    "broadcast_add": single("Add", "lhs", "rhs"),
    "broadcast_subtract": single("Sub", "lhs", "rhs"),
    "broadcast_multiply": single("Mul", "lhs", "rhs"),
    "broadcast_divide": single("Div", "lhs", "rhs"),
    "add_n": single("Sum", "first", "second", "third"),
    "negative": single("Neg", "data"),
    "equal": single("Equal", "lhs", "rhs"),
    "not_equal": Form(
        "Equal Not",
        lambda _case, _dtype: Graph([node("Equal", "lhs", "rhs", output="equal"), node("Not", "equal")]),
    ),
    "greater": single("Greater", "lhs", "rhs"),
    "greater_equal": single("GreaterOrEqual", "lhs", "rhs"),
    "less": single("Less", "lhs", "rhs"),
    "less_equal": single("LessOrEqual", "lhs", "rhs"),
    "logical_and": _logical("And", "lhs", "rhs"),
    "logical_or": _logical("Or", "lhs", "rhs"),
    "logical_xor": _logical("Xor", "lhs", "rhs"),
    "logical_not": _logical("Not", "data"),
    **{name: single(kind, "data") for name, kind in _NAMES.items()},
    "log2": _times(1 / log(2), _LOG),
    "log10": _times(1 / log(10), _LOG),
    "rsqrt": Form("Sqrt Reciprocal", lambda _case, _dtype: Graph([_ROOT, node("Reciprocal", "root")])),
    "square": single("Mul", "data", "data"),
    "degrees": _times(180 / pi),
    "radians": _times(pi / 180),
    "trunc": Form(
        "Abs Floor Sign Mul",
        lambda _case, _dtype: Graph(
            [
                node("Abs", "data", output="size"),
                node("Floor", "size", output="whole"),
                node("Sign", "data", output="sign"),
                node("Mul", "whole", "sign"),
            ]
        ),
    ),
    "clip": Form("Clip", _clip),
    "cast": Form("Cast", _cast),
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "prod": _reduced("ReduceProd"),
    "max": _reduced("ReduceMax"),
    "min": _reduced("ReduceMin"),
    "norm": Form("ReduceL1 ReduceL2", lambda case, _: _reduction(f"ReduceL{case['ord']}", case)),
    "logsumexp": _reduced("ReduceLogSumExp"),
    "cumsum": with_numbers("CumSum", lambda case: {"axis": case["axis"]}),
    "argmax": single("ArgMax", "data", of={"axis": "axis"}, keepdims=0),
    "argmin": single("ArgMin", "data", of={"axis": "axis"}, keepdims=0),
    "sort": _sorted("values"),
    "argsort": _sorted("indices"),
    "topk": Form("TopK", lambda case, _: _top(case["k"], case, ("values", "indices"), largest=True)),
    "dot": Form("MatMul FusedMatMul", _product),
    "batch_dot": Form("MatMul FusedMatMul", _product),
    "khatri_rao": Form("Einsum Reshape", _khatri_rao),
    "gemm": Form("Gemm", _gemm),
    "gemm2": Form("FusedMatMul", _gemm2),
    "syrk": single("FusedMatMul", "data", "data", domain=CONTRIBUTED, transB=1),
    "det": single("Det", "data"),
    "inverse": single("Inverse", "data", domain=CONTRIBUTED),
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "full": _filled(),
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "arange": Form("Range Unsqueeze Expand Reshape", _range),
    "random_uniform": _random("RandomUniform", low="low", high="high"),
    "random_normal": _random("RandomNormal", mean="loc", scale="scale"),
    "bernoulli": single("Bernoulli", "data"),
    "multinomial": Form("Log Multinomial", _multinomial),
    "take": single("Gather", "data", "indices", axis=0),
    "pick": single("GatherElements", "data", "indices", axis=-1),
    "gather": single("GatherElements", "data", "indices", axis=-1),
    "gather_nd": Form("Transpose GatherND", _gather_nd),
    "scatter_nd": Form("Transpose ScatterND", _scatter_nd),
    "index_copy": Form("Unsqueeze ScatterND", _index_copy),
    "fill_element": Form("Unsqueeze ScatterElements", _fill_element),
    "sequence_reverse": single("ReverseSequence", "data", "lengths", time_axis=0, batch_axis=1),
    "one_hot": with_numbers(
        "OneHot", lambda case: {"depth": [case["depth"]], "values": [0, 1]}, data="indices"
    ),
    "where": single("Where", "mask", "data", "other"),
    "boolean_mask": single("Compress", "data", "mask", axis=0),
    "slice": with_numbers("Slice", lambda case: {"begin": case["begin"], "end": case["end"]}),
    "slice_axis": with_numbers(
        "Slice", lambda case: {"begin": [case["begin"]], "end": [case["end"]], "axes": [case["axis"]]}
    ),
    "slice_like": Form("Shape Slice", _slice_like),
    "tril": single("Trilu", "data", upper=0),
    "transpose": single("Transpose", "data", of={"perm": "axes"}),
    "swapaxes": Form("Transpose", _swap),
    "reshape": with_numbers("Reshape", lambda case: {"shape": case["shape"]}),
    "reshape_like": _with_shape("Reshape"),
    "expand_dims": with_numbers("Unsqueeze", lambda case: {"axes": [case["axis"]]}),
    "squeeze": with_numbers("Squeeze", lambda case: {"axes": [case["axis"]]}),
    "flip": with_numbers(
        "Slice", lambda case: {"begin": [-1], "end": [_ENDS.min], "axes": [case["axis"]], "steps": [-1]}
    ),
    "tile": with_numbers("Tile", lambda case: {"repeats": case["reps"]}),
    "repeat": Form("Unsqueeze Expand Reshape", _repeat),
    "pad": Form("Pad", _pad),
    "broadcast_to": with_numbers("Expand", lambda case: {"shape": case["shape"]}),
    "broadcast_axis": with_numbers("Expand", _broadcast_shape),
    "broadcast_like": _with_shape("Expand"),
    "depth_to_space": single("DepthToSpace", "data", of={"blocksize": "block_size"}, mode="DCR"),
    "space_to_depth": single("SpaceToDepth", "data", of={"blocksize": "block_size"}),
    # with the shape in the graph, ONNX Runtime makes constants of them
    "shape_array": Form("Shape", lambda *_: Graph([node("Shape", "data")], any_shape=True)),
    "size_array": Form("Size", lambda *_: Graph([node("Size", "data")], any_shape=True)),
    "concat": single("Concat", *_JOINED, of={"axis": "axis"}),
    "stack": Form("Unsqueeze Concat", _stack),
    "split": Form("Split", _split_evenly),
    "split_v2": Form("Split", _split_at),
}


MISSING: Mapping[str, str] = {
    "modulo": "ONNX's Mod of floating-point numbers has the sign of the dividend, as fmod has",
    "hypot": "ONNX has no hypot; the root of the sum of squares overflows where hypot does not",
    **dict.fromkeys(("iadd", "isub", "imul", "idiv", "imod"), IN_PLACE),
    "expm1": _LOSSY.format("Exp and Sub"),
    "log1p": _LOSSY.format("Add and Log"),
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "erfinv": "ONNX has no inverse of Erf",
    "gamma": "ONNX has no gamma function",
    "gammaln": "ONNX has no gamma function",
    "round": "ONNX's Round rounds halves to even, as rint does",
    "nansum": "ONNX has no reduction that leaves out what is not a number",
    "nanprod": "ONNX has no reduction that leaves out what is not a number",
    "moments": "ONNX has no variance",
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
    **{
        name: _FEW
        for name, each in operators().items()
        if each.category is Category.RANDOM and each.check and name not in FORMS
    },
    **dict.fromkeys(
        ("sample_uniform", "sample_normal"), "ONNX draws all numbers of a tensor from the same distribution"
    ),
    "shuffle": "ONNX has no random permutation",
    "reset_arrays": IN_PLACE,
    "custom_add_one": "ONNX Runtime takes custom operators from compiled libraries only, not from Python",
    "ravel_index": "ONNX has no operator that converts coordinates",
    "unravel_index": "ONNX has no operator that converts coordinates",
    "diag": "ONNX has no operator for the diagonal of a matrix",
}
