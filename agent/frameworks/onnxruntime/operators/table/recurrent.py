"""Recurrent layers in ONNX, whose output has an axis of directions, which is removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node
from inferometer.agent.operators.operator import Case


def _layer(
    kind: str, states: Sequence[str], more: Mapping[str, Any], case: Case, dtype: np.dtype[Any]
) -> Graph:
    inputs = ("data", "weight_ih", "weight_hh", "bias", "", *states)  # without the lengths of sequences
    layer = node(kind, *inputs, output="directions", hidden_size=case["hidden"], **more)
    return Graph([layer, node("Squeeze", "directions", "axes")], constants={"axes": np.array([1])})


def _arranged(order: Sequence[int], arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Puts the gates in ONNX's order, joins the biases, and adds the axis of directions."""

    def gates(name: str) -> NDArray[Any]:
        blocks = np.split(arrays[name], len(order))
        rows: NDArray[Any] = np.concatenate([blocks[gate] for gate in order])
        return rows[np.newaxis]

    return {
        **arrays,
        "weight_ih": gates("weight_ih"),
        "weight_hh": gates("weight_hh"),
        "bias": np.concatenate([gates("bias_ih"), gates("bias_hh")], axis=1),
    }


def _form(kind: str, order: Sequence[int], *states: str, **more: Any) -> Form:
    return Form(f"{kind} Squeeze", partial(_layer, kind, states, more), partial(_arranged, order))


GRAPHS: Mapping[str, Form] = {
    "rnn_tanh": _form("RNN", (0,), "state"),
    "rnn_relu": _form("RNN", (0,), "state", activations=["Relu"]),
    # input, output, forget, cell
    "lstm": _form("LSTM", (0, 3, 1, 2), "state", "cell"),
    # update, reset, new
    "gru": _form("GRU", (1, 0, 2), "state", linear_before_reset=1),
}
MISSING: Mapping[str, str] = {}
