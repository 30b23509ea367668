# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of PyTorch operators under the names of their MXNet counterparts, with equal inputs."""

from inferometer.client.api.operators.benchmark import PyTorchBenchmark, RunAll

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Add",
    "Arange",
    "ArgMax",
    "ArgMin",
    "ArgSort",
    "AvgPool1D",
    "AvgPool2D",
    "BatchDot",
    "BatchNorm",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "CustomOpElementwiseAdd",
    "Dense",
    "Divide",
    "Dot",
    "Dropout",
    "Elu",
    "Equal",
    "Exp",
    "Flatten",
    "Full",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "Greater",
    "GreaterEqual",
    "IAdd",
    "IDiv",
    "IMod",
    "IMul",
    "ISub",
    "L1Loss",
    "L2Loss",
    "Lambda",
    "LeakyRelu",
    "Lesser",
    "LesserEqual",
    "Log",
    "LogSoftmax",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "MaxPool1D",
    "MaxPool2D",
    "Modulo",
    "Multiply",
    "Negative",
    "NotEqual",
    "Ones",
    "OnesLike",
    "PRelu",
    "Power",
    "Selu",
    "Sigmoid",
    "SigmoidBinaryCrossEntropyLoss",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Sort",
    "Sqrt",
    "Square",
    "Subtract",
    "Swish",
    "Tanh",
    "TopK",
    "Zeros",
    "ZerosLike",
    "run_all_arithmetic_operations_benchmarks",
    "run_all_comparison_operations_benchmarks",
    "run_all_exponential_and_log_operations_benchmarks",
    "run_all_gemm_operations_benchmarks",
    "run_all_logical_comparison_operations_benchmarks",
    "run_all_nn_activation_operations_benchmarks",
    "run_all_nn_basic_operations_benchmarks",
    "run_all_nn_convolution_operations_benchmarks",
    "run_all_nn_loss_operations_benchmarks",
    "run_all_nn_pooling_operations_benchmarks",
    "run_all_normalization_operations_benchmarks",
    "run_all_powers_operations_benchmarks",
    "run_all_pytorch_operator_benchmarks",
    "run_all_recurrent_operations_benchmarks",
    "run_all_sort_and_search_operations_benchmarks",
    "run_all_tensor_creation_operations_benchmarks",
    "run_customop_operations_benchmarks",
]

class GRU(PyTorchBenchmark):
    """A gated recurrent unit."""

class LSTM(PyTorchBenchmark):
    """A long short-term memory layer."""

class RNN(PyTorchBenchmark):
    """A recurrent layer with ReLU activation."""

class Add(PyTorchBenchmark):
    """lhs + rhs."""

class Arange(PyTorchBenchmark):
    """The numbers from start to stop, each repeated."""

class ArgMax(PyTorchBenchmark):
    """The index of the largest value of each row."""

class ArgMin(PyTorchBenchmark):
    """The index of the smallest value of each row."""

class ArgSort(PyTorchBenchmark):
    """The indices that sort each row."""

class AvgPool1D(PyTorchBenchmark):
    """Average pooling over one axis."""

class AvgPool2D(PyTorchBenchmark):
    """Average pooling over two axes."""

class BatchDot(PyTorchBenchmark):
    """The products of matrices in two batches."""

class BatchNorm(PyTorchBenchmark):
    """Batch normalization as in training."""

class Conv1D(PyTorchBenchmark):
    """A convolution over one axis."""

class Conv1DTranspose(PyTorchBenchmark):
    """A transposed convolution over one axis."""

class Conv2D(PyTorchBenchmark):
    """A convolution over two axes."""

class Conv2DTranspose(PyTorchBenchmark):
    """A transposed convolution over two axes."""

class CustomOpElementwiseAdd(PyTorchBenchmark):
    """data + 1 by a custom operator, which mainly shows the cost of calling one."""

class Dense(PyTorchBenchmark):
    """A dense layer."""

class Divide(PyTorchBenchmark):
    """lhs / rhs."""

class Dot(PyTorchBenchmark):
    """The product of two matrices."""

class Dropout(PyTorchBenchmark):
    """Dropout as in training."""

class Elu(PyTorchBenchmark):
    """The exponential linear unit."""

class Equal(PyTorchBenchmark):
    """lhs == rhs."""

class Exp(PyTorchBenchmark):
    """The exponential of data."""

class Flatten(PyTorchBenchmark):
    """All axes but the first merged into one."""

class Full(PyTorchBenchmark):
    """A new tensor filled with val."""

class GlobalAvgPool1D(PyTorchBenchmark):
    """Global average pooling over one axis."""

class GlobalAvgPool2D(PyTorchBenchmark):
    """Global average pooling over two axes."""

class GlobalMaxPool1D(PyTorchBenchmark):
    """Global max pooling over one axis."""

class GlobalMaxPool2D(PyTorchBenchmark):
    """Global max pooling over two axes."""

class Greater(PyTorchBenchmark):
    """lhs > rhs."""

class GreaterEqual(PyTorchBenchmark):
    """lhs >= rhs."""

class IAdd(PyTorchBenchmark):
    """this += other."""

class IDiv(PyTorchBenchmark):
    """this /= other."""

class IMod(PyTorchBenchmark):
    """this %= other."""

class IMul(PyTorchBenchmark):
    """this *= other."""

class ISub(PyTorchBenchmark):
    """this -= other."""

class L1Loss(PyTorchBenchmark):
    """The mean of absolute differences, for each sample."""

class L2Loss(PyTorchBenchmark):
    """Half of the mean of squared differences, for each sample."""

class Lambda(PyTorchBenchmark):
    """A function as a block: a new first axis."""

class LeakyRelu(PyTorchBenchmark):
    """A ReLU with a slope of alpha below 0."""

class Lesser(PyTorchBenchmark):
    """lhs < rhs."""

class LesserEqual(PyTorchBenchmark):
    """lhs <= rhs."""

class Log(PyTorchBenchmark):
    """The natural logarithm of data."""

class LogSoftmax(PyTorchBenchmark):
    """The logarithm of the softmax over the last axis."""

class LogicalAnd(PyTorchBenchmark):
    """lhs and rhs."""

class LogicalNot(PyTorchBenchmark):
    """not data."""

class LogicalOr(PyTorchBenchmark):
    """lhs or rhs."""

class LogicalXor(PyTorchBenchmark):
    """Either lhs or rhs."""

class MaxPool1D(PyTorchBenchmark):
    """Max pooling over one axis."""

class MaxPool2D(PyTorchBenchmark):
    """Max pooling over two axes."""

class Modulo(PyTorchBenchmark):
    """The remainder of lhs / rhs."""

class Multiply(PyTorchBenchmark):
    """lhs * rhs."""

class Negative(PyTorchBenchmark):
    """-data."""

class NotEqual(PyTorchBenchmark):
    """lhs != rhs."""

class Ones(PyTorchBenchmark):
    """A new tensor of ones."""

class OnesLike(PyTorchBenchmark):
    """A new tensor of ones, of the shape of data."""

class PRelu(PyTorchBenchmark):
    """A ReLU with a learned slope below 0."""

class Power(PyTorchBenchmark):
    """base to the power of exp."""

class Selu(PyTorchBenchmark):
    """The scaled exponential linear unit."""

class Sigmoid(PyTorchBenchmark):
    """1 / (1 + exp(-data))."""

class SigmoidBinaryCrossEntropyLoss(PyTorchBenchmark):
    """The binary cross-entropy of logits, for each sample."""

class Softmax(PyTorchBenchmark):
    """Softmax over the last axis."""

class SoftmaxCrossEntropyLoss(PyTorchBenchmark):
    """The cross-entropy of logits and probabilities, for each sample."""

class Sort(PyTorchBenchmark):
    """The sorted values of each row."""

class Sqrt(PyTorchBenchmark):
    """The square root of data."""

class Square(PyTorchBenchmark):
    """The square of data."""

class Subtract(PyTorchBenchmark):
    """lhs - rhs."""

class Swish(PyTorchBenchmark):
    """data times its sigmoid."""

class Tanh(PyTorchBenchmark):
    """The hyperbolic tangent."""

class TopK(PyTorchBenchmark):
    """The k largest values of each row, and their indices."""

class Zeros(PyTorchBenchmark):
    """A new tensor of zeros."""

class ZerosLike(PyTorchBenchmark):
    """A new tensor of zeros, of the shape of data."""

run_all_arithmetic_operations_benchmarks: RunAll
run_all_comparison_operations_benchmarks: RunAll
run_all_exponential_and_log_operations_benchmarks: RunAll
run_all_gemm_operations_benchmarks: RunAll
run_all_logical_comparison_operations_benchmarks: RunAll
run_all_nn_activation_operations_benchmarks: RunAll
run_all_nn_basic_operations_benchmarks: RunAll
run_all_nn_convolution_operations_benchmarks: RunAll
run_all_nn_loss_operations_benchmarks: RunAll
run_all_nn_pooling_operations_benchmarks: RunAll
run_all_normalization_operations_benchmarks: RunAll
run_all_powers_operations_benchmarks: RunAll
run_all_pytorch_operator_benchmarks: RunAll
run_all_recurrent_operations_benchmarks: RunAll
run_all_sort_and_search_operations_benchmarks: RunAll
run_all_tensor_creation_operations_benchmarks: RunAll
run_customop_operations_benchmarks: RunAll
