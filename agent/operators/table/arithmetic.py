"""Element-wise arithmetic, functions of one tensor, comparisons and logic.

Arithmetic operators take two tensors (also broadcast or in place) or three, and include negation; functions
are signs, exponents, roots, trigonometry, special functions and rounding. By convention, each element of an
output counts as one floating-point operation, regardless of its cost. The values avoid ties, poles, kinks and
jumps, so finite differences can check the gradients of each element. The inputs of comparisons and logic are
0 and 1, so each comparison has ties, and each logical operator gets all four pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Case,
    Category,
    Operator,
    Preset,
    Presets,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    no_flops,
    one_flop_per_output,
    sized,
)

_HUGE: Shape = (2**16, 2**15 + 1)
_SHAPES: Mapping[Preset, tuple[Shape, ...]] = {
    Preset.SMALL: ((32, 32),),
    Preset.NORMAL: ((1024, 1024),),
    Preset.LARGE: ((4096, 4096),),
    Preset.SKEWED: ((10000, 10), (10000, 1)),
}
_BROADCAST: Presets = by_preset(
    [({"lhs": (32, 32), "rhs": (32, 1)}, {}), ({"lhs": (4, 1, 8), "rhs": (6, 1)}, {})],
    ({"lhs": (1024, 1024), "rhs": (1024, 1)}, {}),
    ({"lhs": (4096, 4096), "rhs": (4096, 1)}, {}),
    ({"lhs": (10000, 100), "rhs": (10000, 1)}, {}),
    ({"lhs": (10000, 100), "rhs": (1, 100)}, {}),
)

_LHS, _RHS = TensorSpec("lhs", ()), TensorSpec("rhs", ())
_APART = (TensorSpec("lhs", (), Values.NONZERO), TensorSpec("rhs", (), Values.UNIT, scale=0.4))
"""Each element of ``lhs`` differs from its counterpart in ``rhs`` by more than 0.1; half are greater."""
_ONE_FOLD = (
    TensorSpec("lhs", (), Values.SIGNS, scale=2.0),
    TensorSpec("rhs", (), Values.ABOVE_ONE, scale=0.99),
)
"""``lhs`` / ``rhs`` is ±1.01…1.84: of both signs, and not near an integer, where the remainder jumps."""
_SIGNS = (TensorSpec("lhs", (), Values.SIGNS), TensorSpec("rhs", (), Values.SIGNS))
_BOOLEANS = (TensorSpec("lhs", (), Values.BOOLEAN), TensorSpec("rhs", (), Values.BOOLEAN))


def element_wise(*specs: TensorSpec) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an operator whose inputs share one shape; the specs define their values."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        found = tuple(replace(spec, shape=case.shapes[spec.name]) for spec in specs)
        for spec in found:
            if spec.shape != found[0].shape:
                raise ValueError(
                    f"{found[0].name} has the shape {found[0].shape}, but {spec.name} has {spec.shape}; "
                    "give both the same shape"
                )
        return found

    return tensors


def broadcast(*specs: TensorSpec) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an operator whose inputs broadcast according to NumPy's rules."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        np.broadcast_shapes(*(case.shapes[spec.name] for spec in specs))
        return tuple(replace(spec, shape=case.shapes[spec.name]) for spec in specs)

    return tensors


Tensors: TypeAlias = Callable[..., Callable[[Case], tuple[TensorSpec, ...]]]
"""``element_wise`` or ``broadcast``."""


def presets_of(*names: str, huge: bool = False) -> Presets:
    """Returns the sizes of an element-wise operator with inputs of these names."""
    shapes = {**_SHAPES, **({Preset.HUGE: (_HUGE,)} if huge else {})}
    return {
        preset: tuple((dict.fromkeys(names, shape), {}) for shape in each) for preset, each in shapes.items()
    }


def _operator(
    category: Category,
    name: str,
    summary: str,
    function: Callable[..., Any],
    specs: tuple[TensorSpec, ...],
    *,
    tensors: Tensors = element_wise,
    huge: bool = False,
    has_gradient: bool = True,
) -> Operator:
    """Returns an operator from a function of its inputs, whose values the specs define."""
    names = tuple(spec.name for spec in specs)
    return Operator(
        name=name,
        category=category,
        summary=summary,
        given=names,
        tensors=tensors(*specs),
        presets=presets_of(*names, huge=huge),
        reference=lambda arrays, _: (function(*arrays),),
        flops=one_flop_per_output,
        has_gradient=has_gradient,
    )


_binary = partial(_operator, Category.ARITHMETIC, specs=(_LHS, _RHS), tensors=broadcast)


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
    "divide", "lhs / rhs", np.divide, specs=(_LHS, replace(_RHS, values=Values.NONZERO)), tensors=element_wise
)
_MODULO = _binary("modulo", "lhs - rhs * floor(lhs / rhs)", np.mod, specs=_ONE_FOLD)

_ARITHMETIC = (
    _ADD,
    _SUBTRACT,
    _MULTIPLY,
    _DIVIDE,
    _MODULO,
    _binary("fmod", "lhs - rhs * trunc(lhs / rhs)", np.fmod, specs=_ONE_FOLD),
    _binary("power", "lhs ** rhs", np.power, specs=(replace(_LHS, values=Values.POSITIVE), _RHS)),
    _binary("maximum", "The greater of lhs and rhs", np.maximum, specs=_APART, huge=True),
    _binary("minimum", "The lesser of lhs and rhs", np.minimum, specs=_APART),
    _binary("hypot", "sqrt(lhs² + rhs²)", np.hypot, specs=(replace(_LHS, values=Values.NONZERO), _RHS)),
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
    _operator(Category.ARITHMETIC, "negative", "-data", np.negative, (TensorSpec("data", ()),), huge=True),
)


def _unary(
    name: str,
    summary: str,
    function: Callable[[NDArray[Any]], Any],
    values: Values = Values.NORMAL,
    *,
    scale: float = 1.0,
    huge: bool = False,
) -> Operator:
    spec = TensorSpec("data", (), values, scale=scale)
    return _operator(Category.UNARY, name, summary, function, (spec,), huge=huge)


def _steps(name: str, summary: str, function: Callable[[NDArray[Any]], Any]) -> Operator:
    # the gradient is 0 wherever there is one, which leaves nothing to check or to measure
    return replace(_unary(name, summary, function, scale=3.0), has_gradient=False)


def _special(
    name: str, summary: str, function: Callable[[float], float], values: Values = Values.NORMAL
) -> Operator:
    # the reference computes element by element, in about half a microsecond
    presets = {**presets_of("data"), Preset.LARGE: (sized(2048, 2048),)}
    of_tensors = np.vectorize(function, otypes=[np.float64])
    return replace(_unary(name, summary, of_tensors, values), presets=presets)


def _inverse_erf(value: float) -> float:
    return NormalDist().inv_cdf((value + 1) / 2) / math.sqrt(2)


def _half_away_from_zero(data: NDArray[Any]) -> Any:
    return np.trunc(data + np.copysign(0.5, data))


_FUNCTIONS = (
    _unary("abs", "|data|", np.abs, Values.NONZERO, huge=True),
    replace(_unary("sign", "-1, 0 or 1", np.sign, Values.NONZERO), has_gradient=False),
    _unary("exp", "e ** data", np.exp),
    _unary("expm1", "e ** data - 1, precise near 0", np.expm1),
    _unary("log", "The natural logarithm", np.log, Values.POSITIVE),
    _unary("log2", "The logarithm to the base 2", np.log2, Values.POSITIVE),
    _unary("log10", "The logarithm to the base 10", np.log10, Values.POSITIVE),
    _unary("log1p", "log(1 + data), precise near 0", np.log1p, Values.UNIT),
    _unary("sqrt", "The square root", np.sqrt, Values.POSITIVE),
    _unary("rsqrt", "1 / sqrt(data)", lambda data: 1 / np.sqrt(data), Values.POSITIVE),
    _unary("cbrt", "The cube root", np.cbrt, Values.NONZERO),
    _unary("rcbrt", "1 / cbrt(data)", lambda data: 1 / np.cbrt(data), Values.NONZERO),
    _unary("square", "data²", np.square),
    _unary("reciprocal", "1 / data", lambda data: 1 / data, Values.NONZERO),
    _unary("sin", "The sine", np.sin),
    _unary("cos", "The cosine", np.cos),
    _unary("tan", "The tangent", np.tan, Values.UNIT),
    _unary("arcsin", "The inverse sine", np.arcsin, Values.UNIT),
    _unary("arccos", "The inverse cosine", np.arccos, Values.UNIT),
    _unary("arctan", "The inverse tangent", np.arctan),
    _unary("sinh", "The hyperbolic sine", np.sinh),
    _unary("cosh", "The hyperbolic cosine", np.cosh),
    _unary("arcsinh", "The inverse hyperbolic sine", np.arcsinh),
    _unary("arccosh", "The inverse hyperbolic cosine", np.arccosh, Values.ABOVE_ONE),
    _unary("arctanh", "The inverse hyperbolic tangent", np.arctanh, Values.UNIT),
    _unary("degrees", "Radians in degrees", np.degrees),
    _unary("radians", "Degrees in radians", np.radians, scale=90.0),
    _special("erf", "The error function", math.erf),
    _special("erfinv", "The inverse of the error function", _inverse_erf, Values.UNIT),
    _special("gamma", "The gamma function", math.gamma, Values.POSITIVE),
    _special("gammaln", "The logarithm of the gamma function", math.lgamma, Values.POSITIVE),
    _steps("ceil", "The least integer that is not less", np.ceil),
    _steps("floor", "The greatest integer that is not greater", np.floor),
    # frameworks differ on halves, of which the drawn values have none
    _steps("rint", "The nearest integer", np.rint),
    _steps("round", "The nearest integer; halves are rounded away from 0", _half_away_from_zero),
    _steps("trunc", "The integer part", np.trunc),
    Operator(
        name="clip",
        category=Category.UNARY,
        summary="data, but not below low or above high",
        # no value is near a bound: none within 0.5 of 0, and none of a million reaches 6
        tensors=element_wise(TensorSpec("data", (), Values.NONZERO)),
        presets=presets_of("data"),
        parameters={"low": 0.0, "high": 6.0},
        reference=lambda arrays, given: (np.clip(arrays[0], given["low"], given["high"]),),
        flops=one_flop_per_output,
    ),
    replace(_unary("copy", "A copy", np.copy), flops=no_flops),
    Operator(
        name="amp_multicast",
        category=Category.UNARY,
        summary="Two tensors cast to the wider of their types, which is the same here",
        given=("data0", "data1"),
        tensors=element_wise(TensorSpec("data0", ()), TensorSpec("data1", ())),
        presets=presets_of("data0", "data1"),
        reference=lambda arrays, _: arrays,
    ),
    Operator(
        name="cast_storage",
        category=Category.UNARY,
        summary="A matrix of zeros and ones, converted to compressed sparse rows",
        tensors=element_wise(TensorSpec("data", (), Values.BOOLEAN)),
        presets=presets_of("data"),
        reference=lambda arrays, _: arrays,
        has_gradient=False,
    ),
    Operator(
        name="cast",
        category=Category.UNARY,
        summary="data in another element type",
        tensors=element_wise(TensorSpec("data", ())),
        presets=presets_of("data"),
        parameters={"to": "float16"},
        reference=lambda arrays, given: (arrays[0].astype(str(given["to"])),),
        has_gradient=False,  # it is a cast back, and the reference has steps
    ),
)


_compared = partial(_operator, specs=_BOOLEANS, tensors=broadcast, has_gradient=False)

OPERATORS = (
    *_ARITHMETIC,
    *_FUNCTIONS,
    _compared(Category.COMPARISON, "equal", "lhs == rhs", np.equal),
    _compared(Category.COMPARISON, "not_equal", "lhs != rhs", np.not_equal),
    _compared(Category.COMPARISON, "greater", "lhs > rhs", np.greater),
    _compared(Category.COMPARISON, "greater_equal", "lhs >= rhs", np.greater_equal),
    _compared(Category.COMPARISON, "less", "lhs < rhs", np.less),
    _compared(Category.COMPARISON, "less_equal", "lhs <= rhs", np.less_equal),
    _compared(Category.LOGICAL, "logical_and", "lhs and rhs", np.logical_and),
    _compared(Category.LOGICAL, "logical_or", "lhs or rhs", np.logical_or),
    _compared(Category.LOGICAL, "logical_xor", "Either lhs or rhs", np.logical_xor),
    _compared(
        Category.LOGICAL,
        "logical_not",
        "not data",
        np.logical_not,
        specs=(TensorSpec("data", (), Values.BOOLEAN),),
    ),
)
