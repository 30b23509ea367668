"""Benchmarks of operators of PyTorch: those of MXNet by their names, with equal inputs."""

from __future__ import annotations

from inferometer.client.library.operators import element_wise, layers, networks, tensors
from inferometer.client.library.operators.benchmark import in_pytorch
from inferometer.client.library.operators.groups import run_all

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

Add = in_pytorch(element_wise.Add)
Subtract = in_pytorch(element_wise.Subtract)
Multiply = in_pytorch(element_wise.Multiply)
Divide = in_pytorch(element_wise.Divide)
Modulo = in_pytorch(element_wise.Modulo)
Power = in_pytorch(element_wise.Power)
Negative = in_pytorch(element_wise.Negative)
IAdd = in_pytorch(element_wise.IAdd)
ISub = in_pytorch(element_wise.ISub)
IMul = in_pytorch(element_wise.IMul)
IDiv = in_pytorch(element_wise.IDiv)
IMod = in_pytorch(element_wise.IMod)
run_all_arithmetic_operations_benchmarks = run_all(map(in_pytorch, element_wise.ARITHMETIC))

Lesser = in_pytorch(element_wise.Lesser)
LesserEqual = in_pytorch(element_wise.LesserEqual)
Greater = in_pytorch(element_wise.Greater)
GreaterEqual = in_pytorch(element_wise.GreaterEqual)
Equal = in_pytorch(element_wise.Equal)
NotEqual = in_pytorch(element_wise.NotEqual)
run_all_comparison_operations_benchmarks = run_all(map(in_pytorch, element_wise.COMPARISON))

LogicalAnd = in_pytorch(element_wise.LogicalAnd)
LogicalOr = in_pytorch(element_wise.LogicalOr)
LogicalXor = in_pytorch(element_wise.LogicalXor)
LogicalNot = in_pytorch(element_wise.LogicalNot)
run_all_logical_comparison_operations_benchmarks = run_all(map(in_pytorch, element_wise.LOGICAL))

Log = in_pytorch(element_wise.Log)
Exp = in_pytorch(element_wise.Exp)
run_all_exponential_and_log_operations_benchmarks = run_all(map(in_pytorch, element_wise.EXPONENTIAL))

Sqrt = in_pytorch(element_wise.Sqrt)
Square = in_pytorch(element_wise.Square)
run_all_powers_operations_benchmarks = run_all(map(in_pytorch, element_wise.POWERS))

Zeros = in_pytorch(tensors.Zeros)
Ones = in_pytorch(tensors.Ones)
ZerosLike = in_pytorch(tensors.ZerosLike)
OnesLike = in_pytorch(tensors.OnesLike)
Full = in_pytorch(tensors.Full)
Arange = in_pytorch(tensors.Arange)
run_all_tensor_creation_operations_benchmarks = run_all(map(in_pytorch, tensors.CREATION))

Dot = in_pytorch(tensors.Dot)
BatchDot = in_pytorch(tensors.BatchDot)
run_all_gemm_operations_benchmarks = run_all(map(in_pytorch, tensors.GEMM))

Sort = in_pytorch(tensors.Sort)
ArgSort = in_pytorch(tensors.ArgSort)
TopK = in_pytorch(tensors.TopK)
ArgMax = in_pytorch(tensors.ArgMax)
ArgMin = in_pytorch(tensors.ArgMin)
run_all_sort_and_search_operations_benchmarks = run_all(map(in_pytorch, tensors.SORTING))

Dense = in_pytorch(layers.Dense)
Flatten = in_pytorch(layers.Flatten)
Lambda = in_pytorch(layers.Lambda)
run_all_nn_basic_operations_benchmarks = run_all(map(in_pytorch, layers.BASIC))

LeakyRelu = in_pytorch(layers.LeakyRelu)
PRelu = in_pytorch(layers.PRelu)
Sigmoid = in_pytorch(layers.Sigmoid)
Softmax = in_pytorch(layers.Softmax)
LogSoftmax = in_pytorch(layers.LogSoftmax)
Tanh = in_pytorch(layers.Tanh)
Elu = in_pytorch(layers.Elu)
Selu = in_pytorch(layers.Selu)
Swish = in_pytorch(layers.Swish)
run_all_nn_activation_operations_benchmarks = run_all(map(in_pytorch, layers.ACTIVATION))

Conv2D = in_pytorch(layers.Conv2D)
Conv2DTranspose = in_pytorch(layers.Conv2DTranspose)
Conv1D = in_pytorch(layers.Conv1D)
Conv1DTranspose = in_pytorch(layers.Conv1DTranspose)
run_all_nn_convolution_operations_benchmarks = run_all(map(in_pytorch, layers.CONVOLUTION))

MaxPool1D = in_pytorch(layers.MaxPool1D)
MaxPool2D = in_pytorch(layers.MaxPool2D)
AvgPool1D = in_pytorch(layers.AvgPool1D)
AvgPool2D = in_pytorch(layers.AvgPool2D)
GlobalMaxPool1D = in_pytorch(layers.GlobalMaxPool1D)
GlobalMaxPool2D = in_pytorch(layers.GlobalMaxPool2D)
GlobalAvgPool1D = in_pytorch(layers.GlobalAvgPool1D)
GlobalAvgPool2D = in_pytorch(layers.GlobalAvgPool2D)
run_all_nn_pooling_operations_benchmarks = run_all(map(in_pytorch, layers.POOLING))

Dropout = in_pytorch(layers.Dropout)
BatchNorm = in_pytorch(layers.BatchNorm)
run_all_normalization_operations_benchmarks = run_all(map(in_pytorch, layers.NORMALIZATION))

RNN = in_pytorch(networks.RNN)
LSTM = in_pytorch(networks.LSTM)
GRU = in_pytorch(networks.GRU)
run_all_recurrent_operations_benchmarks = run_all(map(in_pytorch, networks.RECURRENT))

L1Loss = in_pytorch(networks.L1Loss)
L2Loss = in_pytorch(networks.L2Loss)
SigmoidBinaryCrossEntropyLoss = in_pytorch(networks.SigmoidBinaryCrossEntropyLoss)
SoftmaxCrossEntropyLoss = in_pytorch(networks.SoftmaxCrossEntropyLoss)
run_all_nn_loss_operations_benchmarks = run_all(map(in_pytorch, networks.LOSS))

CustomOpElementwiseAdd = in_pytorch(networks.CustomOpElementwiseAdd)
run_customop_operations_benchmarks = run_all(map(in_pytorch, networks.CUSTOM))

run_all_pytorch_operator_benchmarks = run_all(
    map(
        in_pytorch,
        (
            *element_wise.ARITHMETIC,
            *element_wise.COMPARISON,
            *element_wise.LOGICAL,
            *element_wise.EXPONENTIAL,
            *element_wise.POWERS,
            *tensors.CREATION,
            *tensors.GEMM,
            *tensors.SORTING,
            *layers.BASIC,
            *layers.ACTIVATION,
            *layers.CONVOLUTION,
            *layers.POOLING,
            *layers.NORMALIZATION,
            *networks.RECURRENT,
            *networks.LOSS,
            *networks.CUSTOM,
        ),
    )
)
