"""Benchmarks of the layers of ``mxnet.gluon.nn``."""

from __future__ import annotations

from inferometer.client.library.operators.groups import run_all
from inferometer.client.library.operators.layers import (
    ACTIVATION,
    BASIC,
    CONVOLUTION,
    NORMALIZATION,
    POOLING,
    AvgPool1D,
    AvgPool2D,
    BatchNorm,
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Dense,
    Dropout,
    Elu,
    Flatten,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    Lambda,
    LeakyRelu,
    LogSoftmax,
    MaxPool1D,
    MaxPool2D,
    PRelu,
    Selu,
    Sigmoid,
    Softmax,
    Swish,
    Tanh,
)

__all__ = [
    "AvgPool1D",
    "AvgPool2D",
    "BatchNorm",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Dense",
    "Dropout",
    "Elu",
    "Flatten",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "Lambda",
    "LeakyRelu",
    "LogSoftmax",
    "MaxPool1D",
    "MaxPool2D",
    "PRelu",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Swish",
    "Tanh",
    "run_all_gluon_nn_activation_operations_benchmarks",
    "run_all_gluon_nn_basic_operations_benchmarks",
    "run_all_gluon_nn_convolution_operations_benchmarks",
    "run_all_gluon_nn_pooling_operations_benchmarks",
    "run_all_gluon_normalization_operations_benchmarks",
]

run_all_gluon_nn_basic_operations_benchmarks = run_all(BASIC)
run_all_gluon_nn_activation_operations_benchmarks = run_all(ACTIVATION)
run_all_gluon_nn_convolution_operations_benchmarks = run_all(CONVOLUTION)
run_all_gluon_nn_pooling_operations_benchmarks = run_all(POOLING)
run_all_gluon_normalization_operations_benchmarks = run_all(NORMALIZATION)
