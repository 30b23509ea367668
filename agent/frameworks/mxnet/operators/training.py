"""Losses and weight updates in MXNet.

A loss runs as a sequence of MXNet operators or as a Gluon block. ``mx.sym`` has the updates too, but a symbol
cannot replace its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import sqrt
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Block, Form, Function, with_parameters
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.optimizers import EPSILON, TENSORS


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
    return Form(f"{api} {over}", make, gluon=block)


def _bce(mx: Any, _: Case, pred: Any, label: Any) -> Any:
    # as Gluon's block: relu(pred) - pred · label + log(1 + exp(-|pred|)), which does not overflow
    softrelu = mx.Activation(-mx.abs(pred), act_type="softrelu")
    return mx.relu(pred) - pred * label + softrelu


def _smooth(mx: Any, beta: float, pred: Any, label: Any) -> Any:
    return mx.smooth_l1(pred - label, scalar=1 / sqrt(beta))


def _update(name: str, kept: int = 0, **renamed: str) -> Form:
    """Returns the form of a weight update.

    ``kept`` states, counted from the last, are outputs; ``renamed`` are MXNet's names of parameters.
    """

    def make(mx: Any, case: Case) -> Function:
        attributes = {renamed.get(ours, ours): value for ours, value in case.parameters.items()}
        if name in _WITH_EPSILON:
            attributes["epsilon"] = EPSILON

        def one(weight: Any, *others: Any) -> Any:
            getattr(mx, name)(weight, *others, out=weight, **attributes)
            return [weight, *others[len(others) - kept :]]

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


def _several(name: str) -> Form:
    """Returns the form of an update of several weights, whose copies in float32 are outputs, too."""
    each, lists = 2 + ("_mom_" in name) + ("_mp_" in name), {"lr": "lrs", "wd": "wds"}

    def make(mx: Any, case: Case) -> Function:
        given = {
            lists.get(key, key): (value,) * TENSORS if key in lists else value
            for key, value in case.parameters.items()
        }

        def update(*arrays: Any) -> Any:
            weights, lasts = ([*arrays[at : TENSORS * each : each]] for at in (0, each - 1))
            getattr(mx, name)(*arrays, out=weights, num_weights=TENSORS, **given)
            return weights + lasts * ("_mp_" in name)

        return update

    return Form(name, make, symbolic=False)


def _end(name: str, *covers: str) -> Form:
    return Form(name, lambda mx, _: getattr(mx, name), covers, whole=True)


_ENDS = {
    "softmax_cross_entropy": "softmax_cross_entropy",
    "svm_output": "SVMOutput",
    "linear_regression_output": "LinearRegressionOutput",
    "logistic_regression_output": "LogisticRegressionOutput",
    "mae_regression_output": "MAERegressionOutput",
}
_WITH_EPSILON = ("adam_update", "rmsprop_update", "ftml_update", "lamb_update_phase1")

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
        ("ctc_loss",),
        Block("gluon.loss.CTCLoss", lambda _: mxnet.gluon.loss.CTCLoss("TNC", "NT")),
    ),
    **{name: _end(each) for name, each in _ENDS.items()},
    "make_loss": _end("MakeLoss", "make_loss"),
    "softmax_output": _end("SoftmaxOutput", "Softmax"),
    "stop_gradient": _end("stop_gradient", "BlockGrad"),
    **{name: _update(name) for name in ("sgd_update", "sgd_mom_update", "nag_mom_update", "signsgd_update")},
    **{f"mp_{rule}_update": _update(f"mp_{rule}_update", 1) for rule in ("sgd", "sgd_mom", "nag_mom")},
    **{
        name: _several(name)
        for kind in ("multi_", "multi_mp_", "preloaded_multi_", "preloaded_multi_mp_")
        for name in (f"{kind}sgd_update", f"{kind}sgd_mom_update")
    },
    "adam_update": _update("adam_update", 2),
    "adamw_update": Form("contrib.adamw_update", _adamw, symbolic=False),
    "rmsprop_update": _update("rmsprop_update", 1, alpha="gamma1"),
    "rmspropalex_update": _update("rmspropalex_update", 3, alpha="gamma1", momentum="gamma2"),
    "ftrl_update": _update("ftrl_update", 2),
    "ftml_update": _update("ftml_update", 3),
    "signum_update": _update("signum_update", 1),
    "lamb_update_phase1": _update("lamb_update_phase1", 2),
    "lamb_update_phase2": _update("lamb_update_phase2"),
    "multi_lars": with_parameters("multi_lars", "eta", eps=EPSILON),
}


MISSING: Mapping[str, str] = {"adagrad_update": "MXNet 1.9.1 has the operator for row-sparse gradients only"}
