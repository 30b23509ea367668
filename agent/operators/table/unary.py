"""Element-wise functions of one tensor: signs, exponents, roots, trigonometry, special functions, rounding.

By convention each element of an output is one floating-point operation, regardless of its cost. The
values keep away from poles, kinks and jumps, so that finite differences can check the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Category,
    Operator,
    Preset,
    TensorSpec,
    Values,
    no_flops,
    one_flop_per_output,
)
from inferometer.agent.operators.table.arithmetic import element_wise, presets_of


def _unary(
    name: str,
    summary: str,
    function: Callable[[NDArray[Any]], Any],
    values: Values = Values.NORMAL,
    *,
    scale: float = 1.0,
    huge: bool = False,
) -> Operator:
    return Operator(
        name=name,
        category=Category.UNARY,
        summary=summary,
        given=("data",),
        tensors=element_wise(TensorSpec("data", (), values, scale=scale)),
        presets=presets_of("data", huge=huge),
        reference=lambda arrays, _: (function(arrays[0]),),
        flops=one_flop_per_output,
    )


def _steps(name: str, summary: str, function: Callable[[NDArray[Any]], Any]) -> Operator:
    # the gradient is 0 wherever there is one, which leaves nothing to check or to measure
    return replace(_unary(name, summary, function, scale=3.0), has_gradient=False)


def _special(
    name: str, summary: str, function: Callable[[float], float], values: Values = Values.NORMAL
) -> Operator:
    # the reference computes element by element, in about half a microsecond
    presets = {**presets_of("data"), Preset.LARGE: (({"data": (2048, 2048)}, {}),)}
    return replace(_unary(name, summary, _each(function), values), presets=presets)


def _each(function: Callable[[float], float]) -> Callable[[NDArray[Any]], Any]:
    """Returns a function of a tensor from one of a number."""
    return np.vectorize(function, otypes=[np.float64])


def _inverse_erf(value: float) -> float:
    return NormalDist().inv_cdf((value + 1) / 2) / math.sqrt(2)


def _half_away_from_zero(data: NDArray[Any]) -> Any:
    return np.trunc(data + np.copysign(0.5, data))


OPERATORS = (
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
        given=("data",),
        # no value is near a bound: none within 0.5 of 0, and none of a million reaches 6
        tensors=element_wise(TensorSpec("data", (), Values.NONZERO)),
        presets=presets_of("data"),
        parameters={"low": 0.0, "high": 6.0},
        reference=lambda arrays, given: (np.clip(arrays[0], given["low"], given["high"]),),
        flops=one_flop_per_output,
    ),
    replace(_unary("copy", "A copy", np.copy), flops=no_flops),
    Operator(
        name="cast",
        category=Category.UNARY,
        summary="data in another element type",
        given=("data",),
        tensors=element_wise(TensorSpec("data", ())),
        presets=presets_of("data"),
        parameters={"to": "float16"},
        reference=lambda arrays, given: (arrays[0].astype(str(given["to"])),),
        has_gradient=False,  # it is a cast back, and the reference has steps
    ),
)
