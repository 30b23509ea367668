"""MXNet's layers: operators of the optimized graph, each with its own arguments or those of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

from inferometer.agent.operators.operator import OwnCase, Shape
from inferometer.evaluators.kinds.operators.traced.layer_case import (
    NoRowError,
    binary,
    convolution,
    dense,
    global_pooling,
    pooling,
    shapes_of,
    value_of,
)
from inferometer.evaluators.traces.layers import Layer

_Part: TypeAlias = tuple[str, Mapping[str, Any]]
_UNARY = {
    **{name: name for name in ("relu", "sigmoid", "tanh", "exp", "log", "softmax", "log_softmax")},
    "Flatten": "flatten",
    "BatchNorm": "batch_norm",
    "LayerNorm": "layer_norm",
}
_ACTIVATIONS = {**{name: name for name in ("relu", "sigmoid", "tanh", "softsign")}, "softrelu": "softplus"}
_LEAKY = {"leaky": "leaky_relu", "elu": "elu", "selu": "selu", "gelu": "gelu"}
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}
_BINARY = {
    **{f"elemwise_{name}": operator for name, operator in _ARITHMETIC.items()},
    **{f"broadcast_{name}": operator for name, operator in _ARITHMETIC.items()},
    **dict.fromkeys(("_plus", "_Plus"), "add"),
    **dict.fromkeys(("_minus", "_Minus"), "subtract"),
}


def read(layer: Layer) -> OwnCase:
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
        return _convolution(shapes, given, folded="BatchNorm" in following)
    if name == "FullyConnected":
        return _dense(shapes, given)
    if name == "Pooling":
        return _pooling(shapes[0], given)
    if name in _BINARY:
        return binary(_BINARY[name], shapes)
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


def _convolution(shapes: list[Shape], given: Mapping[str, Any], *, folded: bool) -> OwnCase:
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


def _dense(shapes: list[Shape], given: Mapping[str, Any]) -> OwnCase:
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
        found = _UNARY.get(name)
    if found is None:
        raise NoRowError("the table has no such operator")
    return found


def _parameters(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in ("softmax", "log_softmax"):
        return {"axis": given.get("axis", -1)}
    if name == "LeakyReLU" and given.get("act_type", "leaky") == "leaky":
        return {"slope": given.get("slope", 0.25)}
    return {}
