# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of the layers of ``mxnet.gluon.nn``."""

from inferometer.client.api.operators.benchmark import MXNetBenchmark, RunAll

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

class AvgPool1D(MXNetBenchmark):
    """Average pooling over one axis."""

class AvgPool2D(MXNetBenchmark):
    """Average pooling over two axes."""

class BatchNorm(MXNetBenchmark):
    """Batch normalization as in training."""

class Conv1D(MXNetBenchmark):
    """A convolution over one axis."""

class Conv1DTranspose(MXNetBenchmark):
    """A transposed convolution over one axis."""

class Conv2D(MXNetBenchmark):
    """A convolution over two axes."""

class Conv2DTranspose(MXNetBenchmark):
    """A transposed convolution over two axes."""

class Dense(MXNetBenchmark):
    """A dense layer."""

class Dropout(MXNetBenchmark):
    """Dropout as in training."""

class Elu(MXNetBenchmark):
    """The exponential linear unit."""

class Flatten(MXNetBenchmark):
    """All axes but the first merged into one."""

class GlobalAvgPool1D(MXNetBenchmark):
    """Global average pooling over one axis."""

class GlobalAvgPool2D(MXNetBenchmark):
    """Global average pooling over two axes."""

class GlobalMaxPool1D(MXNetBenchmark):
    """Global max pooling over one axis."""

class GlobalMaxPool2D(MXNetBenchmark):
    """Global max pooling over two axes."""

class Lambda(MXNetBenchmark):
    """A function as a block: a new first axis."""

class LeakyRelu(MXNetBenchmark):
    """A ReLU with a slope of alpha below 0."""

class LogSoftmax(MXNetBenchmark):
    """The logarithm of the softmax over the last axis."""

class MaxPool1D(MXNetBenchmark):
    """Max pooling over one axis."""

class MaxPool2D(MXNetBenchmark):
    """Max pooling over two axes."""

class PRelu(MXNetBenchmark):
    """A ReLU with a learned slope below 0."""

class Selu(MXNetBenchmark):
    """The scaled exponential linear unit."""

class Sigmoid(MXNetBenchmark):
    """1 / (1 + exp(-data))."""

class Softmax(MXNetBenchmark):
    """Softmax over the last axis."""

class Swish(MXNetBenchmark):
    """data times its sigmoid."""

class Tanh(MXNetBenchmark):
    """The hyperbolic tangent."""

run_all_gluon_nn_activation_operations_benchmarks: RunAll
run_all_gluon_nn_basic_operations_benchmarks: RunAll
run_all_gluon_nn_convolution_operations_benchmarks: RunAll
run_all_gluon_nn_pooling_operations_benchmarks: RunAll
run_all_gluon_normalization_operations_benchmarks: RunAll
