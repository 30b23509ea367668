"""Conversion of small ONNX graphs to MXNet symbols, for the networks that ``tools`` trains.

It supports only the operators of these networks; weights keep their names, with ``_`` instead of ``.``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    np.bool = np.bool_  # type: ignore[attr-defined]  # the alias that mxnet 1.9.1 still uses
    import mxnet

_UNARY: dict[str, Callable[..., Any]] = {
    "Exp": mxnet.sym.exp,
    "Sigmoid": mxnet.sym.sigmoid,
    "Relu": mxnet.sym.relu,
    "Flatten": mxnet.sym.Flatten,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": mxnet.sym.broadcast_add,
    "Mul": mxnet.sym.broadcast_mul,
    "Sub": mxnet.sym.broadcast_sub,
}


class Converter:
    """Builds the symbol of a graph, node by node."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.parameters = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
        self._values = {i.name: mxnet.sym.Variable(i.name) for i in graph.input}
        for node in graph.node:
            self._values[node.output[0]] = self._convert(node)
        self.symbol = mxnet.sym.Group([self._values[o.name] for o in graph.output])

    def save(self, symbol: Path, parameters: Path) -> None:
        """Writes the symbol, and the parameters that it uses."""
        self.symbol.save(str(symbol))
        arguments = set(self.symbol.list_arguments())
        named = {_name(name): value for name, value in self.parameters.items()}
        mxnet.nd.save(
            str(parameters),
            {f"arg:{name}": mxnet.nd.array(value) for name, value in named.items() if name in arguments},
        )

    def _convert(self, node: onnx.NodeProto) -> Any:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        name = _name(node.output[0])
        if node.op_type == "Constant":
            self.parameters[node.output[0]] = numpy_helper.to_array(attributes["value"])
            return None
        if node.op_type in _UNARY:
            return _UNARY[node.op_type](self._value(node.input[0]), name=name)
        if node.op_type in _BINARY:
            first, second = map(self._value, node.input)
            return _BINARY[node.op_type](first, second, name=name)
        return getattr(self, f"_{node.op_type.lower()}")(node, attributes, name)

    def _value(self, name: str) -> Any:
        """Returns the symbol of a value; constants become parameters."""
        if self._values.get(name) is None:
            self._values[name] = mxnet.sym.Variable(_name(name), shape=self.parameters[name].shape)
        return self._values[name]

    def _conv(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        pads = attributes.get("pads", [0, 0, 0, 0])
        return mxnet.sym.Convolution(
            *map(self._value, node.input),
            kernel=tuple(attributes["kernel_shape"]),
            pad=tuple(pads[:2]),
            stride=tuple(attributes.get("strides", [1, 1])),
            num_filter=self.parameters[node.input[1]].shape[0],
            name=name,
        )

    def _convtranspose(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        return mxnet.sym.Deconvolution(
            *map(self._value, node.input),
            kernel=tuple(attributes["kernel_shape"]),
            stride=tuple(attributes["strides"]),
            num_filter=self.parameters[node.input[1]].shape[1],
            no_bias=False,
            name=name,
        )

    def _maxpool(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        return mxnet.sym.Pooling(
            self._value(node.input[0]),
            kernel=tuple(attributes["kernel_shape"]),
            stride=tuple(attributes["strides"]),
            pool_type="max",
            name=name,
        )

    def _gemm(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        if attributes.get("transB") != 1:
            raise SystemExit(f"{node.name}: is not a fully connected layer")
        units = self.parameters[node.input[1]].shape[0]
        return mxnet.sym.FullyConnected(*map(self._value, node.input), num_hidden=units, name=name)

    def _concat(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        return mxnet.sym.concat(*map(self._value, node.input), dim=attributes["axis"], name=name)

    def _transpose(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        return mxnet.sym.transpose(self._value(node.input[0]), axes=tuple(attributes["perm"]), name=name)

    def _reshape(self, node: onnx.NodeProto, attributes: Any, name: str) -> Any:
        shape = tuple(int(side) for side in self.parameters[node.input[1]])
        return mxnet.sym.reshape(self._value(node.input[0]), shape=shape, name=name)


def _name(name: str) -> str:
    return name.strip("/").replace("/", "_").replace(".", "_")
