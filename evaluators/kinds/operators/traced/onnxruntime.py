"""ONNX Runtime's layers: nodes of the optimized graph; the trace has their shapes but not their attributes.

The stride and padding of a convolution are inferred from the shapes: the smallest stride and the most even
padding that fit. The window of a pooling cannot be inferred.
"""

from __future__ import annotations

from math import prod

from inferometer.agent.operators.operator import OwnCase, Shape
from inferometer.evaluators.kinds.operators.traced.layer_case import (
    NoRowError,
    binary,
    convolution,
    dense,
    global_pooling,
    shapes_of,
)
from inferometer.evaluators.traces.layers import Layer

_UNARY = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Gelu": "gelu",
    "Erf": "erf",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Elu": "elu",
    "Selu": "selu",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Flatten": "flatten",
    "LayerNormalization": "layer_norm",
}
_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_DENSE = frozenset({"Gemm", "FusedGemm"})
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})


def read(layer: Layer) -> OwnCase:
    """Returns the case of the table for a layer; raises NoRowError.

    An activation or a sum that is fused into a convolution is omitted: it is applied while the output is
    written.
    """
    name, shapes = layer.type, shapes_of(layer.input_shapes)
    if name in _CONVOLUTIONS:
        return _convolution(shapes, shapes_of(layer.output_shapes)[0])
    if name in _DENSE:
        return _dense(shapes, shapes_of(layer.output_shapes)[0])
    if name == "MatMul":
        return _matrix_product(shapes, shapes_of(layer.output_shapes)[0])
    if name in ("GlobalAveragePool", "GlobalMaxPool"):
        return global_pooling("avg" if "Average" in name else "max", shapes[0])
    if name in ("MaxPool", "AveragePool"):
        raise NoRowError("ONNX Runtime's trace does not show its window")
    if name in _LAYOUT:
        raise NoRowError("it changes the layout for ONNX Runtime's own kernels, and is not an ONNX operator")
    if name in _BINARY:
        return binary(_BINARY[name], shapes)
    if name in _UNARY:
        return OwnCase(_UNARY[name], {"data": shapes[0]})
    raise NoRowError("the table has no such operator")


def _convolution(shapes: list[Shape], output: Shape) -> OwnCase:
    if len(shapes) < 2:
        raise NoRowError("the trace does not show its weights' shape")
    data, weight, *others = shapes
    windows = [_stride_and_pad(*sides) for sides in zip(data[2:], weight[2:], output[2:], strict=True)]
    return convolution(
        data,
        weight,
        stride=tuple(stride for stride, _ in windows),
        pad=tuple(pad for _, pad in windows),
        dilate=(1,) * len(windows),
        groups=data[1] // weight[1],
        bias=(weight[0],) in others,
    )


def _stride_and_pad(size: int, kernel: int, output: int) -> tuple[int, int]:
    """Returns the smallest fitting stride, and the padding up to half the kernel that best keeps the size."""
    even = (kernel - 1) // 2
    pads = sorted(range(kernel // 2 + 1), key=lambda pad: abs(pad - even))
    for stride in range(1, size + 1):
        for pad in pads:
            if (size + 2 * pad - kernel) // stride + 1 == output:
                return stride, pad
    raise NoRowError("no stride and padding fit its shapes without a dilation")


def _dense(shapes: list[Shape], output: Shape) -> OwnCase:
    """Returns the case of a dense layer; the trace lacks its weights if ONNX Runtime has packed them."""
    return dense(shapes[0], (output[-1], shapes[0][-1]), bias=output[-1:] in shapes[1:])


def _matrix_product(shapes: list[Shape], output: Shape) -> OwnCase:
    lhs = shapes[0]
    if len(shapes) == 1 or len(shapes[1]) == 2:
        return OwnCase("dot", {"lhs": (prod(lhs[:-1]), lhs[-1]), "rhs": (lhs[-1], output[-1])})
    rhs = shapes[1]
    if lhs[:-2] != rhs[:-2]:
        raise NoRowError("its batches broadcast, but those of the table do not")
    count = prod(lhs[:-2])
    return OwnCase("batch_dot", {"lhs": (count, *lhs[-2:]), "rhs": (count, *rhs[-2:])})
