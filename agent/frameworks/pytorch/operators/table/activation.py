"""Activation functions in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional

from inferometer.agent.frameworks.pytorch.operators.functions import Form


def _function(name: str, *covers: str, **renamed: str) -> Form:
    """The form of a function of ``torch.nn.functional``, with the table's name of each argument."""
    function: Any = getattr(functional, name)
    return Form(
        f"torch.nn.functional.{name}",
        lambda case: (
            partial(function, **{ours: case[theirs] for ours, theirs in renamed.items()})
            if renamed
            else function
        ),
        covers or (name,),
    )


FUNCTIONS: Mapping[str, Form] = {
    "relu": _function("relu"),
    "leaky_relu": _function("leaky_relu", negative_slope="slope"),
    "prelu": _function("prelu"),
    "elu": _function("elu", alpha="alpha"),
    "selu": _function("selu"),
    "celu": _function("celu", alpha="alpha"),
    "sigmoid": Form("torch.sigmoid", lambda _: torch.sigmoid),
    "log_sigmoid": _function("logsigmoid", "log_sigmoid", "log_sigmoid_forward"),
    "hard_sigmoid": _function("hardsigmoid"),
    "tanh": Form("torch.tanh", lambda _: torch.tanh),
    "softsign": _function("softsign"),
    "softplus": _function("softplus"),
    "swish": _function("silu"),
    "hard_swish": _function("hardswish"),
    "mish": _function("mish"),
    "gelu": _function("gelu"),
    "gelu_tanh": Form("torch.nn.functional.gelu", lambda _: partial(functional.gelu, approximate="tanh")),
    "softmax": _function("softmax", dim="axis"),
    "log_softmax": _function("log_softmax", dim="axis"),
    "softmin": _function("softmin", dim="axis"),
}
MISSING: Mapping[str, str] = {}
