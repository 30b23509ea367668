"""Losses and weight updates in PyTorch.

Losses are computed for each element, then averaged or summed over all axes but the first; updates are the
functions that the optimisers of ``torch.optim`` call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
from inferometer.agent.operators.table.optimizers import EPSILON


def _loss(name: str, *covers: str, **renamed: str) -> Form:
    """Returns the form of an element-wise loss; ``renamed`` gives the table's name for each argument."""
    function: Any = getattr(functional, name)

    def make(case: Case) -> Any:
        given = {ours: case[theirs] for ours, theirs in renamed.items()}
        return lambda pred, label: _mean(function(pred, label, reduction="none", **given))

    return Form(f"torch.nn.functional.{name} torch.mean", make, covers)


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

    def update(*tensors: torch.Tensor) -> Any:
        each = 3 if momentum else 2
        weights, grads = list(tensors[::each]), list(tensors[1::each])
        states: list[Any] = list(tensors[2::each]) if momentum else [None] * len(weights)
        sgd(weights, grads, states, **settings)
        return weights

    return update


def _update(function: Any, empty: int = 0, step: float = 0.0, **fixed: Any) -> Form:
    """Returns the form of an update by a function of torch.optim with ``empty`` lists of unused states."""

    def make(case: Case) -> Function:
        steps = [torch.tensor(step)]
        settings = {"weight_decay" if key == "wd" else key: value for key, value in case.parameters.items()}

        def one(weight: torch.Tensor, *others: torch.Tensor) -> Any:
            lists = [[each] for each in others] + [[] for _ in range(empty)]
            function([weight], *lists, steps, eps=EPSILON, **settings, **fixed)
            return weight, *others[1:]

        return one

    return Form(f"{function.__module__}.{function.__name__}", make)


FORMS: Mapping[str, Form] = {
    "l1_loss": _loss("l1_loss"),
    "l2_loss": Form(
        "torch.nn.functional.mse_loss torch.mean",
        lambda _: lambda pred, label: _mean(functional.mse_loss(pred, label, reduction="none")) / 2,
    ),
    "sigmoid_bce": _loss("binary_cross_entropy_with_logits"),
    "softmax_ce": _loss("cross_entropy", "cross_entropy_loss"),
    "smooth_l1": _loss("smooth_l1_loss", beta="beta"),
    "huber_loss": _loss("huber_loss", delta="delta"),
    # PyTorch has no hinge loss of labels -1 and 1 with a margin as one function
    "hinge_loss": Form("torch.mul torch.sub torch.clamp torch.mean", _hinge),
    "kl_div": Form(
        "torch.nn.functional.kl_div torch.sum",
        lambda _: lambda pred, label: functional.kl_div(pred, label, reduction="none").flatten(1).sum(1),
    ),
    "ctc_loss": Form("torch.nn.functional.log_softmax torch.ctc_loss", _ctc),
    "softmax_cross_entropy": Form(
        "torch.nn.functional.cross_entropy",
        lambda _: partial(functional.cross_entropy, reduction="sum"),
        ("cross_entropy_loss",),
    ),
    "stop_gradient": Form("torch.Tensor.detach torch.clone", lambda _: lambda data: data.detach().clone()),
    **dict.fromkeys(("sgd_update", "sgd_mom_update"), Form("torch.optim.sgd.sgd", _sgd)),
    "nag_mom_update": Form("torch.optim.sgd.sgd", lambda case: _sgd(case, nesterov=True)),
    "adam_update": _update(adam, 1, _LATE, amsgrad=False, maximize=False),
    "adamw_update": _update(adamw, 1, _LATE, amsgrad=False, maximize=False),
    "rmsprop_update": _update(rmsprop, 2, momentum=0.0, centered=False),
    "adagrad_update": _update(adagrad, lr_decay=0.0, maximize=False),
    **dict.fromkeys(
        ("multi_sgd_update", "multi_sgd_mom_update"),
        Form("torch.optim.sgd.sgd", lambda case: _sgd(case, several=True)),
    ),
}


MISSING: Mapping[str, str] = {
    "rmspropalex_update": "the centered RMSprop of torch.optim adds ε outside of the root",
    "ftrl_update": "torch.optim has no FTRL",
    "signsgd_update": "torch.optim has no signSGD",
    "signum_update": "torch.optim has no Signum",
}
