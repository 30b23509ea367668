"""Fused operators in MXNet, built from their parts; MXNet's oneDNN pass over a symbol fuses some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.fused import EPSILON


def _convolution(mx: Any, case: Case) -> Function:
    return partial(
        mx.Convolution,
        kernel=case["kernel"],
        stride=case["stride"],
        pad=case["pad"],
        num_filter=case["channels"],
    )


def _relu(mx: Any, data: Any) -> Any:
    # oneDNN's pass joins Activation, and leaves the operator relu alone
    return mx.Activation(data, act_type="relu")


def _then_relu(before: Callable[[Any, Case], Function]) -> Callable[[Any, Case], Function]:
    def make(mx: Any, case: Case) -> Function:
        function = before(mx, case)
        return lambda *arrays: _relu(mx, function(*arrays))

    return make


def _normalized(mx: Any, case: Case) -> Any:
    convolution = _convolution(mx, case)

    def run(data: Any, weight: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        made = convolution(data, weight, bias)
        return mx.BatchNorm(made, gamma, beta, mean, var, eps=EPSILON, fix_gamma=False, use_global_stats=True)

    return run


def _dense(mx: Any, case: Case) -> Function:
    return partial(mx.FullyConnected, num_hidden=case["units"], flatten=False)


def _dense_gelu(mx: Any, case: Case) -> Function:
    dense = _dense(mx, case)
    return lambda *arrays: mx.LeakyReLU(dense(*arrays), act_type="gelu")


def _residual(mx: Any, _: Case) -> Any:
    return lambda data, residual, gamma, beta: mx.LayerNorm(
        mx.elemwise_add(data, residual), gamma, beta, eps=EPSILON
    )


def _attention(mx: Any, case: Case) -> Any:
    batch, heads, rows, size = case.shapes["query"]
    scale = 1 / sqrt(size)

    def run(query: Any, key: Any, value: Any) -> Any:
        # batch_dot has one axis for batches; a reshape moves nothing
        flat = [mx.reshape(each, (-3, -2)) for each in (query, key, value)]
        scores = mx.softmax(mx.batch_dot(flat[0], flat[1], transpose_b=True) * scale, axis=-1)
        return mx.reshape(mx.batch_dot(scores, flat[2]), (batch, heads, rows, size))

    return run


FORMS: Mapping[str, Form] = {
    "conv2d_relu": Form("Convolution Activation", _then_relu(_convolution), ("Convolution", "Activation")),
    "conv2d_batch_norm": Form("Convolution BatchNorm", _normalized, ("Convolution", "BatchNorm")),
    "conv2d_batch_norm_relu": Form(
        "Convolution BatchNorm Activation",
        _then_relu(_normalized),
        ("Convolution", "BatchNorm", "Activation"),
    ),
    "dense_relu": Form("FullyConnected Activation", _then_relu(_dense), ("FullyConnected", "Activation")),
    "dense_gelu": Form("FullyConnected LeakyReLU", _dense_gelu, ("FullyConnected", "LeakyReLU")),
    "add_relu": Form(
        "elemwise_add Activation", _then_relu(lambda mx, _: mx.elemwise_add), ("elemwise_add", "Activation")
    ),
    "layer_norm_residual": Form("elemwise_add LayerNorm", _residual, ("elemwise_add", "LayerNorm")),
    "scaled_dot_product_attention": Form(
        "batch_dot _mul_scalar softmax batch_dot", _attention, ("batch_dot", "_mul_scalar", "softmax")
    ),
}
MISSING: Mapping[str, str] = {}
