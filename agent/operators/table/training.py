"""Losses, and weight updates from a gradient.

A loss is the mean or the sum over all axes but the first: one value for each sample of the batch. Only one
floating-point operation is counted for each element of the predictions.

Updates are in place: the weight and the states change with each run. Their values stay finite over many runs:
each step is bounded, or grows no faster than the number of runs. Their floating-point operations are the
additions, multiplications, divisions and roots of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    NOTHING,
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    TensorSpec,
    Values,
    by_preset,
)
from inferometer.agent.operators.table.layers import log_softmax

_Function: TypeAlias = Callable[[NDArray[Any], NDArray[Any], Parameters], NDArray[Any]]

_PREDICTIONS = by_preset(
    ({"pred": (4, 10, 1)}, {}),
    ({"pred": (32, 1000, 1)}, {}),
    ({"pred": (512, 1000, 1)}, {}),
    ({"pred": (10000, 10, 1)}, {}),
    ({"pred": (1, 100000, 1)}, {}),
)


def _loss(
    name: str,
    summary: str,
    function: _Function,
    *,
    pred: Values = Values.NORMAL,
    label: Values = Values.NORMAL,
    parameters: Parameters = NOTHING,
    total: bool = False,
) -> Operator:
    """Returns a loss of predictions and labels of the same shape, from its element-wise function."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["pred"]
        return TensorSpec("pred", shape, pred), TensorSpec("label", shape, label, differentiable=False)

    def reference(arrays: Arrays, given: Parameters) -> Arrays:
        each = function(arrays[0], arrays[1], given)
        each = each.reshape(len(each), -1)
        return (each.sum(1) if total else each.mean(1),)

    return Operator(
        name=name,
        category=Category.LOSS,
        summary=summary,
        given=("pred",),
        tensors=tensors,
        presets=_PREDICTIONS,
        parameters=parameters,
        reference=reference,
        flops=lambda case, _: prod(case.shapes["pred"]),
    )


def _smooth(difference: NDArray[Any], beta: float) -> NDArray[Any]:
    size = np.abs(difference)
    return np.where(size < beta, size**2 / (2 * beta), size - beta / 2)


def _ctc_tensors(case: Case) -> tuple[TensorSpec, ...]:
    steps, batch, alphabet = case.shapes["pred"]
    length = int(case["label_length"])
    if 2 * length + 1 > steps:
        raise ValueError("label_length must be less than half of the steps")
    return (
        TensorSpec("pred", (steps, batch, alphabet)),
        TensorSpec("label", (batch, length), Values.INDICES, limit=alphabet - 1, differentiable=False),
    )


def _ctc(arrays: Arrays, _: Parameters) -> Arrays:
    """Returns the loss from the log forward variables of Graves et al. (2006), equations 6 and 7."""
    logs, label = log_softmax(arrays[0], 2), arrays[1]
    batch, blank = len(label), logs.shape[2] - 1
    extended = np.full((batch, 2 * label.shape[1] + 1), blank)
    extended[:, 1::2] = label
    rows = np.arange(batch)[:, None]
    skips = np.zeros(extended.shape, bool)
    skips[:, 2:] = (extended[:, 2:] != blank) & (extended[:, 2:] != extended[:, :-2])
    alpha = np.full(extended.shape, -np.inf)
    alpha[:, :2] = logs[0][rows, extended[:, :2]]
    for step in logs[1:]:
        before = np.pad(alpha, ((0, 0), (2, 0)), constant_values=-np.inf)
        moved = np.logaddexp(alpha, before[:, 1:-1])
        alpha = np.logaddexp(moved, np.where(skips, before[:, :-2], -np.inf)) + step[rows, extended]
    return (-np.logaddexp(alpha[:, -1], alpha[:, -2]),)


_LOSSES = (
    # the two with a kink have predictions that keep away from it
    _loss(
        "l1_loss",
        "|pred - label|",
        lambda pred, label, _: np.abs(pred - label),
        pred=Values.UNIT,
        label=Values.SIGNS,
    ),
    _loss("l2_loss", "(pred - label)² / 2", lambda pred, label, _: (pred - label) ** 2 / 2),
    _loss(
        "sigmoid_bce",
        "the binary cross-entropy of the sigmoid of pred",
        lambda pred, label, _: np.logaddexp(0, pred) - pred * label,
        label=Values.BOOLEAN,
    ),
    _loss(
        "softmax_ce",
        "the cross-entropy of the softmax of pred along axis 1, with a probability of each class as label",
        lambda pred, label, _: -(log_softmax(pred, 1) * label).sum(1),
        label=Values.PROBABILITY,
    ),
    _loss(
        "smooth_l1",
        "a parabola of |pred - label| below beta, and a line of slope 1 above",
        lambda pred, label, given: _smooth(pred - label, given["beta"]),
        parameters={"beta": 1.0},
    ),
    _loss(
        "huber_loss",
        "a parabola of |pred - label| below delta, and a line of slope delta above",
        lambda pred, label, given: given["delta"] * _smooth(pred - label, given["delta"]),
        parameters={"delta": 1.0},
    ),
    _loss(
        "hinge_loss",
        "max(margin - pred · label, 0) with labels -1 and 1",
        lambda pred, label, given: np.maximum(given["margin"] - pred * label, 0),
        pred=Values.ABOVE_ONE,
        label=Values.SIGNS,
        parameters={"margin": 1.0},
    ),
    _loss(
        "kl_div",
        "the sum of label · (log(label) - pred), where pred are logarithms of probabilities",
        lambda pred, label, _: label * (np.log(label) - pred),
        label=Values.PROBABILITY,
        total=True,
    ),
    Operator(
        name="ctc_loss",
        category=Category.LOSS,
        summary="temporal classification (CTC) of pred (steps, batch, alphabet), the last letter blank",
        given=("pred",),
        tensors=_ctc_tensors,
        presets=by_preset(
            ({"pred": (12, 3, 6)}, {"label_length": 4}),
            ({"pred": (200, 32, 32)}, {}),
            ({"pred": (800, 64, 32)}, {"label_length": 50}),
            ({"pred": (2000, 1, 10)}, {"label_length": 100}),
        ),
        parameters={"label_length": 20},
        reference=_ctc,
        # sums of logarithms over many steps
        rtol=1e-4,
    ),
)


EPSILON = 1e-8
TENSORS = 4
"""The number of weights in an update of several weights; each has its own gradient."""

_WEIGHTS = by_preset(
    ({"weight": (32, 32)}, {}),
    ({"weight": (1024, 1024)}, {}),
    ({"weight": (4096, 4096)}, {}),
    ({"weight": (10000, 1)}, {}),
    ({"weight": (10000, 100)}, {}),
)
_SGD: Parameters = {"lr": 0.01, "wd": 1e-4}
_MOMENTUM: Parameters = {**_SGD, "momentum": 0.9}
_ADAM: Parameters = {"lr": 0.001, "wd": 1e-4, "beta1": 0.9, "beta2": 0.999}


def _update(
    name: str,
    summary: str,
    reference: Callable[[Arrays, Parameters], Arrays],
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
        presets=_WEIGHTS,
        parameters=parameters,
        reference=reference,
        flops=lambda case, _: flops * tensors * prod(case.shapes["weight"]),
        has_gradient=False,
        in_place="weight",
        # MXNet keeps the rates in float32, in float64 too
        rtol=5e-5,
    )


def _sgd(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad = arrays
    return (weight - given["lr"] * (grad + given["wd"] * weight),)


def _multi_sgd(arrays: Arrays, given: Parameters) -> Arrays:
    return [_sgd(arrays[at : at + 2], given)[0] for at in range(0, len(arrays), 2)]


def _momentum(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, state = arrays
    return (weight - given["lr"] * (given["momentum"] * state + grad + given["wd"] * weight),)


def _nag(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, state = arrays
    grad = grad + given["wd"] * weight
    state = given["momentum"] * state + grad
    return (weight - given["lr"] * (grad + given["momentum"] * state),)


def _moments(grad: Any, mean: Any, var: Any, given: Parameters) -> tuple[Any, Any]:
    beta1, beta2 = given["beta1"], given["beta2"]
    return beta1 * mean + (1 - beta1) * grad, beta2 * var + (1 - beta2) * grad**2


def _adam(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, mean, var = arrays
    mean, var = _moments(grad + given["wd"] * weight, mean, var, given)
    return weight - given["lr"] * mean / (np.sqrt(var) + EPSILON), mean, var


def _adamw(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, mean, var = arrays
    mean, var = _moments(grad, mean, var, given)
    step = mean / (np.sqrt(var) + EPSILON) + given["wd"] * weight
    return weight - given["lr"] * step, mean, var


def _rmsprop(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, var = arrays
    grad = grad + given["wd"] * weight
    var = given["alpha"] * var + (1 - given["alpha"]) * grad**2
    return weight - given["lr"] * grad / (np.sqrt(var) + EPSILON), var


def _adagrad(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, total = arrays
    grad = grad + given["wd"] * weight
    total = total + grad**2
    return weight - given["lr"] * grad / (np.sqrt(total) + EPSILON), total


def _ftrl(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, z, n = arrays
    z = z + grad - (np.sqrt(n + grad**2) - np.sqrt(n)) * weight / given["lr"]
    n = n + grad**2
    step = (np.sign(z) * given["lamda1"] - z) / ((given["beta"] + np.sqrt(n)) / given["lr"] + given["wd"])
    return step * (np.abs(z) > given["lamda1"]), z, n


def _signsgd(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad = arrays
    return ((1 - given["lr"] * given["wd"]) * weight - given["lr"] * np.sign(grad),)


def _signum(arrays: Arrays, given: Parameters) -> Arrays:
    weight, grad, state = arrays
    rate = given["momentum"]
    state = rate * state - (1 - rate) * (grad + given["wd"] * weight)
    return weight + given["lr"] * np.sign(state), state


_STATE = (("state", Values.ZEROS),)
_MOMENTS = (("mean", Values.NORMAL), ("var", Values.POSITIVE))

UPDATES = (
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
        "weight - lr · mean / (√var + ε), after so many steps that the bias correction is 1",
        _adam,
        states=_MOMENTS,
        parameters=_ADAM,
        flops=14,
    ),
    _update(
        "adamw_update",
        "the update of Adam, with lr · wd · weight apart from the gradient",
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
        f"the update of stochastic gradient descent for {TENSORS} weights at once",
        _multi_sgd,
        flops=4,
        tensors=TENSORS,
    ),
)

OPERATORS = (*_LOSSES, *UPDATES)
