"""Network layers in MXNet: activations, dense layers, convolutions, poolings and others.

It also has resizing, image sampling, normalizations, recurrent layers, and fused operators, built from their
parts; MXNet's oneDNN pass over a symbol fuses some of them. In training, ``BatchNorm`` adds the
squares of a channel sequentially in float32: with two million elements per channel, its variance is off by
1e-3 to 3e-3, more with fewer threads, with and without oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt
from operator import attrgetter
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.runner import Block, Form, Function, named, with_parameters
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import EPSILON, NOTHING, Case
from inferometer.agent.operators.table.convolution import (
    Window,
    channels_of,
    groups_of,
    output_pad_of,
    pair_of,
    window_of,
)


def _block(name: str, arguments: Callable[[Case], Sequence[Any]] = lambda _: (), **parameters: str) -> Block:
    """Returns a block of ``gluon.nn``; see ``Block`` for its ``parameters``."""
    return Block(f"gluon.nn.{name}", lambda case: getattr(mxnet.gluon.nn, name)(*arguments(case)), parameters)


def _activation(kind: str) -> Form:
    form = with_parameters("Activation", covers=(kind,), act_type=kind)
    return replace(form, gluon=_block("Activation", lambda _: (kind,)))


def _leaky(kind: str, block: str, slope: str = "") -> Form:
    """Returns the form for one kind of ``LeakyReLU``; ``slope`` is the table's name for its slope."""
    form = with_parameters("LeakyReLU", of={"slope": slope} if slope else NOTHING, act_type=kind)
    return replace(form, gluon=_block(block, lambda case: (case[slope],) if slope else ()))


def _slides(window: Window) -> dict[str, Any]:
    return {"kernel": window.kernel, "stride": window.stride, "pad": window.pad}


def _dropout_block(case: Case) -> Any:
    class TrainingDropout(mxnet.gluon.nn.Dropout):  # type: ignore[misc]
        """A dropout block that drops values as in training, even in passes without a gradient."""

        def forward(self, data: Any) -> Any:
            with mxnet.autograd.train_mode():
                return super().forward(data)

    return TrainingDropout(case["p"])


def _layer(name: str, arguments: Callable[[Case], Mapping[str, Any]], gluon: Block | None = None) -> Form:
    """Returns the form of an operator with arguments that follow from the case."""
    return Form(name, lambda mx, case: partial(attrgetter(name)(mx), **arguments(case)), gluon=gluon)


def _convolution(name: str, block: str) -> Form:
    def arguments(case: Case) -> dict[str, Any]:
        window = window_of(case)
        more = {"adj": output_pad_of(case)} if "output_pad" in case.parameters else {}
        return {
            **_slides(window),
            "dilate": window.dilate,
            "num_filter": channels_of(case),
            "num_group": groups_of(case),
            "no_bias": not case["bias"],
            **more,
        }

    return _layer(name, arguments, _convolution_block(block))


def _convolution_block(name: str) -> Block:
    def make(case: Case) -> Any:
        window = window_of(case)
        more = {"output_padding": output_pad_of(case)} if "output_pad" in case.parameters else {}
        return getattr(mxnet.gluon.nn, name)(
            channels_of(case),
            window.kernel,
            window.stride,
            window.pad,
            dilation=window.dilate,
            groups=groups_of(case),
            use_bias=case["bias"],
            in_channels=case.shapes["data"][1],  # which a transposed one of several groups cannot infer
            **more,
        )

    return Block(f"gluon.nn.{name}", make, {"weight": "weight", "bias": "bias"})


def _pooling(kind: str, block: str = "") -> Form:
    gluon = _block(block, lambda case: tuple(_slides(window_of(case)).values())) if block else None
    more = {"pool_type": kind, **({"p_value": 2} if kind == "lp" else {})}
    return _layer("Pooling", lambda case: {**_slides(window_of(case)), **more}, gluon)


def _whole(kind: str, rank: int, block: str = "") -> Form:
    gluon = _block(block) if block else None
    arguments = {"kernel": (1,) * rank, "pool_type": kind, "global_pool": True}
    return _layer("Pooling", lambda _: arguments, gluon)


_PARAMETERS = {"gamma": "gamma", "beta": "beta", "mean": "running_mean", "variance": "running_var"}


def _batch_norm_momentum(case: Case) -> float:
    # MXNet's is the share of the old value
    return 1 - float(case.parameters.get("momentum", 0.1))


def _batch_norm(given: bool) -> Form:
    """Returns the form with given statistics, or else with those of the batch."""

    def arguments(case: Case) -> dict[str, Any]:
        momentum = _batch_norm_momentum(case)
        return {"eps": case["epsilon"], "momentum": momentum, "fix_gamma": False, "use_global_stats": given}

    def make(case: Case) -> Any:
        return mxnet.gluon.nn.BatchNorm(
            epsilon=case["epsilon"],
            momentum=_batch_norm_momentum(case),
            use_global_stats=given,
            in_channels=case.shapes["data"][1],
        )

    form = _layer("BatchNorm", arguments, Block("gluon.nn.BatchNorm", make, _PARAMETERS))
    return replace(form, training=not given)


_RECURRENT_ATTRIBUTES = {
    "weight_ih": "l0_i2h_weight",
    "weight_hh": "l0_h2h_weight",
    "bias_ih": "l0_i2h_bias",
    "bias_hh": "l0_h2h_bias",
}
"""The block's attributes for the learned inputs, in cuDNN's packing order."""


class _OutputOnly:
    """A layer that takes its states as separate arguments and returns only the output, not the states."""

    def __call__(self, data: Any, *states: Any) -> Any:
        return super().__call__(data, list(states))[0]  # type: ignore[misc]


class _RNN(_OutputOnly, mxnet.gluon.rnn.RNN):  # type: ignore[misc]
    """A ``gluon.rnn.RNN`` layer that returns only its output."""


class _LSTM(_OutputOnly, mxnet.gluon.rnn.LSTM):  # type: ignore[misc]
    """A ``gluon.rnn.LSTM`` layer that returns only its output."""


class _GRU(_OutputOnly, mxnet.gluon.rnn.GRU):  # type: ignore[misc]
    """A ``gluon.rnn.GRU`` layer that returns only its output."""


def _recurrent_form(mode: str, api: str, block: Any, **more: str) -> Form:
    def make(case: Case) -> Any:
        return block(case["hidden"], input_size=case.shapes["data"][2], **more)

    return replace(
        with_parameters("RNN", of={"state_size": "hidden"}, num_layers=1, mode=mode),
        gluon=Block(f"gluon.rnn.{api}", make, _RECURRENT_ATTRIBUTES),
        packed={"parameters": tuple(_RECURRENT_ATTRIBUTES)},
    )


_CONVOLUTION = with_parameters("Convolution", "kernel", "stride", "pad", of={"num_filter": "channels"})
_DENSE = with_parameters("FullyConnected", of={"num_hidden": "units"}, flatten=False)


def _relu(mx: Any, data: Any) -> Any:
    # oneDNN's pass joins Activation, and leaves the operator relu alone
    return mx.Activation(data, act_type="relu")


def _then_relu(before: Callable[[Any, Case], Function]) -> Callable[[Any, Case], Function]:
    def make(mx: Any, case: Case) -> Function:
        function = before(mx, case)
        return lambda *arrays: _relu(mx, function(*arrays))

    return make


def _normalized_convolution(mx: Any, case: Case) -> Any:
    convolution = _CONVOLUTION.make(mx, case)

    def run(data: Any, weight: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        made = convolution(data, weight, bias)
        return mx.BatchNorm(made, gamma, beta, mean, var, eps=EPSILON, fix_gamma=False, use_global_stats=True)

    return run


def _dense_gelu(mx: Any, case: Case) -> Function:
    dense = _DENSE.make(mx, case)
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


_FUSED: Mapping[str, Form] = {
    "conv2d_relu": Form("Convolution Activation", _then_relu(_CONVOLUTION.make)),
    "conv2d_batch_norm": Form("Convolution BatchNorm", _normalized_convolution),
    "conv2d_batch_norm_relu": Form("Convolution BatchNorm Activation", _then_relu(_normalized_convolution)),
    "dense_relu": Form("FullyConnected Activation", _then_relu(_DENSE.make)),
    "dense_gelu": Form("FullyConnected LeakyReLU", _dense_gelu),
    "add_relu": Form("elemwise_add Activation", _then_relu(lambda mx, _: mx.elemwise_add)),
    "layer_norm_residual": Form("elemwise_add LayerNorm", _residual),
    "scaled_dot_product_attention": Form("batch_dot _mul_scalar softmax batch_dot", _attention),
}

FORMS: Mapping[str, Form] = {
    "relu": _activation("relu"),
    "leaky_relu": _leaky("leaky", "LeakyReLU", "slope"),
    "prelu": Form(
        "LeakyReLU",
        lambda mx, _: lambda data, alpha: mx.LeakyReLU(data, alpha, act_type="prelu"),
        gluon=_block("PReLU", alpha="alpha"),
    ),
    "elu": _leaky("elu", "ELU", "alpha"),
    "selu": _leaky("selu", "SELU"),
    "sigmoid": _activation("sigmoid"),
    # MXNet's own slope is 0.2
    "hard_sigmoid": with_parameters("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "tanh": _activation("tanh"),
    "softsign": _activation("softsign"),
    "softplus": _activation("softrelu"),
    "swish": Form(
        "sigmoid elemwise_mul", lambda mx, _: lambda data: data * mx.sigmoid(data), gluon=_block("Swish")
    ),
    "gelu": _leaky("gelu", "GELU"),
    **{name: with_parameters(name, "axis") for name in ("softmax", "log_softmax", "softmin")},
    "softmax_activation": with_parameters("SoftmaxActivation"),
    "dense": replace(
        _DENSE,
        gluon=Block(
            "gluon.nn.Dense",
            lambda case: mxnet.gluon.nn.Dense(case["units"], in_units=case.shapes["data"][1]),
            {"weight": "weight", "bias": "bias"},
        ),
    ),
    "flatten": replace(named("Flatten", "flatten"), gluon=_block("Flatten")),
    "lambda": replace(
        with_parameters("expand_dims", axis=0),
        gluon=_block("Lambda", lambda _: (partial(mxnet.nd.expand_dims, axis=0),)),
    ),
    "dropout": replace(
        with_parameters("Dropout", "p", mode="always"), gluon=Block("gluon.nn.Dropout", _dropout_block)
    ),
    "embedding": replace(
        with_parameters("Embedding", "input_dim", "output_dim"),
        gluon=_block("Embedding", lambda case: (case["input_dim"], case["output_dim"]), weight="weight"),
    ),
    "im2col": _layer("im2col", lambda case: _slides(Window.of(case.parameters, 2))),
    "col2im": _layer(
        "col2im", lambda case: {"output_size": case["output_size"], **_slides(Window.of(case.parameters, 2))}
    ),
    "grid_sample": Form(
        "transpose BilinearSampler",
        # its grid has the two coordinates before the rows and columns
        lambda mx, _: lambda data, grid: mx.BilinearSampler(data, mx.transpose(grid, (0, 3, 1, 2))),
    ),
    "grid_generator": with_parameters("GridGenerator", "target_shape", transform_type="affine"),
    "spatial_transformer": _layer(
        "SpatialTransformer",
        lambda case: {
            "target_shape": case.shapes["data"][2:],
            "transform_type": "affine",
            "sampler_type": "bilinear",
        },
    ),
    "correlation": with_parameters(
        "Correlation", "kernel_size", "max_displacement", "stride1", "stride2", "pad_size"
    ),
    "conv1d": _convolution("Convolution", "Conv1D"),
    "conv2d": _convolution("Convolution", "Conv2D"),
    "conv3d": _convolution("Convolution", "Conv3D"),
    "depthwise_conv2d": _convolution("Convolution", "Conv2D"),
    "conv1d_transpose": _convolution("Deconvolution", "Conv1DTranspose"),
    "conv2d_transpose": _convolution("Deconvolution", "Conv2DTranspose"),
    "conv3d_transpose": _convolution("Deconvolution", "Conv3DTranspose"),
    "max_pool1d": _pooling("max", "MaxPool1D"),
    "max_pool2d": _pooling("max", "MaxPool2D"),
    "max_pool3d": _pooling("max", "MaxPool3D"),
    "avg_pool1d": _pooling("avg", "AvgPool1D"),
    "avg_pool2d": _pooling("avg", "AvgPool2D"),
    "avg_pool3d": _pooling("avg", "AvgPool3D"),
    "sum_pool1d": _pooling("sum"),
    "sum_pool2d": _pooling("sum"),
    "lp_pool1d": _pooling("lp"),
    "lp_pool2d": _pooling("lp"),
    "global_max_pool1d": _whole("max", 1, "GlobalMaxPool1D"),
    "global_max_pool2d": _whole("max", 2, "GlobalMaxPool2D"),
    "global_avg_pool1d": _whole("avg", 1, "GlobalAvgPool1D"),
    "global_avg_pool2d": _whole("avg", 2, "GlobalAvgPool2D"),
    "global_sum_pool1d": _whole("sum", 1),
    "global_sum_pool2d": _whole("sum", 2),
    "adaptive_avg_pool2d": _layer(
        "contrib.AdaptiveAvgPooling2D", lambda case: {"output_size": pair_of(case, "output")}
    ),
    "upsample_nearest": with_parameters("UpSampling", "scale", sample_type="nearest"),
    "resize_bilinear": _layer(
        "contrib.BilinearResize2D",
        lambda case: {
            **dict(zip(("height", "width"), pair_of(case, "output"), strict=True)),
            "align_corners": False,
        },
    ),
    "roi_pool": _layer(
        "ROIPooling",
        lambda case: {"pooled_size": pair_of(case, "output"), "spatial_scale": case["spatial_scale"]},
    ),
    "roi_align": _layer(
        "contrib.ROIAlign",
        lambda case: {
            "pooled_size": pair_of(case, "output"),
            "spatial_scale": case["spatial_scale"],
            "sample_ratio": case["samples"],
        },
    ),
    "batch_norm": _batch_norm(given=True),
    "batch_norm_training": _batch_norm(given=False),
    "layer_norm": with_parameters("LayerNorm", of={"eps": "epsilon"}),
    "instance_norm": with_parameters("InstanceNorm", of={"eps": "epsilon"}),
    "group_norm_per_group": replace(
        with_parameters("GroupNorm", of={"num_groups": "groups", "eps": "epsilon"}),
        gluon=_block("GroupNorm", lambda case: (case["groups"], case["epsilon"]), gamma="gamma", beta="beta"),
    ),
    "l2_normalization": with_parameters("L2Normalization", mode="channel"),
    "lrn": with_parameters("LRN", "alpha", "beta", of={"nsize": "size", "knorm": "bias"}),
    "rnn_tanh": _recurrent_form("rnn_tanh", "RNN", _RNN, activation="tanh"),
    "rnn_relu": _recurrent_form("rnn_relu", "RNN", _RNN, activation="relu"),
    "lstm": _recurrent_form("lstm", "LSTM", _LSTM),
    "gru": _recurrent_form("gru", "GRU", _GRU),
    **_FUSED,
}


MISSING: Mapping[str, str] = {
    "celu": "MXNet 1.9.1 has no operator for it; the elu of its LeakyReLU scales the result only",
    "log_sigmoid": "MXNet 1.9.1 has no operator for it; MXNet 2 adds it to Activation",
    "mish": "MXNet 1.9.1 has no operator for it; MXNet 2 adds it to Activation",
    "hard_swish": "MXNet 1.9.1 has no operator for it",
    "gelu_tanh": "the gelu of MXNet's LeakyReLU is the exact one",
    "group_norm": "MXNet's GroupNorm has one scale and shift for each group, not for each channel",
    "rms_norm": "MXNet has no normalization by the root mean square",
}
