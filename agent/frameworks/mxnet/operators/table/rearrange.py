"""What moves, joins and splits elements in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


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


FUNCTIONS: Mapping[str, Form] = {
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
MISSING: Mapping[str, str] = {}
