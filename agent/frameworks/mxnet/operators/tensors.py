"""Operators of tensors in MXNet: arithmetic, reductions, products, creation, indexing and rearrangement.

Arithmetic includes comparisons, which return 0 or 1 in the type of the inputs, and functions of each element.
Reductions include cumulative sums, sorting and searching; products include linear algebra. The custom
operator is a ``mx.operator.CustomOp``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Form, named, with_parameters
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import NOTHING, Case


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


_TRANSPOSES = {"transpose_a": "transpose_lhs", "transpose_b": "transpose_rhs"}


def _of_several(name: str) -> Form:
    return Form(name, lambda mx, case: partial(getattr(mx, name), num_arrays=len(case.shapes)))


def _created(
    name: str, *parameters: str, covers: tuple[str, ...] = (), of: Mapping[str, str] = NOTHING
) -> Form:
    """Returns the form of an operator without inputs; see ``with_parameters``."""
    return replace(with_parameters(name, *parameters, covers=covers, of=of), creates=True)


def _integers(mx: Any, case: Case) -> Any:
    given = {name: case[name] for name in ("low", "high", "shape")}
    return lambda dtype, **where: mx.random_randint(**given, dtype="int64", **where)


@cache
def _add_one() -> str:
    """Registers the custom operator and returns its name."""

    class AddOne(mxnet.operator.CustomOp):  # type: ignore[misc]
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] + 1)

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            self.assign(in_grad[0], req[0], out_grad[0])

    class Properties(mxnet.operator.CustomOpProp):  # type: ignore[misc]
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> AddOne:
            return AddOne()

    mxnet.operator.register("inferometer_add_one")(Properties)
    return "inferometer_add_one"


_DISTRIBUTIONS = ("uniform", "normal", "gamma", "exponential", "poisson")
_COUNTS = ("negative_binomial", "generalized_negative_binomial")


def _reset(mx: Any, *arrays: Any) -> Any:
    mx.reset_arrays(*arrays, num_arrays=len(arrays))
    return arrays


def _sequence(name: str) -> Form:
    return Form(name, lambda mx, _: partial(getattr(mx, name), use_sequence_length=True), whole=True)


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
    "clip": with_parameters("clip", of={"a_min": "low", "a_max": "high"}),
    "copy": named("identity"),
    "cast": with_parameters("cast", of={"dtype": "to"}, covers=("Cast", "amp_cast")),
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
    "moments": with_parameters("moments", "keepdims", of={"axes": "axis"}),
    "cumsum": with_parameters("cumsum", "axis"),
    "argmax": with_parameters("argmax", "axis", covers=("argmax_channel",)),
    "argmin": with_parameters("argmin", "axis"),
    "sort": with_parameters("sort", "axis"),
    "argsort": with_parameters("argsort", "axis", dtype="int64"),
    "topk": with_parameters("topk", "axis", "k", ret_typ="both", dtype="int64"),
    "dot": with_parameters("dot", of=_TRANSPOSES),
    "batch_dot": with_parameters("batch_dot", of=_TRANSPOSES),
    "khatri_rao": named("khatri_rao"),
    "gemm": with_parameters("linalg_gemm", "alpha", "beta", of=_TRANSPOSES),
    "gemm2": with_parameters("linalg_gemm2", "alpha", of=_TRANSPOSES),
    "syrk": named("linalg_syrk"),
    "trmm": named("linalg_trmm"),
    "trsm": named("linalg_trsm"),
    "cholesky": named("linalg_potrf"),
    "cholesky_inverse": named("linalg_potri"),
    "det": named("linalg_det"),
    "slogdet": named("linalg_slogdet"),
    "inverse": named("linalg_inverse"),
    "eigh": Form("linalg.syevd", lambda mx, _: lambda data: mx.linalg.syevd(data)[1]),
    "lq": named("linalg_gelqf"),
    "sum_log_diagonal": named("linalg_sumlogdiag"),
    "extract_diagonal": named("linalg_extractdiag"),
    "make_diagonal": named("linalg_makediag"),
    "extract_triangle": named("linalg_extracttrian"),
    "make_triangle": named("linalg_maketrian"),
    "zeros": _created("zeros", "shape"),
    "ones": _created("ones", "shape"),
    "full": _created("full", "shape", of={"val": "value"}),
    "zeros_like": named("zeros_like"),
    "ones_like": named("ones_like"),
    "reset_arrays": Form("reset_arrays", lambda mx, _: partial(_reset, mx), symbolic=False),
    "arange": _created("arange", "start", "stop", "step", "repeat"),
    "random_uniform": _created("random_uniform", "shape", "low", "high", covers=("uniform",)),
    "random_normal": _created("random_normal", "shape", "loc", "scale", covers=("normal",)),
    "random_gamma": _created("random_gamma", "shape", "alpha", "beta"),
    "random_exponential": _created("random_exponential", "shape", "lam"),
    "random_poisson": _created("random_poisson", "shape", "lam"),
    "random_negative_binomial": _created("random_negative_binomial", "shape", "k", "p"),
    "random_generalized_negative_binomial": _created(
        "random_generalized_negative_binomial", "shape", "mu", "alpha"
    ),
    **{
        name: with_parameters(name, of={"shape": "draws"})
        for name in (f"sample_{each}" for each in (*_DISTRIBUTIONS, *_COUNTS))
    },
    **{
        name: named(name)
        for name in (f"random_pdf_{each}" for each in (*_DISTRIBUTIONS, *_COUNTS, "dirichlet"))
    },
    "random_randint": Form("random_randint", _integers, creates=True),
    "multinomial": with_parameters("sample_multinomial", of={"shape": "draws"}),
    "shuffle": named("shuffle"),
    "custom_add_one": Form("Custom", lambda mx, _: partial(mx.Custom, op_type=_add_one())),
    "take": named("take"),
    "pick": with_parameters("pick", covers=("batch_take", "choose_element_0index"), axis=-1, keepdims=True),
    "gather_nd": named("gather_nd"),
    "scatter_nd": Form(
        "scatter_nd", lambda mx, case: partial(mx.scatter_nd, shape=(case["rows"], *case.shapes["data"][1:]))
    ),
    "index_copy": Form("contrib.index_copy", lambda mx, _: mx.contrib.index_copy),
    "one_hot": with_parameters("one_hot", "depth", dtype="int64"),
    "fill_element": Form(
        "fill_element_0index", lambda mx, _: mx.fill_element_0index, symbolic=False, whole=True
    ),
    "sequence_last": _sequence("SequenceLast"),
    "sequence_mask": _sequence("SequenceMask"),
    "sequence_reverse": _sequence("SequenceReverse"),
    "where": named("where"),
    # a symbol's shape may not depend on values
    "boolean_mask": Form("contrib.boolean_mask", lambda mx, _: mx.contrib.boolean_mask, symbolic=False),
    "slice": with_parameters("slice", "begin", "end", covers=("crop",)),
    "slice_axis": with_parameters("slice_axis", "axis", "begin", "end"),
    "slice_like": named("slice_like"),
    "ravel_index": with_parameters("ravel_multi_index", "shape"),
    "unravel_index": with_parameters("unravel_index", "shape"),
    "diag": named("diag"),
    "transpose": with_parameters("transpose", "axes"),
    "swapaxes": with_parameters("swapaxes", "dim1", "dim2", covers=("SwapAxis",)),
    "reshape": with_parameters("reshape", "shape", covers=("Reshape",)),
    "reshape_like": with_parameters("reshape_like"),
    "expand_dims": with_parameters("expand_dims", "axis"),
    "squeeze": with_parameters("squeeze", "axis"),
    "flip": with_parameters("flip", "axis", covers=("reverse",)),
    "tile": with_parameters("tile", "reps"),
    "repeat": with_parameters("repeat", "repeats", "axis"),
    "pad": with_parameters("pad", "pad_width", "mode", of={"constant_value": "value"}, covers=("Pad",)),
    "broadcast_to": with_parameters("broadcast_to", "shape"),
    "broadcast_axis": with_parameters("broadcast_axis", "axis", "size", covers=("broadcast_axes",)),
    "broadcast_like": with_parameters("broadcast_like"),
    "depth_to_space": with_parameters("depth_to_space", "block_size"),
    "space_to_depth": with_parameters("space_to_depth", "block_size"),
    "shape_array": with_parameters("shape_array"),
    "size_array": with_parameters("size_array"),
    "concat": with_parameters("concat", of={"dim": "axis"}, covers=("Concat",)),
    "stack": with_parameters("stack", "axis"),
    "split": with_parameters("split", "num_outputs", "axis", covers=("SliceChannel",)),
    "split_v2": with_parameters("split_v2", "axis", of={"indices_or_sections": "indices"}),
}


MISSING: Mapping[str, str] = {
    "fmod": "MXNet's remainders have the sign of the divisor, as modulo has",
    "logsumexp": "mx.nd and mx.sym have no logsumexp",
    "bernoulli": "MXNet has it for the arrays of mx.np only, not in mx.nd",
    "gather": "MXNet has pick, which takes one element of each row, and nothing for several",
    "tril": "mx.nd and mx.sym extract triangles as vectors and do not mask matrices",
}
