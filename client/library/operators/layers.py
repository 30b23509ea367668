"""Layers of networks as classes: dense, activations, convolutions, poolings and normalizations."""

from __future__ import annotations

from typing import Any

from inferometer.client.library.operators.benchmark import MXNetBenchmark
from inferometer.client.library.operators.definition import Definition, Inputs

_IMAGES = {"data": (32, 3, 256, 256)}
_SERIES = {"data": (32, 3, 256)}
_VOLUME = {"data": (128, 512, 512)}
_DATA = ("data_initializer",)
_WINDOW = {
    "kernel_size": "kernel",
    "pool_size": "kernel",
    "strides": "stride",
    "padding": "pad",
    "output_padding": "output_pad",
    "dilation": "dilate",
}


def _layer(operator: str, block: str, tensors: Inputs, **others: Any) -> Definition:
    """A block of Gluon."""
    result = f"Gluon_Imperative_{block}"
    return Definition(
        **{"operator": operator, "result": result, "tensors": tensors, "form": "gluon", "initializers": _DATA}
        | others
    )


def _convolution(operator: str, block: str, tensors: Inputs) -> Definition:
    one = tensors is _SERIES
    transposed = {"output_padding": 0 if one else (0, 0)} if block.endswith("Transpose") else {}
    parameters = {
        "channels": 64,
        "kernel_size": 3 if one else (3, 3),
        "strides": 1 if one else (1, 1),
        "padding": 1 if one else (0, 0),
        **transposed,
        "dilation": 1 if one else (1, 1),
    }
    return _windowed(operator, block, tensors, parameters, {"activation": None})


def _pooling(operator: str, block: str, tensors: Inputs) -> Definition:
    """Windows beside each other, unless the strides are given."""
    one = tensors is _SERIES
    parameters = {"pool_size": 2 if one else (2, 2), "strides": None, "padding": 0 if one else (0, 0)}
    return _windowed(operator, block, tensors, parameters)


def _global_pooling(operator: str, block: str, tensors: Inputs) -> Definition:
    return _windowed(operator, block, tensors, {})


def _windowed(
    operator: str, block: str, tensors: Inputs, parameters: Inputs, fixed: Inputs | None = None
) -> Definition:
    others: Inputs = {"layout": "NCW" if tensors is _SERIES else "NCHW", **(fixed or {})}
    return _layer(
        operator,
        block,
        tensors,
        parameters={**parameters, **others},
        names=_WINDOW,
        fixed=tuple(others),
        instead_of_none={"strides": "pool_size"},
        warmup=5,
        runs=25,
    )


class Dense(MXNetBenchmark):
    """A dense layer."""

    definition = _layer(
        "dense",
        "Dense",
        {"data": (512, 512)},
        parameters={"units": 256, "activation": None, "use_bias": True, "flatten": True},
        fixed=("activation", "use_bias", "flatten"),
    )


class Flatten(MXNetBenchmark):
    """All axes but the first as one."""

    definition = _layer("flatten", "Flatten", _VOLUME)


class Lambda(MXNetBenchmark):
    """A function as a block: a new first axis."""

    definition = _layer("lambda", "Lambda_Batchify", _VOLUME)


class LeakyRelu(MXNetBenchmark):
    """A rectifier with a slope of alpha below 0."""

    definition = _layer(
        "leaky_relu", "LeakyRelu", _IMAGES, parameters={"alpha": 0.01}, names={"alpha": "slope"}
    )


class PRelu(MXNetBenchmark):
    """A rectifier with a learned slope below 0."""

    definition = _layer("prelu", "PRelu", _IMAGES, initializers=("data_initializer", "alpha_initializer"))


class Sigmoid(MXNetBenchmark):
    """1 / (1 + exp(-data))."""

    definition = _layer("sigmoid", "Sigmoid", _IMAGES)


class Softmax(MXNetBenchmark):
    """Softmax over the last axis."""

    definition = Definition(operator="softmax", result="Softmax", tensors=_IMAGES, initializers=_DATA)


class LogSoftmax(MXNetBenchmark):
    """The logarithm of the softmax over the last axis."""

    definition = Definition(operator="log_softmax", result="Log_Softmax", tensors=_IMAGES, initializers=_DATA)


class Tanh(MXNetBenchmark):
    """The hyperbolic tangent."""

    definition = _layer("tanh", "Tanh", _IMAGES)


class Elu(MXNetBenchmark):
    """The exponential linear unit."""

    definition = _layer("elu", "Elu", _IMAGES)


class Selu(MXNetBenchmark):
    """The scaled exponential linear unit."""

    definition = _layer("selu", "Selu", _IMAGES)


class Swish(MXNetBenchmark):
    """data times its sigmoid."""

    definition = _layer("swish", "Swish", _IMAGES)


class Conv2D(MXNetBenchmark):
    """A convolution over two axes."""

    definition = _convolution("conv2d", "Conv2D", _IMAGES)


class Conv2DTranspose(MXNetBenchmark):
    """A transposed convolution over two axes."""

    definition = _convolution("conv2d_transpose", "Conv2DTranspose", _IMAGES)


class Conv1D(MXNetBenchmark):
    """A convolution over one axis."""

    definition = _convolution("conv1d", "Conv1D", _SERIES)


class Conv1DTranspose(MXNetBenchmark):
    """A transposed convolution over one axis."""

    definition = _convolution("conv1d_transpose", "Conv1DTranspose", _SERIES)


class MaxPool1D(MXNetBenchmark):
    """The greatest of each window over one axis."""

    definition = _pooling("max_pool1d", "MaxPool1D", _SERIES)


class MaxPool2D(MXNetBenchmark):
    """The greatest of each window over two axes."""

    definition = _pooling("max_pool2d", "MaxPool2D", _IMAGES)


class AvgPool1D(MXNetBenchmark):
    """The mean of each window over one axis."""

    definition = _pooling("avg_pool1d", "AvgPool1D", _SERIES)


class AvgPool2D(MXNetBenchmark):
    """The mean of each window over two axes."""

    definition = _pooling("avg_pool2d", "AvgPool2D", _IMAGES)


class GlobalMaxPool1D(MXNetBenchmark):
    """The greatest of each channel over one axis."""

    definition = _global_pooling("global_max_pool1d", "GlobalMaxPool1D", _SERIES)


class GlobalMaxPool2D(MXNetBenchmark):
    """The greatest of each channel over two axes."""

    definition = _global_pooling("global_max_pool2d", "GlobalMaxPool2D", _IMAGES)


class GlobalAvgPool1D(MXNetBenchmark):
    """The mean of each channel over one axis."""

    definition = _global_pooling("global_avg_pool1d", "GlobalAvgPool1D", _SERIES)


class GlobalAvgPool2D(MXNetBenchmark):
    """The mean of each channel over two axes."""

    definition = _global_pooling("global_avg_pool2d", "GlobalAvgPool2D", _IMAGES)


class Dropout(MXNetBenchmark):
    """Dropout as in training."""

    definition = _layer("dropout", "Dropout", _IMAGES, parameters={"rate": 0.5}, names={"rate": "p"})


class BatchNorm(MXNetBenchmark):
    """Batch normalization as in training."""

    definition = _layer("batch_norm_training", "BatchNorm", _IMAGES)


BASIC = (
    Dense,
    Flatten,
    Lambda,
)
ACTIVATION = (
    LeakyRelu,
    PRelu,
    Sigmoid,
    Softmax,
    LogSoftmax,
    Tanh,
    Elu,
    Selu,
    Swish,
)
CONVOLUTION = (
    Conv2D,
    Conv2DTranspose,
    Conv1D,
    Conv1DTranspose,
)
POOLING = (
    MaxPool1D,
    MaxPool2D,
    AvgPool1D,
    AvgPool2D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
)
NORMALIZATION = (
    Dropout,
    BatchNorm,
)
