"""Activation functions.

Each element of an element-wise one counts as one floating-point operation; those of a softmax count as
five: the maximum, a subtraction, an exponential, the sum and a division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    NOTHING,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Sizes,
    TensorSpec,
    Values,
    one_flop_per_output,
    same_shape,
)

_Given: TypeAlias = Mapping[str, Any]
_Function: TypeAlias = Callable[[NDArray[Any], _Given], NDArray[Any]]

_PRESETS: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"data": (2, 3, 8, 8)}, {}),),
    Preset.NORMAL: (({"data": (32, 3, 256, 256)}, {}),),
    Preset.LARGE: (({"data": (128, 3, 256, 256)}, {}),),
    Preset.SKEWED: (({"data": (32, 3, 10000, 10)}, {}), ({"data": (10000, 1)}, {})),
}
_KINKED = 1e-4
"""The tolerance where central differences straddle the kinks at -3 and 3 of a few elements."""
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""The constants of Klambauer et al. (2017), "Self-Normalizing Neural Networks"."""


def _activation(
    name: str,
    summary: str,
    function: _Function,
    *,
    values: Values = Values.NORMAL,
    parameters: Parameters = NOTHING,
    flops: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Operator:
    return Operator(
        name=name,
        category=Category.ACTIVATION,
        summary=summary,
        given=("data",),
        tensors=same_shape("data", values=values),
        presets=_PRESETS,
        parameters=parameters,
        reference=lambda arrays, given: (function(arrays[0], given),),
        flops=one_flop_per_output
        if flops == 1
        else lambda _, outputs: flops * sum(prod(each) for each in outputs),
        rtol=rtol,
        atol=atol,
    )


def _prelu_tensors(case: Case) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("data", case.shapes["data"], Values.NONZERO),
        TensorSpec("alpha", (1,), Values.PROBABILITY),
    )


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    result: NDArray[Any] = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def log_softmax(x: NDArray[Any], axis: int) -> NDArray[Any]:
    """Returns the logarithm of the softmax along an axis."""
    x = x - x.max(axis, keepdims=True)
    result: NDArray[Any] = x - np.log(np.exp(x).sum(axis, keepdims=True))
    return result


def gelu(x: NDArray[Any]) -> NDArray[Any]:
    """Returns x Φ(x), with Φ the normal distribution (Hendrycks and Gimpel, 2016)."""
    scaled = (x / math.sqrt(2)).ravel().tolist()
    erf = np.fromiter(map(math.erf, scaled), np.float64, x.size).reshape(x.shape)
    result: NDArray[Any] = x * 0.5 * (1 + erf)
    return result


def _gelu_tanh(x: NDArray[Any], _: _Given) -> NDArray[Any]:
    result: NDArray[Any] = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


def _exponential(x: NDArray[Any]) -> NDArray[Any]:
    """Returns exp(x) - 1 for the part below 0, and 0 elsewhere."""
    result: NDArray[Any] = np.expm1(np.minimum(x, 0))
    return result


_AXIS: Parameters = {"axis": -1}

OPERATORS = (
    _activation("relu", "max(data, 0)", lambda x, _: np.maximum(x, 0), values=Values.NONZERO),
    _activation(
        "leaky_relu",
        "data where positive, else slope · data",
        lambda x, given: np.where(x > 0, x, given["slope"] * x),
        values=Values.NONZERO,
        parameters={"slope": 0.01},
    ),
    Operator(
        name="prelu",
        category=Category.ACTIVATION,
        summary="data where positive, else alpha · data with one alpha that is learnt",
        given=("data",),
        tensors=_prelu_tensors,
        presets=_PRESETS,
        reference=lambda arrays, _: (np.where(arrays[0] > 0, arrays[0], arrays[1] * arrays[0]),),
        flops=one_flop_per_output,
    ),
    _activation(
        "elu",
        "data where positive, else alpha · (exp(data) - 1)",
        lambda x, given: np.maximum(x, 0) + given["alpha"] * _exponential(x),
        parameters={"alpha": 1.0},
    ),
    _activation(
        "selu",
        "1.0507 · elu(data) with alpha 1.6733",
        lambda x, _: SELU_SCALE * (np.maximum(x, 0) + SELU_ALPHA * _exponential(x)),
        values=Values.NONZERO,
    ),
    _activation(
        "celu",
        "max(data, 0) + min(alpha · (exp(data / alpha) - 1), 0)",
        lambda x, given: np.maximum(x, 0) + given["alpha"] * _exponential(x / given["alpha"]),
        parameters={"alpha": 1.0},
    ),
    _activation("sigmoid", "1 / (1 + exp(-data))", lambda x, _: sigmoid(x)),
    _activation("log_sigmoid", "-log(1 + exp(-data))", lambda x, _: -np.logaddexp(0, -x)),
    _activation(
        "hard_sigmoid",
        "data / 6 + 1/2, within 0…1",
        lambda x, _: np.clip(x / 6 + 0.5, 0, 1),
        rtol=_KINKED,
    ),
    _activation("tanh", "the hyperbolic tangent", lambda x, _: np.tanh(x)),
    _activation("softsign", "data / (1 + |data|)", lambda x, _: x / (1 + np.abs(x)), values=Values.NONZERO),
    _activation("softplus", "log(1 + exp(data))", lambda x, _: np.logaddexp(0, x)),
    _activation("swish", "data · sigmoid(data), also called SiLU", lambda x, _: x * sigmoid(x)),
    _activation(
        "hard_swish",
        "data · hard_sigmoid(data)",
        lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
        rtol=_KINKED,
    ),
    _activation("mish", "data · tanh(softplus(data))", lambda x, _: x * np.tanh(np.logaddexp(0, x))),
    _activation("gelu", "data · Φ(data), exact", lambda x, _: gelu(x)),
    _activation("gelu_tanh", "data · Φ(data), with Φ by a hyperbolic tangent", _gelu_tanh),
    _activation(
        "softmax",
        "exp(data) over its sum along an axis",
        lambda x, given: np.exp(log_softmax(x, given["axis"])),
        parameters=_AXIS,
        flops=5,
    ),
    _activation(
        "log_softmax",
        "the logarithm of the softmax",
        lambda x, given: log_softmax(x, given["axis"]),
        parameters=_AXIS,
        flops=5,
        # a logarithm near 0 is a difference of numbers near 1
        atol=1e-5,
    ),
    _activation(
        "softmin",
        "the softmax of -data",
        lambda x, given: np.exp(log_softmax(-x, given["axis"])),
        parameters=_AXIS,
        flops=5,
    ),
)
