"""Element-wise comparisons and logic of two tensors, and the logical not.

The values are 0 and 1, so that each comparison has ties, and each logical operator all four pairs. By
convention each element of an output is one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from inferometer.agent.operators.operator import Category, Operator, TensorSpec, Values, one_flop_per_output
from inferometer.agent.operators.table.arithmetic import broadcast, presets_of

_LHS, _RHS = TensorSpec("lhs", (), Values.BOOLEAN), TensorSpec("rhs", (), Values.BOOLEAN)


def _operator(
    name: str,
    summary: str,
    function: Callable[..., Any],
    category: Category = Category.COMPARISON,
    specs: tuple[TensorSpec, ...] = (_LHS, _RHS),
) -> Operator:
    names = tuple(spec.name for spec in specs)
    return Operator(
        name=name,
        category=category,
        summary=summary,
        given=names,
        tensors=broadcast(*specs),
        presets=presets_of(*names),
        reference=lambda arrays, _: (function(*arrays),),
        flops=one_flop_per_output,
        has_gradient=False,
    )


OPERATORS = (
    _operator("equal", "lhs == rhs", np.equal),
    _operator("not_equal", "lhs != rhs", np.not_equal),
    _operator("greater", "lhs > rhs", np.greater),
    _operator("greater_equal", "lhs >= rhs", np.greater_equal),
    _operator("less", "lhs < rhs", np.less),
    _operator("less_equal", "lhs <= rhs", np.less_equal),
    _operator("logical_and", "lhs and rhs", np.logical_and, Category.LOGICAL),
    _operator("logical_or", "lhs or rhs", np.logical_or, Category.LOGICAL),
    _operator("logical_xor", "Either lhs or rhs", np.logical_xor, Category.LOGICAL),
    _operator(
        "logical_not",
        "not data",
        np.logical_not,
        Category.LOGICAL,
        (TensorSpec("data", (), Values.BOOLEAN),),
    ),
)
