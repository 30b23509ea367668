"""The updates of weights by a gradient, in place: the weight and the states change with each run.

Their values stay finite over many runs: each step is bounded, or grows no faster than the number of runs.
The floating-point operations are the additions, multiplications, divisions and roots of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Sizes,
    TensorSpec,
    Values,
)

_Given: TypeAlias = Mapping[str, Any]

EPSILON = 1e-8
TENSORS = 4
"""How many weights an update of several has; each has a gradient of its own."""

_PRESETS: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"weight": (32, 32)}, {}),),
    Preset.NORMAL: (({"weight": (1024, 1024)}, {}),),
    Preset.LARGE: (({"weight": (4096, 4096)}, {}),),
    Preset.SKEWED: (({"weight": (10000, 1)}, {}), ({"weight": (10000, 100)}, {})),
}
_SGD: Parameters = {"lr": 0.01, "wd": 1e-4}
_MOMENTUM: Parameters = {**_SGD, "momentum": 0.9}
_ADAM: Parameters = {"lr": 0.001, "wd": 1e-4, "beta1": 0.9, "beta2": 0.999}


def _update(
    name: str,
    summary: str,
    reference: Callable[[Arrays, _Given], Arrays],
    *,
    states: Sequence[tuple[str, Values]] = (),
    parameters: Parameters = _SGD,
    flops: int,
    tensors: int = 1,
) -> Operator:
    def specs(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["weight"]
        ends = ["", *(f"_{number}" for number in range(1, tensors))]
        drawn = [("weight", Values.NORMAL), ("grad", Values.NORMAL), *states]
        return tuple(
            TensorSpec(name + end, shape, values, differentiable=False)
            for end in ends
            for name, values in drawn
        )

    return Operator(
        name=name,
        category=Category.OPTIMIZER,
        summary=summary,
        given=("weight",),
        tensors=specs,
        presets=_PRESETS,
        parameters=parameters,
        reference=reference,
        flops=lambda case, _: flops * tensors * prod(case.shapes["weight"]),
        has_gradient=False,
        in_place="weight",
        # MXNet keeps the rates in float32, in float64 too
        rtol=5e-5,
    )


def _sgd(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad = arrays
    return (weight - given["lr"] * (grad + given["wd"] * weight),)


def _multi_sgd(arrays: Arrays, given: _Given) -> Arrays:
    return [_sgd(arrays[at : at + 2], given)[0] for at in range(0, len(arrays), 2)]


def _momentum(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, state = arrays
    return (weight - given["lr"] * (given["momentum"] * state + grad + given["wd"] * weight),)


def _nag(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, state = arrays
    grad = grad + given["wd"] * weight
    state = given["momentum"] * state + grad
    return (weight - given["lr"] * (grad + given["momentum"] * state),)


def _moments(grad: Any, mean: Any, var: Any, given: _Given) -> tuple[Any, Any]:
    beta1, beta2 = given["beta1"], given["beta2"]
    return beta1 * mean + (1 - beta1) * grad, beta2 * var + (1 - beta2) * grad**2


def _adam(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, mean, var = arrays
    mean, var = _moments(grad + given["wd"] * weight, mean, var, given)
    return weight - given["lr"] * mean / (np.sqrt(var) + EPSILON), mean, var


def _adamw(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, mean, var = arrays
    mean, var = _moments(grad, mean, var, given)
    step = mean / (np.sqrt(var) + EPSILON) + given["wd"] * weight
    return weight - given["lr"] * step, mean, var


def _rmsprop(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, var = arrays
    grad = grad + given["wd"] * weight
    var = given["alpha"] * var + (1 - given["alpha"]) * grad**2
    return weight - given["lr"] * grad / (np.sqrt(var) + EPSILON), var


def _adagrad(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, total = arrays
    grad = grad + given["wd"] * weight
    total = total + grad**2
    return weight - given["lr"] * grad / (np.sqrt(total) + EPSILON), total


def _ftrl(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, z, n = arrays
    z = z + grad - (np.sqrt(n + grad**2) - np.sqrt(n)) * weight / given["lr"]
    n = n + grad**2
    step = (np.sign(z) * given["lamda1"] - z) / ((given["beta"] + np.sqrt(n)) / given["lr"] + given["wd"])
    return step * (np.abs(z) > given["lamda1"]), z, n


def _signsgd(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad = arrays
    return ((1 - given["lr"] * given["wd"]) * weight - given["lr"] * np.sign(grad),)


def _signum(arrays: Arrays, given: _Given) -> Arrays:
    weight, grad, state = arrays
    rate = given["momentum"]
    state = rate * state - (1 - rate) * (grad + given["wd"] * weight)
    return weight + given["lr"] * np.sign(state), state


_STATE = (("state", Values.ZEROS),)
_MOMENTS = (("mean", Values.NORMAL), ("var", Values.POSITIVE))

OPERATORS = (
    _update("sgd_update", "weight - lr · g, where g = grad + wd · weight", _sgd, flops=4),
    # Only the weight is an output of the two with momentum: PyTorch's state is a sum of gradients, and that
    # of MXNet has the factor -lr. Both begin with zeros.
    _update(
        "sgd_mom_update",
        "weight - lr · state, where state = momentum · state + g",
        _momentum,
        states=_STATE,
        parameters=_MOMENTUM,
        flops=6,
    ),
    _update(
        "nag_mom_update",
        "weight - lr · (g + momentum · state), where state = momentum · state + g (Nesterov)",
        _nag,
        states=_STATE,
        parameters=_MOMENTUM,
        flops=8,
    ),
    _update(
        "adam_update",
        "weight - lr · mean / (√var + ε), after so many steps that the correction of the bias is 1",
        _adam,
        states=_MOMENTS,
        parameters=_ADAM,
        flops=14,
    ),
    _update(
        "adamw_update",
        "that of Adam, with lr · wd · weight beside the gradient",
        _adamw,
        states=_MOMENTS,
        parameters=_ADAM,
        flops=14,
    ),
    # MXNet has the root of var + ε; with a var of 0.05 or more, the two differ by less than 1e-7
    _update(
        "rmsprop_update",
        "weight - lr · g / (√var + ε), where var is the moving mean of g²",
        _rmsprop,
        states=(("var", Values.POSITIVE),),
        parameters={"lr": 0.001, "wd": 1e-4, "alpha": 0.9},
        flops=11,
    ),
    _update(
        "adagrad_update",
        "weight - lr · g / (√total + ε), where total is the sum of g²",
        _adagrad,
        states=(("total", Values.POSITIVE),),
        flops=9,
    ),
    _update(
        "ftrl_update",
        "follow the regularised leader (McMahan et al., 2013)",
        _ftrl,
        states=(("z", Values.NORMAL), ("n", Values.POSITIVE)),
        parameters={"lr": 0.1, "wd": 1e-4, "lamda1": 0.01, "beta": 1.0},
        flops=18,
    ),
    _update("signsgd_update", "(1 - lr · wd) · weight - lr · sign(grad)", _signsgd, flops=4),
    _update(
        "signum_update",
        "weight + lr · sign(state), where state is the moving mean of -g",
        _signum,
        states=(("state", Values.NORMAL),),
        parameters=_MOMENTUM,
        flops=8,
    ),
    _update(
        "multi_sgd_update",
        f"that of stochastic gradient descent for {TENSORS} weights at once",
        _multi_sgd,
        flops=4,
        tensors=TENSORS,
    ),
)
