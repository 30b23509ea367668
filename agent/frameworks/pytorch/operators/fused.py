"""Fused operators in PyTorch: parts that inductor fuses, and single functions that do all the parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as functional

from inferometer.agent.frameworks.pytorch.operators.runner import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.fused import EPSILON

_WEIGHTS = ("weight", "bias")
_STATISTICS = (*_WEIGHTS, "gamma", "beta", "mean", "var")


def _convolution(case: Case) -> Function:
    stride, pad = case["stride"], case["pad"]
    return lambda data, weight, bias: functional.conv2d(data, weight, bias, stride, pad)


def _activated(before: Callable[[Case], Function], activation: Function) -> Callable[[Case], Function]:
    def make(case: Case) -> Function:
        function = before(case)
        return lambda *tensors: activation(function(*tensors))

    return make


def _normalized(case: Case) -> Function:
    convolution = _convolution(case)

    def run(data: Any, weight: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return functional.batch_norm(
            convolution(data, weight, bias), mean, var, gamma, beta, training=False, eps=EPSILON
        )

    return run


def _residual(case: Case) -> Function:
    size = case.shapes["data"][-1:]
    return lambda data, residual, gamma, beta: functional.layer_norm(
        torch.add(data, residual), size, gamma, beta, EPSILON
    )


def _attention(case: Case) -> Function:
    scale = 1 / sqrt(case.shapes["query"][-1])

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.mul(torch.matmul(query, key.transpose(-1, -2)), scale)
        return torch.matmul(functional.softmax(scores, -1), value)

    return run


_CONVOLUTION, _LINEAR = "torch.nn.functional.conv2d", "torch.nn.functional.linear"
_RELU, _BATCH_NORM = "torch.nn.functional.relu", "torch.nn.functional.batch_norm"

FORMS: Mapping[str, Form] = {
    "conv2d_relu": Form(
        f"{_CONVOLUTION} {_RELU}",
        _activated(_convolution, functional.relu),
        ("conv2d", "relu"),
        constants=_WEIGHTS,
    ),
    "conv2d_batch_norm": Form(
        f"{_CONVOLUTION} {_BATCH_NORM}", _normalized, ("conv2d", "batch_norm"), constants=_STATISTICS
    ),
    "conv2d_batch_norm_relu": Form(
        f"{_CONVOLUTION} {_BATCH_NORM} {_RELU}",
        _activated(_normalized, functional.relu),
        ("conv2d", "batch_norm", "relu"),
        constants=_STATISTICS,
    ),
    "dense_relu": Form(
        f"{_LINEAR} {_RELU}",
        _activated(lambda _: functional.linear, functional.relu),
        ("linear", "relu"),
        constants=_WEIGHTS,
    ),
    "dense_gelu": Form(
        f"{_LINEAR} torch.nn.functional.gelu",
        _activated(lambda _: functional.linear, functional.gelu),
        ("linear", "gelu"),
        constants=_WEIGHTS,
    ),
    "add_relu": Form(f"torch.add {_RELU}", _activated(lambda _: torch.add, functional.relu), ("add", "relu")),
    "layer_norm_residual": Form(
        "torch.add torch.nn.functional.layer_norm",
        _residual,
        ("add", "layer_norm"),
        constants=("gamma", "beta"),
    ),
    "scaled_dot_product_attention": Form(
        "torch.matmul torch.mul torch.nn.functional.softmax torch.matmul",
        _attention,
        ("scaled_dot_product_attention", "matmul", "mul", "softmax"),
        joined=("torch.nn.functional.scaled_dot_product_attention", functional.scaled_dot_product_attention),
    ),
}
MISSING: Mapping[str, str] = {}
