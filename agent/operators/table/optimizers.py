"""Updates of weights from their gradients.

Updates are in place: the weight and the states change with each run. Their values stay finite over many runs:
each step is bounded, or grows no faster than the number of runs. Their floating-point operations are the
additions, multiplications, divisions and roots of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    TensorSpec,
    Values,
    by_preset,
)

EPSILON = 1e-8
_COUNTED = 1e-3
"""The tolerance of updates with 1 - βᵗ, in which the rounding of β to float32 in MXNet grows."""
TENSORS = 4
"""The number of weights in an update of several weights; each has its own gradient."""
_DECAY = 0.2
"""The weight decay, which is large enough that the check of one update finds if it is missing."""

_SHAPES = ((32, 32), (1024, 1024), (4096, 4096), (10000, 1), (10000, 100))
_WEIGHTS = by_preset(*(({"weight": shape}, {}) for shape in _SHAPES))
_SGD: Parameters = {"lr": 0.01, "wd": _DECAY}
_ADAM: Parameters = {"lr": 0.001, "wd": _DECAY, "beta1": 0.9, "beta2": 0.999}


def _update(
    name: str,
    summary: str,
    reference: Callable[[Arrays, Parameters], Arrays],
    *,
    states: Sequence[tuple[str, Values]] = (),
    parameters: Parameters = _SGD,
    flops: int,
    tensors: int = 1,
    rtol: float = 5e-5,
    master: bool = False,
    more: Sequence[TensorSpec] = (),
) -> Operator:
    """Returns an update with ``states`` for each of its weights, and the inputs ``more`` after all others.

    With a ``master``, the weight and its gradient have the type float16, and all other inputs float32.
    """
    halves = dict.fromkeys(("weight", "grad"), "float16") if master else {}

    def specs(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["weight"]
        ends = ["", *(f"_{number}" for number in range(1, tensors))]
        drawn = [("weight", Values.NORMAL), ("grad", Values.NORMAL), *states]
        return tuple(
            TensorSpec(
                name + end, shape, values, differentiable=False, dtype=halves.get(name, "float32" * master)
            )
            for end in ends
            for name, values in drawn
        ) + tuple(more)

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
        # MXNet keeps the rates in float32, in float64 too; the tolerance of float16 is 8192 times as great
        rtol=1e-6 if master else rtol,
    )


def _sgd(arrays: Arrays, given: Parameters, *, rule: str, master: bool, preloaded: bool) -> Arrays:
    """Returns the weights and, if they have them, their copies in float32; no state is an output.

    PyTorch's state is a sum of gradients, and that of MXNet has the factor -lr. Both begin with zeros.
    """
    count = 2 + (rule != "sgd") + master
    lrs, wds = arrays[-2:] if preloaded else ([given["lr"]] * TENSORS, [given["wd"]] * TENSORS)
    found: list[Any] = []
    for at in range((len(arrays) - 2 * preloaded) // count):
        weight, grad, *states = arrays[at * count : (at + 1) * count]
        weight, lr, wd = states[-1] if master else weight, lrs[at], wds[at]
        step = grad = grad + wd * weight
        if rule != "sgd":
            step = state = given["momentum"] * states[0] + grad
        if rule == "nag_mom":
            step = grad + given["momentum"] * state
        found.append(weight - lr * step)
    return found * (1 + master)


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


_SGD_RULES = {
    "sgd": ("weight - lr · g, where g = grad + wd · weight", 4),
    "sgd_mom": ("weight - lr · state, where state = momentum · state + g", 6),
    "nag_mom": ("weight - lr · (g + momentum · state), where state = momentum · state + g (Nesterov)", 8),
}
_SGD_KINDS = {"": "", "multi_": f"{TENSORS} weights at once: ", "preloaded_multi_": "rates in tensors: "}
_RATES = tuple(
    TensorSpec(name, (TENSORS,), Values.POSITIVE, differentiable=False, scale=scale, dtype="float32")
    for name, scale in (("lrs", 0.01), ("wds", _DECAY))
)
_STATE, _MASTER = ("state", Values.ZEROS), ("weight32", Values.NORMAL)
_MOMENTS = (("mean", Values.NORMAL), ("var", Values.POSITIVE))


def _sgd_update(kind: str, rule: str, master: bool) -> Operator:
    """Returns an update of one or several weights, each with a master copy in float32 if ``master``."""
    summary, flops = _SGD_RULES[rule]
    preloaded = kind.startswith("preloaded")
    momentum = {"momentum": 0.9} if rule != "sgd" else {}
    return _update(
        f"{kind}{'mp_' * master}{rule}_update",
        f"{_SGD_KINDS[kind]}{summary}{'; in float32' * master}",
        partial(_sgd, rule=rule, master=master, preloaded=preloaded),
        states=(*([_STATE] if momentum else []), *([_MASTER] if master else [])),
        parameters=momentum if preloaded else {**_SGD, **momentum},
        flops=flops,
        tensors=TENSORS if kind else 1,
        master=master,
        more=_RATES if preloaded else (),
    )


_SGD_UPDATES = tuple(
    _sgd_update(kind, rule, master)
    for kind in _SGD_KINDS
    for master in (False, True)
    for rule in _SGD_RULES
    if not (kind and rule == "nag_mom")  # which MXNet has for one weight only
)


def _lamb_direction(arrays: Arrays, given: Parameters) -> Arrays:
    """Returns the direction of You et al. (2020), "Large Batch Optimization for Deep Learning"."""
    weight, grad, mean, var = arrays
    mean, var = _moments(grad, mean, var, given)
    step = mean / (1 - given["beta1"] ** given["t"])
    step /= np.sqrt(var / (1 - given["beta2"] ** given["t"])) + EPSILON
    return step + given["wd"] * weight, mean, var


def _lamb_step(arrays: Arrays, given: Parameters) -> Arrays:
    weight, direction, r1, r2 = arrays
    return (weight - given["lr"] * r1 / r2 * direction,)


def _ftml(arrays: Arrays, given: Parameters) -> Arrays:
    """Returns the update of Zheng and Kwok (2017), "Follow the Moving Leader in Deep Learning"."""
    weight, grad, d, v, z = arrays
    grad = grad + given["wd"] * weight
    v = given["beta2"] * v + (1 - given["beta2"]) * grad**2
    root = np.sqrt(v / (1 - given["beta2"] ** given["t"]))
    new = (1 - given["beta1"] ** given["t"]) / given["lr"] * (root + EPSILON)
    z = given["beta1"] * z + (1 - given["beta1"]) * grad - (new - given["beta1"] * d) * weight
    return -z / new, new, v, z


def _rmsprop_centered(arrays: Arrays, given: Parameters) -> Arrays:
    """Returns the update of Graves (2013), "Generating Sequences With Recurrent Neural Networks"."""
    weight, grad, n, mean, delta = arrays
    grad = grad + given["wd"] * weight
    n = given["alpha"] * n + (1 - given["alpha"]) * grad**2
    mean = given["alpha"] * mean + (1 - given["alpha"]) * grad
    step = given["lr"] * grad / np.sqrt(n - mean**2 + given["epsilon"])
    delta = given["momentum"] * delta - step
    return weight + delta, n, mean, delta


def _lars(arrays: Arrays, given: Parameters) -> Arrays:
    """Returns the rates of You et al. (2017), "Large Batch Training of Convolutional Networks"."""
    lrs, weights, grads, wds = arrays
    norms = np.sqrt(weights)
    return (lrs * given["eta"] * norms / (np.sqrt(grads) + wds * norms + EPSILON),)


_LARS = Operator(
    name="multi_lars",
    category=Category.OPTIMIZER,
    summary="the learning rates of layers, from the sums of squares of weights and gradients, in float32",
    given=("lrs",),
    tensors=lambda case: tuple(
        TensorSpec(name, case.shapes["lrs"], Values.POSITIVE, differentiable=False, dtype="float32")
        for name in ("lrs", "weights_sum_sq", "grads_sum_sq", "wds")
    ),
    presets=by_preset(*(({"lrs": (count,)}, {}) for count in (32, 1024, 1 << 20, 1))),
    parameters={"eta": 0.001},
    reference=_lars,
    flops=lambda case, _: 8 * prod(case.shapes["lrs"]),
    has_gradient=False,
)

OPERATORS = (
    *_SGD_UPDATES,
    *(
        _update(name, summary, rule, states=_MOMENTS, parameters=_ADAM, flops=14)
        for name, rule, summary in (
            (
                "adam_update",
                _adam,
                "weight - lr · mean / (√var + ε), after so many steps that the bias correction is 1",
            ),
            ("adamw_update", _adamw, "the update of Adam, with lr · wd · weight apart from the gradient"),
        )
    ),
    # MXNet has the root of var + ε; with a var of 0.05 or more, the two differ by less than 1e-7
    _update(
        "rmsprop_update",
        "weight - lr · g / (√var + ε), where var is the moving mean of g²",
        _rmsprop,
        states=(("var", Values.POSITIVE),),
        parameters={"lr": 0.001, "wd": _DECAY, "alpha": 0.9},
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
        parameters={"lr": 0.1, "wd": _DECAY, "lamda1": 0.01, "beta": 1.0},
        flops=18,
    ),
    _update("signsgd_update", "(1 - lr · wd) · weight - lr · sign(grad)", _signsgd, flops=4),
    _update(
        "signum_update",
        "weight + lr · sign(state), where state is the moving mean of -g",
        _signum,
        states=(("state", Values.NORMAL),),
        parameters={**_SGD, "momentum": 0.9},
        flops=8,
    ),
    _update(
        "ftml_update",
        "follow the moving leader (Zheng and Kwok, 2017)",
        _ftml,
        states=(("d", Values.POSITIVE), ("v", Values.POSITIVE), ("z", Values.NORMAL)),
        parameters={"lr": 0.01, "wd": _DECAY, "beta1": 0.6, "beta2": 0.999, "t": 100},
        flops=20,
        rtol=_COUNTED,
    ),
    # with the same gradient in many runs, n - mean² tends to 0, and its rounding must not exceed ε
    _update(
        "rmspropalex_update",
        "weight + delta, where delta = momentum · delta - lr · g / √(n - mean² + ε) (Graves, 2013)",
        _rmsprop_centered,
        states=(("n", Values.POSITIVE), ("mean", Values.ZEROS), ("delta", Values.UNIT)),
        parameters={"lr": 0.001, "wd": _DECAY, "alpha": 0.95, "momentum": 0.9, "epsilon": 0.1},
        flops=16,
    ),
    _update(
        "lamb_update_phase1",
        "mean / (√var + ε) + wd · weight with the bias correction of step t (LAMB)",
        _lamb_direction,
        states=_MOMENTS,
        parameters={"wd": _DECAY, "beta1": 0.9, "beta2": 0.999, "t": 10},
        flops=16,
        rtol=_COUNTED,
    ),
    _update(
        "lamb_update_phase2",
        "weight - lr · r1 / r2 · grad, where r1 and r2 are the norms of weight and grad (LAMB)",
        _lamb_step,
        parameters={"lr": 0.001},
        flops=2,
        more=[TensorSpec(name, (1,), Values.POSITIVE, differentiable=False) for name in ("r1", "r2")],
    ),
    _LARS,
)
