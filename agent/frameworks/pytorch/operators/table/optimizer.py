"""The updates of weights in PyTorch: the functions that the optimisers of ``torch.optim`` call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.optimizer import EPSILON

_LATE = 1e6
"""A step so late that Adam's correction of the bias is 1."""


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


FUNCTIONS: Mapping[str, Form] = {
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
