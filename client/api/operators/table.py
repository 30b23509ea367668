"""The benchmarks of dl-operator-benchmark, each as an operator of the table with the original inputs.

``benchmark`` creates a class from each row for each framework. To add a benchmark, add its row to
``BENCHMARKS``; ``make stubs`` then makes it known to type checkers and editors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeAlias

Inputs: TypeAlias = Mapping[str, Any]
"""The inputs of a benchmark by name: tensor sizes, parameters, initializers, dtype and backward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A row of the table: one benchmark.

    Attributes:
        name: The name of the class.
        operator: The operator's name in the operator table.
        summary: The docstring of the class.
        tensors: The default shapes of its tensors.
        result: The part of the result's name between ``MX_`` and ``_Forward``, not including
            ``Gluon_Imperative_``; empty means the name of the class.
        parameters: The other inputs with their defaults.
        fixed: The inputs that cannot be changed, because the operator has no such parameter.
        names: The names of tensors and parameters in the operator table, where they differ.
        instead_of_none: For inputs that may be None, the inputs whose values then replace them.
        initializers: The inputs that fill tensors: ``initializer`` fills all, ``data_initializer`` only one.
        form: MXNet's form: ``nd`` or ``gluon``.
        backward: Whether it also runs the backward pass by default.
        warmup: The default number of warm-up runs.
        runs: The default number of measured runs.
    """

    name: str
    operator: str
    summary: str
    _: KW_ONLY
    tensors: Inputs = field(default_factory=dict)
    result: str = ""
    parameters: Inputs = field(default_factory=dict)
    fixed: Inputs = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    instead_of_none: Mapping[str, str] = field(default_factory=dict)
    initializers: tuple[str, ...] = ("initializer",)
    form: str = "nd"
    backward: bool = True
    warmup: int = 10
    runs: int = 50


_SQUARE = (1024, 1024)
_DATA = ("data_initializer",)

# Kinds of rows, which share inputs.
_unary = partial(Definition, tensors={"data": _SQUARE})
_binary = partial(Definition, tensors={"lhs": _SQUARE, "rhs": _SQUARE})
_in_place = partial(
    Definition,
    tensors={"this": _SQUARE, "other": _SQUARE},
    names={"this": "lhs", "other": "rhs"},
    backward=False,
)
_like = partial(_unary, backward=False)
_creation = partial(Definition, initializers=(), backward=False)
_product = partial(
    Definition,
    parameters={"transpose_a": False, "transpose_b": False},
    fixed={"forward_stype": None},
    names={"transpose_a": "transpose_lhs", "transpose_b": "transpose_rhs"},
)
_rows = partial(Definition, tensors={"data": (1024, 1000)}, parameters={"axis": -1}, backward=False)
_ordered = partial(_rows, fixed={"is_ascend": True})
_extreme = partial(_rows, fixed={"keepdims": False})

_layer = partial(Definition, form="gluon", initializers=_DATA)
_SERIES, _IMAGES = {"data": (32, 3, 256)}, {"data": (32, 3, 256, 256)}
_of_volume = partial(_layer, tensors={"data": (128, 512, 512)})
_of_images = partial(_layer, tensors=_IMAGES)
_windowed = partial(
    _layer,
    names={
        "kernel_size": "kernel",
        "pool_size": "kernel",
        "strides": "stride",
        "padding": "pad",
        "output_padding": "output_pad",
        "dilation": "dilate",
    },
    warmup=5,
    runs=25,
)
_KERNEL_1D = {"channels": 64, "kernel_size": 3, "strides": 1, "padding": 1}
_KERNEL_2D = {"channels": 64, "kernel_size": (3, 3), "strides": (1, 1), "padding": (0, 0)}
_convolution_1d = partial(
    _windowed,
    tensors=_SERIES,
    parameters={**_KERNEL_1D, "dilation": 1},
    fixed={"layout": "NCW", "activation": None},
)
_convolution_2d = partial(
    _windowed,
    tensors=_IMAGES,
    parameters={**_KERNEL_2D, "dilation": (1, 1)},
    fixed={"layout": "NCHW", "activation": None},
)
_global_1d = partial(_windowed, tensors=_SERIES, fixed={"layout": "NCW"})
_global_2d = partial(_windowed, tensors=_IMAGES, fixed={"layout": "NCHW"})
_BESIDE = {"strides": "pool_size"}
"""Makes pooling windows adjacent: unless strides are given, the stride is the size of the window."""
_pooling_1d = partial(
    _global_1d, parameters={"pool_size": 2, "strides": None, "padding": 0}, instead_of_none=_BESIDE
)
_pooling_2d = partial(
    _global_2d, parameters={"pool_size": (2, 2), "strides": None, "padding": (0, 0)}, instead_of_none=_BESIDE
)
_recurrent = partial(
    _layer,
    tensors={"data": (25, 32, 256)},
    parameters={"hidden_size": 100},
    fixed={"num_layers": 1, "layout": "TNC", "dropout": 0, "bidirectional": False},
    names={"hidden_size": "hidden"},
)
_loss = partial(
    _layer,
    tensors={"pred": (32, 1000, 1), "label": (32, 1000, 1)},
    fixed={"weight": 1.0},
    initializers=("pred_initializer", "label_initializer"),
    backward=False,
)

BENCHMARKS: Mapping[str, tuple[Definition, ...]] = {
    "mxnet.nd.run_all_arithmetic_operations_benchmarks": (
        _binary("Add", "add", "lhs + rhs."),
        _binary("Subtract", "subtract", "lhs - rhs."),
        _binary("Multiply", "multiply", "lhs * rhs."),
        _binary("Divide", "divide", "lhs / rhs."),
        _binary("Modulo", "modulo", "The remainder of lhs / rhs."),
        Definition(
            "Power",
            "power",
            "base to the power of exp.",
            tensors={"base": _SQUARE, "exp": _SQUARE},
            names={"base": "lhs", "exp": "rhs"},
        ),
        _unary("Negative", "negative", "-data."),
        _in_place("IAdd", "iadd", "this += other.", result="Inplace_Add"),
        _in_place("ISub", "isub", "this -= other.", result="Inplace_Subtract"),
        _in_place("IMul", "imul", "this *= other.", result="Inplace_Multiply"),
        _in_place("IDiv", "idiv", "this /= other.", result="Inplace_Division"),
        _in_place("IMod", "imod", "this %= other.", result="Inplace_Modulo"),
    ),
    "mxnet.nd.run_all_comparison_operations_benchmarks": (
        _binary("Lesser", "less", "lhs < rhs."),
        _binary("LesserEqual", "less_equal", "lhs <= rhs.", result="Lesser_Equal"),
        _binary("Greater", "greater", "lhs > rhs."),
        _binary("GreaterEqual", "greater_equal", "lhs >= rhs.", result="Greater_Equal"),
        _binary("Equal", "equal", "lhs == rhs."),
        _binary("NotEqual", "not_equal", "lhs != rhs.", result="Not_Equal"),
    ),
    "mxnet.nd.run_all_logical_comparison_operations_benchmarks": (
        _binary("LogicalAnd", "logical_and", "lhs and rhs.", result="Logical_And"),
        _binary("LogicalOr", "logical_or", "lhs or rhs.", result="Logical_Or"),
        _binary("LogicalXor", "logical_xor", "Either lhs or rhs.", result="Logical_Xor"),
        _unary("LogicalNot", "logical_not", "not data.", result="Logical_Not", initializers=_DATA),
    ),
    "mxnet.nd.run_all_exponential_and_log_operations_benchmarks": (
        _unary("Log", "log", "The natural logarithm of data."),
        _unary("Exp", "exp", "The exponential of data."),
    ),
    "mxnet.nd.run_all_powers_operations_benchmarks": (
        _unary("Sqrt", "sqrt", "The square root of data.", initializers=_DATA),
        _unary("Square", "square", "The square of data.", initializers=_DATA),
    ),
    "mxnet.nd.run_all_tensor_creation_operations_benchmarks": (
        _creation("Zeros", "zeros", "A new tensor of zeros.", parameters={"shape": _SQUARE}),
        _creation("Ones", "ones", "A new tensor of ones.", parameters={"shape": _SQUARE}),
        _like("ZerosLike", "zeros_like", "A new tensor of zeros, of the shape of data.", result="Zeros_Like"),
        _like("OnesLike", "ones_like", "A new tensor of ones, of the shape of data.", result="Ones_Like"),
        _creation(
            "Full",
            "full",
            "A new tensor filled with val.",
            parameters={"shape": _SQUARE, "val": 1.0},
            names={"val": "value"},
        ),
        _creation(
            "Arange",
            "arange",
            "The numbers from start to stop, each repeated.",
            parameters={"start": 1, "stop": 100, "step": 1.0, "repeat": 10},
        ),
    ),
    "mxnet.nd.run_all_gemm_operations_benchmarks": (
        _product("Dot", "dot", "The product of two matrices.", tensors={"lhs": _SQUARE, "rhs": (1024, 1000)}),
        _product(
            "BatchDot",
            "batch_dot",
            "The products of matrices in two batches.",
            tensors={"lhs": (32, 1024, 1024), "rhs": (32, 1024, 1000)},
            result="Batch_Dot",
        ),
    ),
    "mxnet.nd.run_all_sort_and_search_operations_benchmarks": (
        _ordered("Sort", "sort", "The sorted values of each row."),
        _ordered("ArgSort", "argsort", "The indices that sort each row."),
        _rows(
            "TopK",
            "topk",
            "The k largest values of each row, and their indices.",
            parameters={"axis": -1, "k": 10},
            fixed={"ret_typ": "both", "is_ascend": False},
        ),
        _extreme("ArgMax", "argmax", "The index of the largest value of each row."),
        _extreme("ArgMin", "argmin", "The index of the smallest value of each row."),
    ),
    "mxnet.gluon.nn.run_all_gluon_nn_basic_operations_benchmarks": (
        _layer(
            "Dense",
            "dense",
            "A dense layer.",
            tensors={"data": (512, 512)},
            parameters={"units": 256},
            fixed={"activation": None, "use_bias": True, "flatten": True},
        ),
        _of_volume("Flatten", "flatten", "All axes but the first merged into one."),
        _of_volume("Lambda", "lambda", "A function as a block: a new first axis.", result="Lambda_Batchify"),
    ),
    "mxnet.gluon.nn.run_all_gluon_nn_activation_operations_benchmarks": (
        _of_images(
            "LeakyRelu",
            "leaky_relu",
            "A ReLU with a slope of alpha below 0.",
            parameters={"alpha": 0.01},
            names={"alpha": "slope"},
        ),
        _of_images(
            "PRelu",
            "prelu",
            "A ReLU with a learned slope below 0.",
            initializers=("data_initializer", "alpha_initializer"),
        ),
        _of_images("Sigmoid", "sigmoid", "1 / (1 + exp(-data))."),
        _of_images("Softmax", "softmax", "Softmax over the last axis.", form="nd"),
        _of_images(
            "LogSoftmax",
            "log_softmax",
            "The logarithm of the softmax over the last axis.",
            result="Log_Softmax",
            form="nd",
        ),
        _of_images("Tanh", "tanh", "The hyperbolic tangent."),
        _of_images("Elu", "elu", "The exponential linear unit."),
        _of_images("Selu", "selu", "The scaled exponential linear unit."),
        _of_images("Swish", "swish", "data times its sigmoid."),
    ),
    "mxnet.gluon.nn.run_all_gluon_nn_convolution_operations_benchmarks": (
        _convolution_2d("Conv2D", "conv2d", "A convolution over two axes."),
        _convolution_2d(
            "Conv2DTranspose",
            "conv2d_transpose",
            "A transposed convolution over two axes.",
            parameters={**_KERNEL_2D, "output_padding": (0, 0), "dilation": (1, 1)},
        ),
        _convolution_1d("Conv1D", "conv1d", "A convolution over one axis."),
        _convolution_1d(
            "Conv1DTranspose",
            "conv1d_transpose",
            "A transposed convolution over one axis.",
            parameters={**_KERNEL_1D, "output_padding": 0, "dilation": 1},
        ),
    ),
    "mxnet.gluon.nn.run_all_gluon_nn_pooling_operations_benchmarks": (
        _pooling_1d("MaxPool1D", "max_pool1d", "Max pooling over one axis."),
        _pooling_2d("MaxPool2D", "max_pool2d", "Max pooling over two axes."),
        _pooling_1d("AvgPool1D", "avg_pool1d", "Average pooling over one axis."),
        _pooling_2d("AvgPool2D", "avg_pool2d", "Average pooling over two axes."),
        _global_1d("GlobalMaxPool1D", "global_max_pool1d", "Global max pooling over one axis."),
        _global_2d("GlobalMaxPool2D", "global_max_pool2d", "Global max pooling over two axes."),
        _global_1d("GlobalAvgPool1D", "global_avg_pool1d", "Global average pooling over one axis."),
        _global_2d("GlobalAvgPool2D", "global_avg_pool2d", "Global average pooling over two axes."),
    ),
    "mxnet.gluon.nn.run_all_gluon_normalization_operations_benchmarks": (
        _of_images(
            "Dropout", "dropout", "Dropout as in training.", parameters={"rate": 0.5}, names={"rate": "p"}
        ),
        _of_images("BatchNorm", "batch_norm_training", "Batch normalization as in training."),
    ),
    "mxnet.gluon.rnn.run_all_gluon_recurrent_operations_benchmarks": (
        _recurrent(
            "RNN",
            "rnn_relu",
            "A recurrent layer with ReLU activation.",
            fixed={
                "num_layers": 1,
                "activation": "relu",
                "layout": "TNC",
                "dropout": 0,
                "bidirectional": False,
            },
        ),
        _recurrent("LSTM", "lstm", "A long short-term memory layer."),
        _recurrent("GRU", "gru", "A gated recurrent unit."),
    ),
    "mxnet.gluon.loss.run_all_gluon_nn_loss_operations_benchmarks": (
        _loss("L1Loss", "l1_loss", "The mean of absolute differences, for each sample."),
        _loss("L2Loss", "l2_loss", "Half of the mean of squared differences, for each sample."),
        _loss(
            "SigmoidBinaryCrossEntropyLoss",
            "sigmoid_bce",
            "The binary cross-entropy of logits, for each sample.",
        ),
        _loss(
            "SoftmaxCrossEntropyLoss",
            "softmax_ce",
            "The cross-entropy of logits and probabilities, for each sample.",
            fixed={"weight": 1.0, "axis": -1, "sparse_label": False},
        ),
    ),
    "mxnet.custom.run_customop_operations_benchmarks": (
        Definition(
            "CustomOpElementwiseAdd",
            "custom_add_one",
            "data + 1 by a custom operator, which mainly shows the cost of calling one.",
            tensors={"data": (1000, 1)},
            result="CustomOp_Elementwise_Add",
            initializers=_DATA,
        ),
    ),
}
"""The original's benchmarks in their original order, keyed by the MXNet function that runs each group."""
