"""Element-wise arithmetic in MXNet."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Form


def named(name: str, *covers: str) -> Form:
    """Returns the form of an operator that takes the table's inputs as they are."""
    return Form(name, lambda mx, _: getattr(mx, name), (name, *covers))


def _in_place(name: str, function: Callable[..., Any], covered: str) -> Form:
    # symbols have no operators in place
    return Form(f"NDArray.{name}", lambda _mx, _case: function, (covered,), symbolic=False)


FUNCTIONS: Mapping[str, Form] = {
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
}
MISSING: Mapping[str, str] = {
    "fmod": "MXNet's remainders have the sign of the divisor, as modulo has",
}
