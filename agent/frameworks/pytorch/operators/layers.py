"""Network layers in PyTorch: activations, dense layers, convolutions, poolings and others.

It also has resizing, image sampling, normalizations, the functions of ``torch.nn``'s recurrent layers, and
fused operators: parts that inductor fuses, and single functions that do all the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as functional
from torch import _VF

from inferometer.agent.frameworks.pytorch.operators.runner import Form, Function, function
from inferometer.agent.operators.operator import EPSILON, Case, NotSupportedHereError
from inferometer.agent.operators.table.convolution import Window, groups_of, pair_of, window_of


def _activation(name: str, *covers: str, **arguments: Any) -> Form:
    return function(f"nn.functional.{name}", *covers, **arguments)


def _slides(window: Window) -> dict[str, Any]:
    return {"kernel_size": window.kernel, "stride": window.stride, "padding": window.pad}


_CONVOLUTION_ATEN = (
    "convolution",
    "convolution_backward",
    "mkldnn_convolution",
    "mkldnn_convolution_backward",
)


def _layer(name: str, arguments: Callable[[Case], Mapping[str, Any]], *covers: str) -> Form:
    """Returns the form of a function of ``torch.nn.functional`` with arguments that follow from the case."""
    found = getattr(functional, name)
    return Form(f"torch.nn.functional.{name}", lambda case: partial(found, **arguments(case)), covers)


def _convolution(name: str) -> Form:
    def arguments(case: Case) -> dict[str, Any]:
        window = window_of(case)
        more = {"output_padding": case["output_pad"]} if "output_pad" in case.parameters else {}
        slides = {"stride": window.stride, "padding": window.pad, "dilation": window.dilate}
        return {**slides, "groups": groups_of(case), **more}

    return _layer(name, arguments, *_CONVOLUTION_ATEN)


def _pooling(name: str) -> Form:
    return _layer(name, lambda case: _slides(window_of(case)), f"{name}_with_indices")


def _whole(name: str) -> Form:
    return _layer(name, lambda _: {"output_size": 1})


def _summed(axes: tuple[int, ...]) -> Form:
    return Form("torch.sum", lambda _: lambda data: torch.sum(data, axes, keepdim=True))


def _roots(case: Case) -> dict[str, Any]:
    window = window_of(case)
    one = len(window.kernel) == 1
    kernel: Any = window.kernel[0] if one else window.kernel
    return {"norm_type": 2, "kernel_size": kernel, "stride": window.stride[0] if one else window.stride}


def _summed_row(case: Case) -> Function:
    window = window_of(case)
    arguments = (1, *window.kernel), (1, *window.stride), (0, *window.pad)
    return lambda data: functional.avg_pool2d(data.unsqueeze(2), *arguments, divisor_override=1).squeeze(2)


_NO_REGIONS = "PyTorch has no regions of interest; they are in torchvision"


_BATCH_NORM_ATEN = ("native_batch_norm", "native_batch_norm_backward")


def _batch_norm(case: Case, **training: Any) -> Function:
    return lambda data, gamma, beta, mean, variance: functional.batch_norm(
        data, mean, variance, gamma, beta, eps=case["epsilon"], **training
    )


def _layer_norm(case: Case) -> Function:
    shape = case.shapes["data"][-1:]
    return lambda data, gamma, beta: functional.layer_norm(data, shape, gamma, beta, case["epsilon"])


def _instance_norm(case: Case) -> Function:
    return lambda data, gamma, beta: functional.instance_norm(
        data, weight=gamma, bias=beta, eps=case["epsilon"]
    )


def _group_norm(case: Case) -> Function:
    return lambda data, gamma, beta: functional.group_norm(data, case["groups"], gamma, beta, case["epsilon"])


def _affine_grid(transformations: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    count = len(transformations)
    return functional.affine_grid(transformations.view(count, 2, 3), [count, 1, *size], align_corners=True)


def _grid_sample(data: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    if data.device.type == "cpu" and data.element_size() == 2 and data[0, 0].numel() >= 1 << 15:
        # the places of pixels overflow, so it reads and writes elsewhere
        raise NotSupportedHereError("PyTorch samples no images of 32768 pixels or more in 16 bits on a CPU")
    return functional.grid_sample(data, grid, align_corners=True)


def _rms_norm(case: Case) -> Function:
    shape = case.shapes["data"][-1:]
    return lambda data, gamma: functional.rms_norm(data, shape, gamma, case["epsilon"])


def _recurrent(name: str, case: Case) -> Function:
    function = getattr(_VF, name)

    def run(data: Any, *tensors: Any) -> Any:
        weights, states = list(tensors[:4]), tensors[4:]
        hx = states if len(states) > 1 else states[0]
        # with biases, one layer, no dropout, whether in training, one direction, steps first
        return function(data, hx, weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)[0]

    return run


def _recurrent_form(api: str, name: str, *covers: str) -> Form:
    return Form(f"torch.nn.{api}", partial(_recurrent, name), (name, *covers))


_WEIGHTS = ("weight", "bias")
_STATISTICS = (*_WEIGHTS, "gamma", "beta", "mean", "var")


def _fused_convolution(case: Case) -> Function:
    stride, pad = case["stride"], case["pad"]
    return lambda data, weight, bias: functional.conv2d(data, weight, bias, stride, pad)


def _activated(before: Callable[[Case], Function], activation: Function) -> Callable[[Case], Function]:
    def make(case: Case) -> Function:
        function = before(case)
        return lambda *tensors: activation(function(*tensors))

    return make


def _normalized(case: Case) -> Function:
    convolution = _fused_convolution(case)

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

_FUSED: Mapping[str, Form] = {
    "conv2d_relu": Form(
        f"{_CONVOLUTION} {_RELU}", _activated(_fused_convolution, functional.relu), constants=_WEIGHTS
    ),
    "conv2d_batch_norm": Form(f"{_CONVOLUTION} {_BATCH_NORM}", _normalized, constants=_STATISTICS),
    "conv2d_batch_norm_relu": Form(
        f"{_CONVOLUTION} {_BATCH_NORM} {_RELU}",
        _activated(_normalized, functional.relu),
        constants=_STATISTICS,
    ),
    "dense_relu": Form(
        f"{_LINEAR} {_RELU}", _activated(lambda _: functional.linear, functional.relu), constants=_WEIGHTS
    ),
    "dense_gelu": Form(
        f"{_LINEAR} torch.nn.functional.gelu",
        _activated(lambda _: functional.linear, functional.gelu),
        constants=_WEIGHTS,
    ),
    "add_relu": Form(f"torch.add {_RELU}", _activated(lambda _: torch.add, functional.relu)),
    "layer_norm_residual": Form(
        "torch.add torch.nn.functional.layer_norm", _residual, constants=("gamma", "beta")
    ),
    "scaled_dot_product_attention": Form(
        "torch.matmul torch.mul torch.nn.functional.softmax torch.matmul",
        _attention,
        ("scaled_dot_product_attention",),
        joined=("torch.nn.functional.scaled_dot_product_attention", functional.scaled_dot_product_attention),
    ),
}

FORMS: Mapping[str, Form] = {
    **{name: _activation(name) for name in ("relu", "prelu", "selu", "softsign", "softplus", "mish", "gelu")},
    "leaky_relu": _activation("leaky_relu", negative_slope="slope"),
    "elu": _activation("elu", alpha="alpha"),
    "celu": _activation("celu", alpha="alpha"),
    "sigmoid": function("sigmoid"),
    "log_sigmoid": _activation("logsigmoid", "log_sigmoid", "log_sigmoid_forward"),
    "hard_sigmoid": _activation("hardsigmoid"),
    "tanh": function("tanh"),
    "swish": _activation("silu"),
    "hard_swish": _activation("hardswish"),
    "gelu_tanh": _activation("gelu", fixed={"approximate": "tanh"}),
    **{name: _activation(name, dim="axis") for name in ("softmax", "log_softmax", "softmin")},
    "dense": function("nn.functional.linear", "addmm"),
    "flatten": function("flatten", fixed={"start_dim": 1}),
    "lambda": function("unsqueeze", fixed={"dim": 0}),
    "dropout": function("nn.functional.dropout", "native_dropout", p="p", fixed={"training": True}),
    "embedding": function("nn.functional.embedding"),
    "im2col": _layer("unfold", lambda case: _slides(Window.of(case.parameters, 2)), "im2col"),
    "col2im": _layer(
        "fold",
        lambda case: {"output_size": case["output_size"], **_slides(Window.of(case.parameters, 2))},
        "col2im",
    ),
    "grid_sample": Form(
        "torch.nn.functional.grid_sample", lambda _: _grid_sample, ("grid_sampler", "grid_sampler_2d")
    ),
    "grid_generator": Form(
        "torch.nn.functional.affine_grid",
        lambda case: lambda data: _affine_grid(data, case["target_shape"]).permute(0, 3, 1, 2),
        ("affine_grid_generator",),
    ),
    "spatial_transformer": Form(
        "torch.nn.functional.affine_grid torch.nn.functional.grid_sample",
        lambda _: lambda data, loc: _grid_sample(data, _affine_grid(loc, data.shape[2:])),
        ("affine_grid_generator", "grid_sampler"),
    ),
    **{name: _convolution(name) for name in ("conv1d", "conv2d", "conv3d")},
    "depthwise_conv2d": _convolution("conv2d"),
    "conv1d_transpose": _convolution("conv_transpose1d"),
    "conv2d_transpose": _convolution("conv_transpose2d"),
    "conv3d_transpose": _convolution("conv_transpose3d"),
    **{name: _pooling(name) for name in ("max_pool1d", "max_pool2d", "max_pool3d")},
    **{name: _pooling(name) for name in ("avg_pool1d", "avg_pool2d", "avg_pool3d")},
    "sum_pool1d": Form("torch.nn.functional.avg_pool2d", _summed_row),
    "sum_pool2d": _layer("avg_pool2d", lambda case: {**_slides(window_of(case)), "divisor_override": 1}),
    "lp_pool1d": _layer("lp_pool1d", _roots, "avg_pool1d"),
    "lp_pool2d": _layer("lp_pool2d", _roots, "avg_pool2d"),
    "global_max_pool1d": _whole("adaptive_max_pool1d"),
    "global_max_pool2d": _whole("adaptive_max_pool2d"),
    "global_avg_pool1d": _whole("adaptive_avg_pool1d"),
    "global_avg_pool2d": _whole("adaptive_avg_pool2d"),
    "global_sum_pool1d": _summed((2,)),
    "global_sum_pool2d": _summed((2, 3)),
    "adaptive_avg_pool2d": _layer(
        "adaptive_avg_pool2d", lambda case: {"output_size": pair_of(case, "output")}
    ),
    "upsample_nearest": function(
        "nn.functional.interpolate", "upsample_nearest2d", scale_factor="scale", fixed={"mode": "nearest"}
    ),
    "resize_bilinear": _layer(
        "interpolate",
        lambda case: {"size": pair_of(case, "output"), "mode": "bilinear", "align_corners": False},
        "upsample_bilinear2d",
    ),
    "batch_norm": Form("torch.nn.functional.batch_norm", _batch_norm, _BATCH_NORM_ATEN),
    "batch_norm_training": Form(
        "torch.nn.functional.batch_norm",
        lambda case: _batch_norm(case, training=True, momentum=case["momentum"]),
        _BATCH_NORM_ATEN,
    ),
    "layer_norm": Form(
        "torch.nn.functional.layer_norm", _layer_norm, ("native_layer_norm", "native_layer_norm_backward")
    ),
    "instance_norm": Form("torch.nn.functional.instance_norm", _instance_norm),
    "group_norm": Form(
        "torch.nn.functional.group_norm", _group_norm, ("native_group_norm", "native_group_norm_backward")
    ),
    "rms_norm": Form("torch.nn.functional.rms_norm", _rms_norm),
    "l2_normalization": function("nn.functional.normalize"),
    "lrn": function("nn.functional.local_response_norm", size="size", alpha="alpha", beta="beta", k="bias"),
    "rnn_tanh": _recurrent_form("RNN", "rnn_tanh"),
    "rnn_relu": _recurrent_form("RNN", "rnn_relu"),
    "lstm": _recurrent_form("LSTM", "lstm", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    "gru": _recurrent_form("GRU", "gru"),
    **_FUSED,
}


MISSING: Mapping[str, str] = {
    "softmax_activation": "PyTorch has it only as softmax",
    "group_norm_per_group": "PyTorch's group_norm has a scale and a shift for each channel",
    "roi_pool": _NO_REGIONS,
    "roi_align": _NO_REGIONS,
}
