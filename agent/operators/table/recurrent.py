"""Recurrent layers of one direction over whole sequences; the output is the hidden state of each step.

Data is (steps, samples, features). The weights are those of all gates one below the other: ``weight_ih`` for
the data, ``weight_hh`` for the state, with a bias for each. The order is input, forget, cell and output of an
LSTM, and reset, update and new of a GRU, which resets the state's share of the new one after its matrix
product (as cuDNN's). Only the matrix products count as floating-point operations; their gradients with
respect to both factors take as many each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Shape,
    Sizes,
    TensorSpec,
    Values,
)

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""The inputs that a layer learns, in the order in which cuDNN packs them."""


def _tensors(gates: int, states: tuple[str, ...], rectified: bool, case: Case) -> tuple[TensorSpec, ...]:
    data, hidden = case.shapes["data"], case["hidden"]
    if len(data) != 3:
        raise ValueError(f"data has {len(data)} axes; it has steps, samples and features")
    if hidden < 1:
        raise ValueError(f"hidden is {hidden}; it is 1 or more")
    rows = gates * hidden
    # rectified units are on or off by their bias, so that a gradient's small steps turn none
    bias = TensorSpec(
        "bias_ih", (rows,), Values.SIGNS if rectified else Values.NORMAL, scale=2.0 if rectified else 0.1
    )
    share = 0.25 if rectified else 1.0
    return (
        TensorSpec("data", data),
        TensorSpec("weight_ih", (rows, data[2]), scale=share * data[2] ** -0.5),
        TensorSpec("weight_hh", (rows, hidden), scale=share * hidden**-0.5),
        bias,
        TensorSpec("bias_hh", (rows,), scale=0.1),
        *(TensorSpec(state, (1, data[1], hidden), Values.UNIT) for state in states),
    )


_Step = Callable[[NDArray[Any], NDArray[Any], list[NDArray[Any]]], list[NDArray[Any]]]


def _unrolled(gates: int, step: _Step, arrays: Arrays, parameters: Parameters) -> Arrays:
    """Calls the step with the gates' (gates, samples, hidden) shares of data and state, and the states."""
    data, weight_ih, weight_hh, bias_ih, bias_hh, *initial = arrays
    states = [state[0] for state in initial]
    samples, hidden = states[0].shape
    outputs = np.empty((len(data), samples, hidden))

    def by_gate(values: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
        sums: NDArray[Any] = values @ weight.T + bias
        return sums.reshape(samples, gates, hidden).swapaxes(0, 1)

    for inputs, output in zip(data, outputs, strict=True):
        states = step(by_gate(inputs, weight_ih, bias_ih), by_gate(states[0], weight_hh, bias_hh), states)
        output[...] = states[0]
    return (outputs,)


def _sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    half: NDArray[Any] = 0.5 * (1 + np.tanh(values / 2))
    return half


def _tanh(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.tanh(of_data[0] + of_state[0])]


def _relu(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.maximum(of_data[0] + of_state[0], 0)]


def _lstm(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    taken, kept, new, shown = of_data + of_state
    cell = _sigmoid(kept) * states[1] + _sigmoid(taken) * np.tanh(new)
    return [_sigmoid(shown) * np.tanh(cell), cell]


def _gru(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    reset, kept = (_sigmoid(of_data[gate] + of_state[gate]) for gate in (0, 1))
    new = np.tanh(of_data[2] + reset * of_state[2])
    return [(1 - kept) * new + kept * states[0]]


def _flops(gates: int, case: Case, outputs: Sequence[Shape]) -> int:
    steps, samples, hidden = outputs[0]
    return 2 * steps * samples * gates * hidden * (case.shapes["data"][2] + hidden)


def _sizes(*shape: int, hidden: int) -> Sizes:
    return ({"data": shape}, {"hidden": hidden})


_PRESETS: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (_sizes(4, 3, 6, hidden=5),),
    Preset.NORMAL: (_sizes(25, 32, 256, hidden=100),),
    Preset.LARGE: (_sizes(50, 64, 512, hidden=256),),
    Preset.SKEWED: (_sizes(1000, 1, 64, hidden=64), _sizes(1, 1024, 256, hidden=100)),
}


def _operator(name: str, summary: str, gates: int, step: _Step, states: tuple[str, ...]) -> Operator:
    return Operator(
        name=name,
        category=Category.RECURRENT,
        summary=summary,
        given=("data",),
        tensors=partial(_tensors, gates, states, step is _relu),
        presets=_PRESETS,
        parameters={"hidden": 100},
        reference=partial(_unrolled, gates, step),
        flops=partial(_flops, gates),
        backward_flops=2.0,
    )


OPERATORS = (
    _operator("rnn_tanh", "Elman's network with the hyperbolic tangent", 1, _tanh, ("state",)),
    _operator("rnn_relu", "Elman's network with rectified units", 1, _relu, ("state",)),
    _operator("lstm", "long short-term memory", 4, _lstm, ("state", "cell")),
    _operator("gru", "gated recurrent units", 3, _gru, ("state",)),
)
