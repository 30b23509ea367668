"""PyTorch's layers: ATen operators, with their arguments by position in the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from inferometer.agent.operators.operator import OwnCase, Shape
from inferometer.evaluators.kinds.operators.traced.layer_case import (
    NoRowError,
    Reader,
    binary,
    convolution,
    dense,
    global_pooling,
    pooling,
    shapes_of,
    value_of,
)
from inferometer.evaluators.traces.layers import Layer

_UNARY = {
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
_BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}
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


def _convolution(layer: Layer) -> OwnCase:
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


def _dense(layer: Layer) -> OwnCase:
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


def _matrix_product(layer: Layer) -> OwnCase:
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
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _dense,
    "addmm": _add_mm,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    **{f"{kind}_pool{rank}d": _pool(kind) for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{rank}d": _adaptive(kind) for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{name: _on_axis(name) for name in ("softmax", "log_softmax")},
    **dict.fromkeys(("matmul", "mm", "bmm"), _matrix_product),
    "cat": _concat,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "lstm": _lstm,
    "flatten": _unary("flatten"),
}


def _readers() -> Mapping[str, Callable[[Layer], OwnCase]]:
    found = dict(_OTHERS)
    for name, operator in _UNARY.items():
        found[name] = found[f"{name}_"] = _unary(operator)
    found |= {name: _binary(operator) for name, operator in _BINARY.items()}
    found |= {name: _in_place(operator) for name, operator in _IN_PLACE.items()}
    return found


_READERS = _readers()
"""The readers, keyed by the ATen name of the operator."""


def read(layer: Layer) -> OwnCase:
    """Returns the case of the table for a layer; raises NoRowError."""
    name = layer.type.removeprefix("aten::")
    if name in _NOTHING:
        raise NoRowError("it computes nothing")
    if name not in _READERS:
        raise NoRowError("the table has no such operator")
    return _READERS[name](layer)
