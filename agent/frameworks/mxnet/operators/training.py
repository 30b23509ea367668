"""Losses and weight updates in MXNet.

A loss runs as a sequence of MXNet operators or as a Gluon block. ``mx.sym`` has the updates too, but a symbol
cannot replace its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import sqrt
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Block, Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.training import EPSILON


def _loss(
    api: str,
    each: Callable[[Any, Case, Any, Any], Any],
    name: str,
    options: Callable[[Case], Mapping[str, Any]] = lambda _: {},
    *,
    over: str = "mean",
) -> Form:
    """Returns the form of a loss from its element-wise function and from Gluon's block ``name``."""

    def make(mx: Any, case: Case) -> Any:
        return lambda pred, label: getattr(mx, over)(each(mx, case, pred, label), axis=0, exclude=True)

    block = Block(f"gluon.loss.{name}", lambda case: getattr(mxnet.gluon.loss, name)(**options(case)))
    return Form(f"{api} {over}", make, tuple(api.split()), block)


def _bce(mx: Any, _: Case, pred: Any, label: Any) -> Any:
    # as Gluon's block: relu(pred) - pred · label + log(1 + exp(-|pred|)), which does not overflow
    softrelu = mx.Activation(-mx.abs(pred), act_type="softrelu")
    return mx.relu(pred) - pred * label + softrelu


def _smooth(mx: Any, beta: float, pred: Any, label: Any) -> Any:
    return mx.smooth_l1(pred - label, scalar=1 / sqrt(beta))


def _update(name: str, *, kept: int = 0, fixed: Mapping[str, Any] | None = None, **renamed: str) -> Form:
    """Returns the form of a weight update.

    Args:
        name: The operator.
        kept: The number of states, counted from the last, that are outputs.
        fixed: Attributes that do not depend on the case.
        renamed: The table's name for each attribute except ``lr`` and ``wd``.
    """

    def make(mx: Any, case: Case) -> Function:
        update = getattr(mx, name)
        attributes = {ours: case[theirs] for ours, theirs in {"lr": "lr", "wd": "wd", **renamed}.items()}
        attributes |= fixed or {}

        def one(weight: Any, grad: Any, *states: Any) -> Any:
            return [update(weight, grad, *states, out=weight, **attributes), *states[len(states) - kept :]]

        return one

    return Form(name, make, symbolic=False)


@cache
def _one(context: Any) -> Any:
    """Returns the gradient's factor of 1 as an array, from which the operator reads it."""
    return mxnet.nd.ones((1,), context)


def _adamw(mx: Any, case: Case) -> Function:
    names = ("lr", "beta1", "beta2")
    attributes = {name: case[name] for name in names} | {"eta": 1.0, "epsilon": EPSILON}
    # its decay is not multiplied by lr
    decay = case["lr"] * case["wd"]

    def update(weight: Any, grad: Any, mean: Any, var: Any) -> Any:
        mx.contrib.adamw_update(
            weight, grad, mean, var, _one(weight.context), out=weight, wd=decay, **attributes
        )
        return weight, mean, var

    return update


def _multi_sgd(mx: Any, case: Case) -> Callable[..., Any]:
    def update(*arrays: Any) -> Any:
        weights = list(arrays[::2])
        count = len(weights)
        rates, decays = (case["lr"],) * count, (case["wd"],) * count
        mx.multi_sgd_update(*arrays, out=weights, num_weights=count, lrs=rates, wds=decays)
        return weights

    return update


FORMS: Mapping[str, Form] = {
    "l1_loss": _loss("elemwise_sub abs", lambda mx, _, pred, label: mx.abs(pred - label), "L1Loss"),
    "l2_loss": _loss(
        "elemwise_sub square _mul_scalar", lambda mx, _, pred, label: mx.square(pred - label) * 0.5, "L2Loss"
    ),
    "sigmoid_bce": _loss("relu elemwise_mul abs Activation", _bce, "SigmoidBCELoss"),
    "softmax_ce": _loss(
        "log_softmax elemwise_mul sum",
        lambda mx, _, pred, label: -mx.sum(mx.log_softmax(pred, axis=1) * label, axis=1),
        "SoftmaxCELoss",
        lambda _: {"axis": 1, "sparse_label": False},
    ),
    "smooth_l1": _loss(
        "elemwise_sub smooth_l1",
        lambda mx, case, pred, label: _smooth(mx, case["beta"], pred, label),
        "HuberLoss",
        lambda case: {"rho": case["beta"]},
    ),
    "huber_loss": _loss(
        "elemwise_sub smooth_l1 _mul_scalar",
        lambda mx, case, pred, label: _smooth(mx, case["delta"], pred, label) * case["delta"],
        "HuberLoss",
        lambda case: {"rho": case["delta"], "weight": case["delta"]},
    ),
    "hinge_loss": _loss(
        "elemwise_mul _rminus_scalar relu",
        lambda mx, case, pred, label: mx.relu(case["margin"] - pred * label),
        "HingeLoss",
        lambda case: {"margin": case["margin"]},
    ),
    "kl_div": _loss(
        "log elemwise_sub elemwise_mul",
        lambda mx, _, pred, label: label * (mx.log(label) - pred),
        "KLDivLoss",
        over="sum",
    ),
    "ctc_loss": Form(
        "CTCLoss",
        lambda mx, _: partial(mx.CTCLoss, blank_label="last"),
        ("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"),
        Block("gluon.loss.CTCLoss", lambda _: mxnet.gluon.loss.CTCLoss("TNC", "NT")),
    ),
    "sgd_update": _update("sgd_update"),
    "sgd_mom_update": _update("sgd_mom_update", momentum="momentum"),
    "nag_mom_update": _update("nag_mom_update", momentum="momentum"),
    "adam_update": _update("adam_update", kept=2, fixed={"epsilon": EPSILON}, beta1="beta1", beta2="beta2"),
    "adamw_update": Form("contrib.adamw_update", _adamw, ("_adamw_update",), symbolic=False),
    "rmsprop_update": _update("rmsprop_update", kept=1, fixed={"epsilon": EPSILON}, gamma1="alpha"),
    "ftrl_update": _update("ftrl_update", kept=2, lamda1="lamda1", beta="beta"),
    "signsgd_update": _update("signsgd_update"),
    "signum_update": _update("signum_update", kept=1, momentum="momentum"),
    "multi_sgd_update": Form("multi_sgd_update", _multi_sgd, symbolic=False),
}


MISSING: Mapping[str, str] = {"adagrad_update": "MXNet 1.9.1 has the operator for row-sparse gradients only"}
