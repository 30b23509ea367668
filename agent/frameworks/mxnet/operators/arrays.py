"""What makes, indexes, moves, joins and splits arrays in MXNet, and a custom operator.

The custom operator is a ``mx.operator.CustomOp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Form, Function, named
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case


def _filled(name: str, *parameters: str) -> Form:
    def make(mx: Any, case: Case) -> Any:
        given = [case[each] for each in ("shape", *parameters)]
        return lambda **where: getattr(mx, name)(*given, **where)

    return Form(name, make, creates=True)


def _range(mx: Any, case: Case) -> Any:
    given = {name: case[name] for name in ("start", "stop", "step", "repeat")}
    return lambda **where: mx.arange(**given, **where)


def _random(name: str, *parameters: str, aliases: tuple[str, ...] = ()) -> Form:
    def make(mx: Any, case: Case) -> Any:
        given = {each: case[each] for each in ("shape", *parameters)}
        return lambda **where: getattr(mx, name)(**given, **where)

    return Form(name, make, (name, *aliases), creates=True)


def _integers(mx: Any, case: Case) -> Any:
    given = {name: case[name] for name in ("low", "high", "shape")}
    return lambda dtype, **where: mx.random_randint(**given, dtype="int64", **where)


@cache
def _add_one() -> str:
    """Registers the custom operator, and returns its name."""

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


def _custom(mx: Any, case: Case) -> Any:
    name = _add_one()
    return lambda data: mx.Custom(data, op_type=name)


def _scatter(mx: Any, case: Case) -> Function:
    return partial(mx.scatter_nd, shape=(case["rows"], *case.shapes["data"][1:]))


def _with(name: str, *parameters: str, covers: tuple[str, ...] = ()) -> Form:
    """The operator of a name with parameters of the same names."""
    return Form(
        name,
        lambda mx, case: partial(getattr(mx, name), **{each: case[each] for each in parameters}),
        (name, *covers),
    )


def _listed(name: str, axis: str, *covers: str) -> Form:
    """An operator of any number of tensors; ``axis`` is what it calls the axis."""
    return Form(name, lambda mx, case: partial(getattr(mx, name), **{axis: case["axis"]}), (name, *covers))


def _pad(mx: Any, case: Case) -> Function:
    return partial(mx.pad, pad_width=case["pad_width"], mode=case["mode"], constant_value=case["value"])


FORMS: Mapping[str, Form] = {
    "zeros": _filled("zeros"),
    "ones": _filled("ones"),
    "full": _filled("full", "value"),
    "zeros_like": named("zeros_like"),
    "ones_like": named("ones_like"),
    "arange": Form("arange", _range, creates=True),
    "random_uniform": _random("random_uniform", "low", "high", aliases=("uniform",)),
    "random_normal": _random("random_normal", "loc", "scale", aliases=("normal",)),
    "random_gamma": _random("random_gamma", "alpha", "beta"),
    "random_exponential": _random("random_exponential", "lam"),
    "random_poisson": _random("random_poisson", "lam"),
    "random_negative_binomial": _random("random_negative_binomial", "k", "p"),
    "random_randint": Form("random_randint", _integers, creates=True),
    "multinomial": Form(
        "sample_multinomial",
        lambda mx, case: lambda data: mx.sample_multinomial(data, shape=case["draws"]),
    ),
    "shuffle": named("shuffle"),
    "custom_add_one": Form("Custom", _custom),
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
    "transpose": _with("transpose", "axes"),
    "swapaxes": _with("swapaxes", "dim1", "dim2", covers=("SwapAxis",)),
    "reshape": _with("reshape", "shape", covers=("Reshape",)),
    "reshape_like": _with("reshape_like"),
    "expand_dims": _with("expand_dims", "axis"),
    "squeeze": _with("squeeze", "axis"),
    "flip": _with("flip", "axis", covers=("reverse",)),
    "tile": _with("tile", "reps"),
    "repeat": _with("repeat", "repeats", "axis"),
    "pad": Form("pad", _pad, ("pad", "Pad")),
    "broadcast_to": _with("broadcast_to", "shape"),
    "broadcast_axis": _with("broadcast_axis", "axis", "size", covers=("broadcast_axes",)),
    "broadcast_like": _with("broadcast_like"),
    "depth_to_space": _with("depth_to_space", "block_size"),
    "space_to_depth": _with("space_to_depth", "block_size"),
    "shape_array": _with("shape_array"),
    "size_array": _with("size_array"),
    "concat": _listed("concat", "dim", "Concat"),
    "stack": _listed("stack", "axis"),
    "split": _with("split", "num_outputs", "axis", covers=("SliceChannel",)),
    "split_v2": Form(
        "split_v2",
        lambda mx, case: partial(mx.split_v2, indices_or_sections=case["indices"], axis=case["axis"]),
        ("_split_v2",),
    ),
}


MISSING: Mapping[str, str] = {
    "bernoulli": "MXNet has it for the arrays of mx.np only, not in mx.nd",
    "gather": "MXNet has pick, which takes one element of each row, and nothing for several",
    "tril": "mx.nd and mx.sym extract triangles as vectors and do not mask matrices",
}
