"""A symbol whose operators oneDNN's pass has joined, which is read from the symbol that it returns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from inferometer.agent.frameworks.mxnet.operators.calls import Call, Inputs, SymbolCall
from inferometer.agent.frameworks.mxnet.operators.functions import Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.runner import NotSupportedHereError

_BACKEND = "MKLDNN"
"""MXNet 1.9's name of oneDNN's pass; it gives a warning for ``ONEDNN`` and joins nothing."""
_VARIABLE = "null"


class FusedCall(SymbolCall):
    """A symbol after oneDNN's pass, bound to the inputs; see ``OperatorCall``. It has no gradient.

    Raises:
        NotSupportedHereError: The pass joins nothing here.
    """

    def __init__(self, given: Inputs, api: str, function: Function) -> None:
        Call.__init__(self, given, api, function)
        symbol = function(*(mxnet.sym.Variable(name) for name in given.arrays))
        symbol = symbol.get_backend_symbol(_BACKEND)
        self.fused = _seen(symbol)
        if not self.fused:
            raise NotSupportedHereError("oneDNN's pass of MXNet joins none of these operators")
        _check(given)
        self._executor = symbol.bind(
            given.context,
            args={name: given.arrays[name] for name in symbol.list_arguments()},
            aux_states={name: given.arrays[name] for name in symbol.list_auxiliary_states()},
            grad_req=_VARIABLE,
        )


def _check(given: Inputs) -> None:
    if given.differentiable:
        raise NotSupportedHereError("MXNet has no gradient of what oneDNN's pass joins")
    if given.context.device_type != "cpu":
        raise NotSupportedHereError("oneDNN's pass of MXNet joins operators on the CPU only")
    if any(each.dtype is not np.float32 for each in given.arrays.values()):
        raise NotSupportedHereError("oneDNN's pass of MXNet joins operators of float32 only")


def _seen(symbol: Any) -> str:
    """The joined nodes of a symbol, each with its operators."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return "; ".join(
        f"{node['name']}: {', '.join(_operators(node))}" for node in nodes if len(_operators(node)) > 1
    )


def _operators(node: dict[str, Any]) -> list[str]:
    return [
        each["op"]
        for inner in node.get("subgraphs", ())
        for each in inner["nodes"]
        if each["op"] != _VARIABLE
    ]
