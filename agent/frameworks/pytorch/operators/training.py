"""Losses and weight updates in PyTorch.

Losses are computed for each element, then averaged or summed over all axes but the first; updates are the
functions that the optimisers of ``torch.optim`` call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from inferometer.agent.frameworks.pytorch.operators.runner import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.training import EPSILON


def _loss(name: str, aten: str = "", **renamed: str) -> Form:
    """Returns the form of an element-wise loss; ``renamed`` gives the table's name for each argument."""
    function: Any = getattr(functional, name)

    def make(case: Case) -> Any:
        given = {ours: case[theirs] for ours, theirs in renamed.items()}
        return lambda pred, label: _mean(function(pred, label, reduction="none", **given))

    return Form(f"torch.nn.functional.{name} torch.mean", make, (aten or name,))


def _mean(each: torch.Tensor) -> torch.Tensor:
    return each.flatten(1).mean(1)


def _hinge(case: Case) -> Any:
    margin = case["margin"]
    return lambda pred, label: _mean(torch.clamp(margin - pred * label, min=0))


def _ctc(case: Case) -> Any:
    steps, batch, alphabet = case.shapes["pred"]
    steps_of, letters_of = (steps,) * batch, (case["label_length"],) * batch

    def loss(pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logs = functional.log_softmax(pred, 2)
        return torch.ctc_loss(logs, label, steps_of, letters_of, alphabet - 1, 0, False)

    return loss


_LATE = 1e6
"""The number of a step so late that Adam's bias correction is 1."""


def _sgd(case: Case, *, nesterov: bool = False, several: bool = False) -> Function:
    momentum = case.parameters.get("momentum", 0.0)
    settings: dict[str, Any] = {
        "weight_decay": case["wd"],
        "momentum": momentum,
        "lr": case["lr"],
        "dampening": 0.0,
        "nesterov": nesterov,
        "maximize": False,
        "foreach": several,
    }

    def one(weight: torch.Tensor, grad: torch.Tensor, state: torch.Tensor | None = None) -> Any:
        sgd([weight], [grad], [state], **settings)
        return weight

    def many(*tensors: torch.Tensor) -> Any:
        weights, grads = list(tensors[::2]), list(tensors[1::2])
        sgd(weights, grads, [None] * len(weights), **settings)
        return weights

    return many if several else one


def _adam(case: Case, update: Any) -> Function:
    steps = [torch.tensor(_LATE)]
    settings = {"lr": case["lr"], "beta1": case["beta1"], "beta2": case["beta2"], "weight_decay": case["wd"]}

    def one(weight: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        update(
            [weight], [grad], [mean], [var], [], steps, amsgrad=False, maximize=False, eps=EPSILON, **settings
        )
        return weight, mean, var

    return one


def _rmsprop(case: Case) -> Function:
    steps = [torch.tensor(0.0)]
    settings: dict[str, Any] = {
        "lr": case["lr"],
        "alpha": case["alpha"],
        "eps": EPSILON,
        "weight_decay": case["wd"],
        "momentum": 0.0,
        "centered": False,
    }

    def one(weight: torch.Tensor, grad: torch.Tensor, var: torch.Tensor) -> Any:
        rmsprop([weight], [grad], [var], [], [], steps, **settings)
        return weight, var

    return one


def _adagrad(case: Case) -> Function:
    steps = [torch.tensor(0.0)]
    settings: dict[str, Any] = {
        "lr": case["lr"],
        "weight_decay": case["wd"],
        "lr_decay": 0.0,
        "eps": EPSILON,
        "maximize": False,
    }

    def one(weight: torch.Tensor, grad: torch.Tensor, total: torch.Tensor) -> Any:
        adagrad([weight], [grad], [total], steps, **settings)
        return weight, total

    return one


FORMS: Mapping[str, Form] = {
    "l1_loss": _loss("l1_loss"),
    "l2_loss": Form(
        "torch.nn.functional.mse_loss torch.mean",
        lambda _: lambda pred, label: _mean(functional.mse_loss(pred, label, reduction="none")) / 2,
        ("mse_loss",),
    ),
    "sigmoid_bce": _loss("binary_cross_entropy_with_logits"),
    "softmax_ce": _loss("cross_entropy", "cross_entropy_loss"),
    "smooth_l1": _loss("smooth_l1_loss", beta="beta"),
    "huber_loss": _loss("huber_loss", delta="delta"),
    # PyTorch has no hinge loss of labels -1 and 1 with a margin as one function
    "hinge_loss": Form("torch.mul torch.sub torch.clamp torch.mean", _hinge, ("clamp",)),
    "kl_div": Form(
        "torch.nn.functional.kl_div torch.sum",
        lambda _: lambda pred, label: functional.kl_div(pred, label, reduction="none").flatten(1).sum(1),
        ("kl_div",),
    ),
    "ctc_loss": Form("torch.nn.functional.log_softmax torch.ctc_loss", _ctc, ("ctc_loss",)),
    "sgd_update": Form("torch.optim.sgd.sgd", _sgd),
    "sgd_mom_update": Form("torch.optim.sgd.sgd", _sgd),
    "nag_mom_update": Form("torch.optim.sgd.sgd", lambda case: _sgd(case, nesterov=True)),
    "adam_update": Form("torch.optim.adam.adam", lambda case: _adam(case, adam)),
    "adamw_update": Form("torch.optim.adamw.adamw", lambda case: _adam(case, adamw)),
    "rmsprop_update": Form("torch.optim.rmsprop.rmsprop", _rmsprop),
    "adagrad_update": Form("torch.optim.adagrad.adagrad", _adagrad),
    "multi_sgd_update": Form("torch.optim.sgd.sgd", lambda case: _sgd(case, several=True)),
}


MISSING: Mapping[str, str] = {
    "ftrl_update": "torch.optim has no FTRL",
    "signsgd_update": "torch.optim has no signSGD",
    "signum_update": "torch.optim has no Signum",
}
