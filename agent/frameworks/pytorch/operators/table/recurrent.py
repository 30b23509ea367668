"""Recurrent layers in PyTorch: the functions that the modules of ``torch.nn`` call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import _VF

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


def _layer(name: str, case: Case) -> Function:
    function = getattr(_VF, name)

    def run(data: Any, *tensors: Any) -> Any:
        weights, states = list(tensors[:4]), tensors[4:]
        hx = states if len(states) > 1 else states[0]
        # with biases, one layer, no dropout, whether in training, one direction, steps first
        return function(data, hx, weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)[0]

    return run


def _form(api: str, name: str, *covers: str) -> Form:
    return Form(f"torch.nn.{api}", partial(_layer, name), (name, *covers))


FUNCTIONS: Mapping[str, Form] = {
    "rnn_tanh": _form("RNN", "rnn_tanh"),
    "rnn_relu": _form("RNN", "rnn_relu"),
    "lstm": _form("LSTM", "lstm", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    "gru": _form("GRU", "gru"),
}
MISSING: Mapping[str, str] = {}
