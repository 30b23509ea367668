"""Losses in PyTorch: those of each element, and their mean or sum over all axes but the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional

from inferometer.agent.frameworks.pytorch.operators.functions import Form
from inferometer.agent.operators.operator import Case


def _loss(name: str, aten: str = "", **renamed: str) -> Form:
    """The form of a loss of each element; ``renamed`` has the table's name of each argument."""
    function: Any = getattr(functional, name)

    def make(case: Case) -> Any:
        given = {ours: case[theirs] for ours, theirs in renamed.items()}
        return lambda pred, label: _mean(function(pred, label, reduction="none", **given))

    return Form(f"torch.nn.functional.{name} torch.mean", make, (aten or name,))


def _mean(each: torch.Tensor) -> torch.Tensor:
    return each.flatten(1).mean(1)


def _l2(_: Case) -> Any:
    return lambda pred, label: _mean(functional.mse_loss(pred, label, reduction="none")) / 2


def _kl_div(_: Case) -> Any:
    return lambda pred, label: functional.kl_div(pred, label, reduction="none").flatten(1).sum(1)


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


FUNCTIONS: Mapping[str, Form] = {
    "l1_loss": _loss("l1_loss"),
    "l2_loss": Form("torch.nn.functional.mse_loss torch.mean", _l2, ("mse_loss",)),
    "sigmoid_bce": _loss("binary_cross_entropy_with_logits"),
    "softmax_ce": _loss("cross_entropy", "cross_entropy_loss"),
    "smooth_l1": _loss("smooth_l1_loss", beta="beta"),
    "huber_loss": _loss("huber_loss", delta="delta"),
    # PyTorch has no hinge loss of labels -1 and 1 with a margin as one function
    "hinge_loss": Form("torch.mul torch.sub torch.clamp torch.mean", _hinge, ("clamp",)),
    "kl_div": Form("torch.nn.functional.kl_div torch.sum", _kl_div, ("kl_div",)),
    "ctc_loss": Form("torch.nn.functional.log_softmax torch.ctc_loss", _ctc, ("ctc_loss",)),
}
MISSING: Mapping[str, str] = {}
