"""Element-wise arithmetic: of two tensors, of two that broadcast, in place, of three, and the negative.

By convention each element of an output is one floating-point operation, regardless of its cost. The
values keep away from ties and jumps, so that finite differences can check the gradients of each element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from inferometer.agent.operators.operator import (
    Case,
    Category,
    Operator,
    Preset,
    Shape,
    Sizes,
    TensorSpec,
    Values,
    one_flop_per_output,
)

_HUGE: Shape = (2**16, 2**15 + 1)
_SHAPES: Mapping[Preset, tuple[Shape, ...]] = {
    Preset.SMALL: ((32, 32),),
    Preset.NORMAL: ((1024, 1024),),
    Preset.LARGE: ((4096, 4096),),
    Preset.SKEWED: ((10000, 10), (10000, 1)),
}
_BROADCAST: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"lhs": (32, 32), "rhs": (32, 1)}, {}), ({"lhs": (4, 1, 8), "rhs": (6, 1)}, {})),
    Preset.NORMAL: (({"lhs": (1024, 1024), "rhs": (1024, 1)}, {}),),
    Preset.LARGE: (({"lhs": (4096, 4096), "rhs": (4096, 1)}, {}),),
    Preset.SKEWED: (
        ({"lhs": (10000, 100), "rhs": (10000, 1)}, {}),
        ({"lhs": (10000, 100), "rhs": (1, 100)}, {}),
    ),
}

_LHS, _RHS = TensorSpec("lhs", ()), TensorSpec("rhs", ())
_APART = (
    TensorSpec("lhs", (), Values.NONZERO),
    TensorSpec("rhs", (), Values.UNIT, scale=0.4),
)
"""No element of ``lhs`` is within 0.1 of that of ``rhs``, and half of them are greater."""
_ONE_FOLD = (
    TensorSpec("lhs", (), Values.SIGNS, scale=2.0),
    TensorSpec("rhs", (), Values.ABOVE_ONE, scale=0.99),
)
"""``lhs`` over ``rhs`` is ±1.01…1.84: of both signs, and not near an integer, where the remainder jumps."""
_SIGNS = (TensorSpec("lhs", (), Values.SIGNS), TensorSpec("rhs", (), Values.SIGNS))


def element_wise(*specs: TensorSpec) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an operator whose inputs share one shape; the specs define their values."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        found = tuple(replace(spec, shape=case.shapes[spec.name]) for spec in specs)
        for spec in found:
            if spec.shape != found[0].shape:
                raise ValueError(
                    f"{found[0].name} has the shape {found[0].shape}, and {spec.name} {spec.shape}; "
                    "give both, and equal ones"
                )
        return found

    return tensors


def broadcast(*specs: TensorSpec) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an operator whose inputs broadcast by NumPy's rules."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        np.broadcast_shapes(*(case.shapes[spec.name] for spec in specs))
        return tuple(replace(spec, shape=case.shapes[spec.name]) for spec in specs)

    return tensors


Tensors: TypeAlias = Callable[..., Callable[[Case], tuple[TensorSpec, ...]]]
"""One of the two above."""


def presets_of(*names: str, huge: bool = False) -> Mapping[Preset, tuple[Sizes, ...]]:
    """Returns the sizes of an element-wise operator with inputs of these names."""
    shapes = {**_SHAPES, **({Preset.HUGE: (_HUGE,)} if huge else {})}
    return {
        preset: tuple((dict.fromkeys(names, shape), {}) for shape in each) for preset, each in shapes.items()
    }


def _binary(
    name: str,
    summary: str,
    function: Callable[..., Any],
    specs: tuple[TensorSpec, TensorSpec] = (_LHS, _RHS),
    *,
    tensors: Tensors = broadcast,
    huge: bool = False,
) -> Operator:
    return Operator(
        name=name,
        category=Category.ARITHMETIC,
        summary=summary,
        given=("lhs", "rhs"),
        tensors=tensors(*specs),
        presets=presets_of("lhs", "rhs", huge=huge),
        reference=lambda arrays, _: (function(*arrays),),
        flops=one_flop_per_output,
    )


def _broadcast(operator: Operator) -> Operator:
    specs = operator.tensors(operator.cases(Preset.SMALL)[0])
    return replace(
        operator,
        name=f"broadcast_{operator.name}",
        summary=f"{operator.summary}, of shapes that differ",
        tensors=broadcast(*specs),
        presets=_BROADCAST,
    )


def _in_place(name: str, operator: Operator, specs: tuple[TensorSpec, TensorSpec] = _SIGNS) -> Operator:
    # of ±1 a sum grows by at most 1 a run, a product and a quotient stay ±1; a remainder is its own remainder
    return replace(
        operator,
        name=name,
        summary=f"lhs = {operator.summary}",
        tensors=element_wise(*specs),
        presets=presets_of("lhs", "rhs"),
        has_gradient=False,
        in_place="lhs",
    )


_ADD = _binary("add", "lhs + rhs", np.add, tensors=element_wise, huge=True)
_SUBTRACT = _binary("subtract", "lhs - rhs", np.subtract, tensors=element_wise)
_MULTIPLY = _binary("multiply", "lhs * rhs", np.multiply, tensors=element_wise, huge=True)
_DIVIDE = _binary(
    "divide", "lhs / rhs", np.divide, (_LHS, replace(_RHS, values=Values.NONZERO)), tensors=element_wise
)
_MODULO = _binary("modulo", "lhs - rhs * floor(lhs / rhs)", np.mod, _ONE_FOLD)

OPERATORS = (
    _ADD,
    _SUBTRACT,
    _MULTIPLY,
    _DIVIDE,
    _MODULO,
    _binary("fmod", "lhs - rhs * trunc(lhs / rhs)", np.fmod, _ONE_FOLD),
    _binary("power", "lhs ** rhs", np.power, (replace(_LHS, values=Values.POSITIVE), _RHS)),
    _binary("maximum", "The greater of lhs and rhs", np.maximum, _APART, huge=True),
    _binary("minimum", "The lesser of lhs and rhs", np.minimum, _APART),
    _binary("hypot", "sqrt(lhs² + rhs²)", np.hypot, (replace(_LHS, values=Values.NONZERO), _RHS)),
    *(_broadcast(each) for each in (_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE)),
    _in_place("iadd", _ADD),
    _in_place("isub", _SUBTRACT),
    _in_place("imul", _MULTIPLY),
    _in_place("idiv", _DIVIDE),
    _in_place("imod", _MODULO, _ONE_FOLD),
    Operator(
        name="add_n",
        category=Category.ARITHMETIC,
        summary="first + second + third",
        given=("first", "second", "third"),
        tensors=element_wise(*(TensorSpec(name, ()) for name in ("first", "second", "third"))),
        presets=presets_of("first", "second", "third"),
        reference=lambda arrays, _: (np.sum(arrays, axis=0),),
        flops=lambda case, outputs: 2 * one_flop_per_output(case, outputs),
    ),
    Operator(
        name="negative",
        category=Category.ARITHMETIC,
        summary="-data",
        given=("data",),
        tensors=element_wise(TensorSpec("data", ())),
        presets=presets_of("data", huge=True),
        reference=lambda arrays, _: (np.negative(*arrays),),
        flops=one_flop_per_output,
    ),
)
