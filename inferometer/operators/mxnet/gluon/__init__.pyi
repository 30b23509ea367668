# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of the layers and losses of ``mxnet.gluon``, including ``nn``, ``rnn`` and ``loss``."""

from inferometer.client.api.operators.benchmark import RunAll
from inferometer.operators.mxnet.gluon import loss, nn, rnn
from inferometer.operators.mxnet.gluon.loss import (
    L1Loss,
    L2Loss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
)
from inferometer.operators.mxnet.gluon.nn import (
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
from inferometer.operators.mxnet.gluon.rnn import (
    GRU,
    LSTM,
    RNN,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
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
    "L1Loss",
    "L2Loss",
    "Lambda",
    "LeakyRelu",
    "LogSoftmax",
    "MaxPool1D",
    "MaxPool2D",
    "PRelu",
    "Selu",
    "Sigmoid",
    "SigmoidBinaryCrossEntropyLoss",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Swish",
    "Tanh",
    "loss",
    "nn",
    "rnn",
    "run_all_gluon_nn_activation_operations_benchmarks",
    "run_all_gluon_nn_basic_operations_benchmarks",
    "run_all_gluon_nn_convolution_operations_benchmarks",
    "run_all_gluon_nn_loss_operations_benchmarks",
    "run_all_gluon_nn_pooling_operations_benchmarks",
    "run_all_gluon_normalization_operations_benchmarks",
    "run_all_gluon_recurrent_operations_benchmarks",
]

run_all_gluon_nn_activation_operations_benchmarks: RunAll
run_all_gluon_nn_basic_operations_benchmarks: RunAll
run_all_gluon_nn_convolution_operations_benchmarks: RunAll
run_all_gluon_nn_loss_operations_benchmarks: RunAll
run_all_gluon_nn_pooling_operations_benchmarks: RunAll
run_all_gluon_normalization_operations_benchmarks: RunAll
run_all_gluon_recurrent_operations_benchmarks: RunAll
