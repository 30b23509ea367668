"""The mapping of a trace's layers to operators of the table, with one reader per framework.

MXNet's layers are operators of the optimized graph, each with its own arguments or those of its parts.

ONNX Runtime's are nodes of the optimized graph; the trace has their shapes but not their attributes. The
stride and padding of a convolution are inferred from the shapes: the smallest stride and the most even
padding that fit. The window of a pooling cannot be inferred.

PyTorch's are ATen operators, with their arguments by position in the trace.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import OwnCase, Shape
from inferometer.evaluators.traces.layers import Layer


class NoRowError(Exception):
    """A layer has no row in the table, or the trace lacks the details; the message says why."""


Reader: TypeAlias = Callable[[Layer], OwnCase]
"""Returns the case of the table for a layer; raises NoRowError."""


def shapes_of(texts: Sequence[str], at_least: int = 1) -> list[Shape]:
    """Returns the shapes in texts such as ``8x3x224x224``.

    Raises:
        NoRowError: There are fewer than ``at_least``.
    """
    shapes = [tuple(int(side) for side in text.split("x")) for text in texts]
    if len(shapes) < at_least:
        raise NoRowError("the trace does not show its shapes")
    return shapes


def value_of(text: str) -> Any:
    """Returns the value of a text such as ``(3, 3)``; lists become tuples, and non-literals stay texts."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # also of long nesting
        return text
    return tuple(value) if isinstance(value, list) else value


def binary(operator: str, shapes: Sequence[Shape]) -> OwnCase:
    """Returns the case of element-wise arithmetic, in its broadcasting form if the shapes differ."""
    if len(shapes) < 2:
        raise NoRowError("its other operand is a number, but the table's is a tensor")
    lhs, rhs = shapes[:2]
    name = operator if lhs == rhs else f"broadcast_{operator}"
    return OwnCase(name, {"lhs": lhs, "rhs": rhs})


def convolution(
    data: Shape, weight: Shape, *, stride: Shape, pad: Shape, dilate: Shape, groups: int, bias: bool
) -> OwnCase:
    """Returns a convolution case; ``weight`` is output channels × input channels per group × kernel."""
    window = {"kernel": weight[2:], "stride": stride, "pad": pad, "dilate": dilate}
    rank = len(weight) - 2
    return OwnCase(
        f"conv{rank}d", {"data": data}, {"channels": weight[0], **window, "groups": groups, "bias": bias}
    )


def dense(data: Shape, weight: Shape, *, bias: bool) -> OwnCase:
    """Returns a dense layer; ``weight`` is units × inputs. All axes of ``data`` but the last are merged."""
    rows = (prod(data[:-1]), data[-1])
    if not bias:
        return OwnCase("dot", {"lhs": rows, "rhs": weight}, {"transpose_rhs": True})
    return OwnCase("dense", {"data": rows}, {"units": weight[0]})


def pooling(
    kind: str, data: Shape, *, kernel: Shape, stride: Shape, pad: Shape, **others: bool | Shape
) -> OwnCase:
    """Returns the case of a pooling; ``kind`` is ``max`` or ``avg``."""
    parameters = {"kernel": kernel, "stride": stride, "pad": pad, **others}
    return OwnCase(f"{kind}_pool{len(data) - 2}d", {"data": data}, parameters)


def global_pooling(kind: str, data: Shape) -> OwnCase:
    """Returns the case of a pooling over all spatial axes."""
    return OwnCase(f"global_{kind}_pool{len(data) - 2}d", {"data": data})


_Part: TypeAlias = tuple[str, Mapping[str, Any]]
_MXNET_UNARY = {
    **{name: name for name in ("relu", "sigmoid", "tanh", "exp", "log", "softmax", "log_softmax")},
    "Flatten": "flatten",
    "BatchNorm": "batch_norm",
    "LayerNorm": "layer_norm",
}
_ACTIVATIONS = {**{name: name for name in ("relu", "sigmoid", "tanh", "softsign")}, "softrelu": "softplus"}
_LEAKY = {"leaky": "leaky_relu", "elu": "elu", "selu": "selu", "gelu": "gelu"}
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}
_MXNET_BINARY = {
    **{f"elemwise_{name}": operator for name, operator in _ARITHMETIC.items()},
    **{f"broadcast_{name}": operator for name, operator in _ARITHMETIC.items()},
    **dict.fromkeys(("_plus", "_Plus"), "add"),
    **dict.fromkeys(("_minus", "_Minus"), "subtract"),
}


def read_mxnet(layer: Layer) -> OwnCase:
    """Returns the case of the table for a layer; raises NoRowError.

    A fused operator maps to its first part, with the bias that results from a fused batch normalization: the
    following parts, an activation or a sum, are applied while the output is written.
    """
    parts = [_part(text) for text in layer.arguments]
    if not parts:
        raise NoRowError("the trace does not show its arguments; trace the model again")
    (name, given), following = parts[0], [part for part, _ in parts[1:]]
    shapes = shapes_of(layer.input_shapes)
    if name == "Convolution":
        return _mxnet_convolution(shapes, given, folded="BatchNorm" in following)
    if name == "FullyConnected":
        return _mxnet_dense(shapes, given)
    if name == "Pooling":
        return _pooling(shapes[0], given)
    if name in _MXNET_BINARY:
        return binary(_MXNET_BINARY[name], shapes)
    return OwnCase(_unary_name(name, given), {"data": shapes[0]}, _parameters(name, given))


def _part(text: str) -> _Part:
    """Returns the operator and the arguments in a text such as ``Activation(act_type=relu)``."""
    name, _, inside = text.removesuffix(")").partition("(")
    given: dict[str, Any] = {}
    last = ""
    for piece in inside.split(", "):
        key, equals, value = piece.partition("=")
        if equals:
            last = key
            given[key] = value
        elif last:  # a piece of a tuple
            given[last] += f", {piece}"
    return name, {key: value_of(value) for key, value in given.items()}


def _mxnet_convolution(shapes: list[Shape], given: Mapping[str, Any], *, folded: bool) -> OwnCase:
    kernel = given["kernel"]
    rank = len(kernel)
    return convolution(
        shapes[0],
        (given["num_filter"], 0, *kernel),
        stride=_axes(given, "stride", 1, rank),
        pad=_axes(given, "pad", 0, rank),
        dilate=_axes(given, "dilate", 1, rank),
        groups=given.get("num_group", 1),
        bias=folded or not given.get("no_bias", False),
    )


def _axes(given: Mapping[str, Any], name: str, default: int, rank: int) -> Shape:
    value: Shape = given.get(name) or (default,) * rank
    return value


def _mxnet_dense(shapes: list[Shape], given: Mapping[str, Any]) -> OwnCase:
    data = shapes[0]
    if given.get("flatten", True) and len(data) > 2:
        data = (data[0], prod(data[1:]))
    return dense(data, (given["num_hidden"], data[-1]), bias=not given.get("no_bias", False))


def _pooling(data: Shape, given: Mapping[str, Any]) -> OwnCase:
    kind = given.get("pool_type", "max")
    if kind not in ("max", "avg"):
        raise NoRowError(f"the table has no pooling of the type {kind}")
    if given.get("global_pool", False):
        return global_pooling(kind, data)
    kernel = given["kernel"]
    rank = len(kernel)
    return pooling(
        kind, data, kernel=kernel, stride=_axes(given, "stride", 1, rank), pad=_axes(given, "pad", 0, rank)
    )


def _unary_name(name: str, given: Mapping[str, Any]) -> str:
    if name == "Activation":
        found = _ACTIVATIONS.get(given.get("act_type", ""))
    elif name == "LeakyReLU":
        found = _LEAKY.get(given.get("act_type", "leaky"))
    else:
        found = _MXNET_UNARY.get(name)
    if found is None:
        raise NoRowError("the table has no such operator")
    return found


def _parameters(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in ("softmax", "log_softmax"):
        return {"axis": given.get("axis", -1)}
    if name == "LeakyReLU" and given.get("act_type", "leaky") == "leaky":
        return {"slope": given.get("slope", 0.25)}
    return {}


_ONNX_UNARY = {
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
_ONNX_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_DENSE = frozenset({"Gemm", "FusedGemm"})
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})


def read_onnxruntime(layer: Layer) -> OwnCase:
    """Returns the case of the table for a layer; raises NoRowError.

    An activation or a sum that is fused into a convolution is omitted: it is applied while the output is
    written.
    """
    name, shapes = layer.type, shapes_of(layer.input_shapes)
    if name in _CONVOLUTIONS:
        return _onnx_convolution(shapes, shapes_of(layer.output_shapes)[0])
    if name in _DENSE:
        return _onnx_dense(shapes, shapes_of(layer.output_shapes)[0])
    if name == "MatMul":
        return _onnx_matrix_product(shapes, shapes_of(layer.output_shapes)[0])
    if name in ("GlobalAveragePool", "GlobalMaxPool"):
        return global_pooling("avg" if "Average" in name else "max", shapes[0])
    if name in ("MaxPool", "AveragePool"):
        raise NoRowError("ONNX Runtime's trace does not show its window")
    if name in _LAYOUT:
        raise NoRowError("it changes the layout for ONNX Runtime's own kernels, and is not an ONNX operator")
    if name in _ONNX_BINARY:
        return binary(_ONNX_BINARY[name], shapes)
    if name in _ONNX_UNARY:
        return OwnCase(_ONNX_UNARY[name], {"data": shapes[0]})
    raise NoRowError("the table has no such operator")


def _onnx_convolution(shapes: list[Shape], output: Shape) -> OwnCase:
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


def _onnx_dense(shapes: list[Shape], output: Shape) -> OwnCase:
    """Returns the case of a dense layer; the trace lacks its weights if ONNX Runtime has packed them."""
    return dense(shapes[0], (output[-1], shapes[0][-1]), bias=output[-1:] in shapes[1:])


def _onnx_matrix_product(shapes: list[Shape], output: Shape) -> OwnCase:
    lhs = shapes[0]
    if len(shapes) == 1 or len(shapes[1]) == 2:
        return OwnCase("dot", {"lhs": (prod(lhs[:-1]), lhs[-1]), "rhs": (lhs[-1], output[-1])})
    rhs = shapes[1]
    if lhs[:-2] != rhs[:-2]:
        raise NoRowError("its batches broadcast, but those of the table do not")
    count = prod(lhs[:-2])
    return OwnCase("batch_dot", {"lhs": (count, *lhs[-2:]), "rhs": (count, *rhs[-2:])})


_ATEN_UNARY = {
    **{
        name: name for name in ("relu", "sigmoid", "tanh", "gelu", "selu", "exp", "log", "sqrt", "abs", "erf")
    },
    "silu": "swish",
    "hardswish": "hard_swish",
    "hardsigmoid": "hard_sigmoid",
    "relu6": "relu6",
    "neg": "negative",
    "rsqrt": "rsqrt",
    "contiguous": "copy",
    "clone": "copy",
}
_ATEN_BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}
_IN_PLACE = {"add_": "iadd", "sub_": "isub", "mul_": "imul", "div_": "idiv"}
_JOINED = ("data0", "data1", "data2")
_NOTHING = frozenset(
    {"to", "detach", "lift_fresh", "resolve_conj", "resolve_neg", "view", "expand", "unsqueeze", "squeeze"}
)


def _argument(layer: Layer, position: int) -> Any:
    """Returns an argument by its position.

    Raises:
        NoRowError: The trace lacks it, as traces of earlier versions do.
    """
    if position >= len(layer.arguments) or not layer.arguments[position]:
        raise NoRowError("the trace does not show its arguments; trace the model again")
    return value_of(layer.arguments[position])


def _per_axis(value: Any, rank: int) -> Shape:
    numbers = value if isinstance(value, tuple) else (value,)
    return tuple(numbers) * rank if len(numbers) == 1 else tuple(numbers)


def _aten_convolution(layer: Layer) -> OwnCase:
    shapes = shapes_of(layer.input_shapes, 2)
    rank = len(shapes[1]) - 2
    stride, pad, dilate = (_per_axis(_argument(layer, position), rank) for position in (3, 4, 5))
    return convolution(
        *shapes[:2], stride=stride, pad=pad, dilate=dilate, groups=_argument(layer, 6), bias=len(shapes) > 2
    )


def _transposed(layer: Layer) -> OwnCase:
    data, weight, *bias = shapes_of(layer.input_shapes, 2)
    rank, groups = len(weight) - 2, _argument(layer, 6)
    window = {
        name: _per_axis(_argument(layer, position), rank)
        for name, position in (("stride", 3), ("pad", 4), ("output_pad", 5), ("dilate", 7))
    }
    parameters = {"channels": weight[1] * groups, "kernel": weight[2:], "groups": groups, **window}
    return OwnCase(f"conv{rank}d_transpose", {"data": data}, {**parameters, "bias": bool(bias)})


def _aten_dense(layer: Layer) -> OwnCase:
    shapes = shapes_of(layer.input_shapes, 2)
    return dense(*shapes[:2], bias=len(shapes) > 2)


def _add_mm(layer: Layer) -> OwnCase:
    _, lhs, rhs = shapes_of(layer.input_shapes, 3)[:3]
    return dense(lhs, rhs[::-1], bias=True)


def _batch_norm(layer: Layer) -> OwnCase:
    data = shapes_of(layer.input_shapes)[0]
    return OwnCase("batch_norm_training" if _argument(layer, 5) else "batch_norm", {"data": data})


def _layer_norm(layer: Layer) -> OwnCase:
    data = shapes_of(layer.input_shapes)[0]
    if len(_per_axis(_argument(layer, 1), 1)) != 1:
        raise NoRowError("it normalizes several axes, but the table's layer_norm only the last")
    return OwnCase("layer_norm", {"data": data})


def _pool(kind: str) -> Reader:
    def read(layer: Layer) -> OwnCase:
        data = shapes_of(layer.input_shapes)[0]
        rank = len(data) - 2
        kernel = _per_axis(_argument(layer, 1), rank)
        stride = _per_axis(_argument(layer, 2) or kernel, rank)
        return pooling(kind, data, kernel=kernel, stride=stride, pad=_per_axis(_argument(layer, 3), rank))

    return read


def _concat(layer: Layer) -> OwnCase:
    shapes = shapes_of(layer.input_shapes)
    if len(shapes) != len(_JOINED):
        raise NoRowError(f"it joins {len(shapes)} tensors, but the table's concat joins {len(_JOINED)}")
    return OwnCase("concat", dict(zip(_JOINED, shapes, strict=True)), {"axis": _argument(layer, 1)})


def _adaptive(kind: str) -> Reader:
    def read(layer: Layer) -> OwnCase:
        data = shapes_of(layer.input_shapes)[0]
        rank = len(data) - 2
        size = _per_axis(_argument(layer, 1), rank)
        if set(size) == {1}:
            return global_pooling(kind, data)
        if any(side % part for side, part in zip(data[2:], size, strict=True)):
            raise NoRowError("its windows differ in size, but those of the table do not")
        kernel = tuple(side // part for side, part in zip(data[2:], size, strict=True))
        return pooling(kind, data, kernel=kernel, stride=kernel, pad=(0,) * rank)

    return read


def _on_axis(operator: str) -> Reader:
    return lambda layer: OwnCase(
        operator, {"data": shapes_of(layer.input_shapes)[0]}, {"axis": _argument(layer, 1)}
    )


def _unary(operator: str) -> Reader:
    return lambda layer: OwnCase(operator, {"data": shapes_of(layer.input_shapes)[0]})


def _binary(operator: str) -> Reader:
    return lambda layer: binary(operator, shapes_of(layer.input_shapes))


def _in_place(operator: str) -> Reader:
    def read(layer: Layer) -> OwnCase:
        found = binary(operator, shapes_of(layer.input_shapes))
        if found.operator != operator:
            raise NoRowError("it broadcasts in place, but the table's in-place operators do not")
        return found

    return read


def _aten_matrix_product(layer: Layer) -> OwnCase:
    lhs, rhs = shapes_of(layer.input_shapes, 2)[:2]
    if len(lhs) == len(rhs) == 2:
        return OwnCase("dot", {"lhs": lhs, "rhs": rhs})
    if len(lhs) != len(rhs) or lhs[:-2] != rhs[:-2]:
        raise NoRowError("its batches broadcast, but those of the table do not")
    count = prod(lhs[:-2])
    return OwnCase("batch_dot", {"lhs": (count, *lhs[-2:]), "rhs": (count, *rhs[-2:])})


def _embedding(layer: Layer) -> OwnCase:
    weight, indices = shapes_of(layer.input_shapes, 2)[:2]
    return OwnCase("embedding", {"data": indices}, {"input_dim": weight[0], "output_dim": weight[1]})


def _attention(layer: Layer) -> OwnCase:
    query, key, value = shapes_of(layer.input_shapes, 3)[:3]
    return OwnCase("attention", {"query": query, "key": key, "value": value})


def _dropout(layer: Layer) -> OwnCase:
    if not _argument(layer, 2):
        raise NoRowError("it does nothing in inference")
    return OwnCase("dropout", {"data": shapes_of(layer.input_shapes)[0]}, {"p": _argument(layer, 1)})


def _lstm(layer: Layer) -> OwnCase:
    data, state = shapes_of(layer.input_shapes, 2)[:2]
    count, bidirectional, batch_first = (_argument(layer, position) for position in (4, 7, 8))
    if count != 1 or bidirectional:
        raise NoRowError("it has several layers or directions, but the table's lstm has one")
    if batch_first:
        data = (data[1], data[0], *data[2:])
    return OwnCase("lstm", {"data": data}, {"hidden": state[-1]})


_OTHERS: Mapping[str, Reader] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _aten_convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _aten_dense,
    "addmm": _add_mm,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    **{f"{kind}_pool{rank}d": _pool(kind) for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{rank}d": _adaptive(kind) for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{name: _on_axis(name) for name in ("softmax", "log_softmax")},
    **dict.fromkeys(("matmul", "mm", "bmm"), _aten_matrix_product),
    "cat": _concat,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "lstm": _lstm,
    "flatten": _unary("flatten"),
}


def _readers() -> Mapping[str, Callable[[Layer], OwnCase]]:
    found = dict(_OTHERS)
    for name, operator in _ATEN_UNARY.items():
        found[name] = found[f"{name}_"] = _unary(operator)
    found |= {name: _binary(operator) for name, operator in _ATEN_BINARY.items()}
    found |= {name: _in_place(operator) for name, operator in _IN_PLACE.items()}
    return found


_ATEN_READERS = _readers()
"""The readers, keyed by the ATen name of the operator."""


def read_pytorch(layer: Layer) -> OwnCase:
    """Returns the case of the table for a layer; raises NoRowError."""
    name = layer.type.removeprefix("aten::")
    if name in _NOTHING:
        raise NoRowError("it computes nothing")
    if name not in _ATEN_READERS:
        raise NoRowError("the table has no such operator")
    return _ATEN_READERS[name](layer)


READERS: Mapping[str, Reader] = {
    "PyTorch": read_pytorch,
    "MXNet": read_mxnet,
    "ONNXRuntime": read_onnxruntime,
}
