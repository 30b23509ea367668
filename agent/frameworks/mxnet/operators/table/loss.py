"""Losses in MXNet: its operators one after the other, and Gluon's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case


def _loss(
    api: str,
    each: Callable[[Any, Case, Any, Any], Any],
    gluon: Callable[[Case], Any],
    *,
    over: str = "mean",
) -> Form:
    """The form of a loss by the function of each element, and by what makes one number of them."""

    def make(mx: Any, case: Case) -> Any:
        return lambda pred, label: getattr(mx, over)(each(mx, case, pred, label), axis=0, exclude=True)

    shown = mxnet.gluon.loss.__name__.removeprefix("mxnet.")
    block = Block(f"{shown}.{gluon.__name__}", gluon)
    return Form(f"{api} {over}", make, tuple(api.split()), block)


def _named(name: str, make: Callable[[Any, Case], Any]) -> Callable[[Case], Any]:
    """The function that makes a block of ``gluon.loss``, under the block's name."""

    def gluon(case: Case) -> Any:
        return make(getattr(mxnet.gluon.loss, name), case)

    gluon.__name__ = name
    return gluon


def _bce(mx: Any, _: Case, pred: Any, label: Any) -> Any:
    # as Gluon's block: relu(pred) - pred · label + log(1 + exp(-|pred|)), which does not overflow
    softrelu = mx.Activation(-mx.abs(pred), act_type="softrelu")
    return mx.relu(pred) - pred * label + softrelu


def _smooth(mx: Any, beta: float, pred: Any, label: Any) -> Any:
    return mx.smooth_l1(pred - label, scalar=1 / sqrt(beta))


def _ctc(mx: Any, _: Case) -> Any:
    return lambda pred, label: mx.CTCLoss(pred, label, blank_label="last")


FUNCTIONS: Mapping[str, Form] = {
    "l1_loss": _loss(
        "elemwise_sub abs",
        lambda mx, _, pred, label: mx.abs(pred - label),
        _named("L1Loss", lambda block, _: block()),
    ),
    "l2_loss": _loss(
        "elemwise_sub square _mul_scalar",
        lambda mx, _, pred, label: mx.square(pred - label) * 0.5,
        _named("L2Loss", lambda block, _: block()),
    ),
    "sigmoid_bce": _loss(
        "relu elemwise_mul abs Activation", _bce, _named("SigmoidBCELoss", lambda block, _: block())
    ),
    "softmax_ce": _loss(
        "log_softmax elemwise_mul sum",
        lambda mx, _, pred, label: -mx.sum(mx.log_softmax(pred, axis=1) * label, axis=1),
        _named("SoftmaxCELoss", lambda block, _: block(axis=1, sparse_label=False)),
    ),
    "smooth_l1": _loss(
        "elemwise_sub smooth_l1",
        lambda mx, case, pred, label: _smooth(mx, case["beta"], pred, label),
        _named("HuberLoss", lambda block, case: block(rho=case["beta"])),
    ),
    "huber_loss": _loss(
        "elemwise_sub smooth_l1 _mul_scalar",
        lambda mx, case, pred, label: _smooth(mx, case["delta"], pred, label) * case["delta"],
        _named("HuberLoss", lambda block, case: block(rho=case["delta"], weight=case["delta"])),
    ),
    "hinge_loss": _loss(
        "elemwise_mul _rminus_scalar relu",
        lambda mx, case, pred, label: mx.relu(case["margin"] - pred * label),
        _named("HingeLoss", lambda block, case: block(margin=case["margin"])),
    ),
    "kl_div": _loss(
        "log elemwise_sub elemwise_mul",
        lambda mx, _, pred, label: label * (mx.log(label) - pred),
        _named("KLDivLoss", lambda block, _: block()),
        over="sum",
    ),
    "ctc_loss": Form(
        "CTCLoss",
        _ctc,
        ("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"),
        Block("gluon.loss.CTCLoss", lambda _: mxnet.gluon.loss.CTCLoss("TNC", "NT")),
    ),
}
MISSING: Mapping[str, str] = {}
