"""Normalizations, channels first, with biased variances; and recurrent layers over whole sequences.

``batch_norm`` is for inference: it uses the running statistics, which are inputs. ``batch_norm_training``
uses the mean and the biased variance of the batch, and updates the running statistics, which do not affect
its output. Floating-point operations are counted as in fvcore: 2 for each element with given statistics, and
5 with computed statistics, a scale and a shift. Likewise, 4 are counted with a scale but no mean, 3 with
neither, and for a local response 2 for each channel of the window plus 3.

Recurrent layers have one direction; the output is the hidden state of each step. Data has the shape (steps,
samples, features). The weights of all gates are stacked: ``weight_ih`` for the data and ``weight_hh`` for the
state, with a bias for each. The order is input, forget, cell and output in an LSTM, and reset, update and new
in a GRU, which resets the state's share of the new state after its matrix product (like cuDNN's). Only the
matrix products count as floating-point operations; their gradients with respect to both factors each require
the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
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
    Presets,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    sized,
)
from inferometer.agent.operators.table.layers import sigmoid


def _affine(axis: int, names: Sequence[str], case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    if len(data) < 2:
        raise ValueError(f"data {data} must have at least samples and channels")
    size = (data[axis],)
    specs = {
        "gamma": TensorSpec("gamma", size),
        "beta": TensorSpec("beta", size),
        "mean": TensorSpec("mean", size, differentiable=False),
        "variance": TensorSpec("variance", size, Values.POSITIVE, differentiable=False),
    }
    return (TensorSpec("data", data), *(specs[name] for name in names))


def _grouped(case: Case) -> tuple[TensorSpec, ...]:
    specs = _affine(1, ("gamma", "beta"), case)
    if case["groups"] < 1 or specs[0].shape[1] % case["groups"]:
        raise ValueError(f"{case['groups']} groups do not divide {specs[0].shape[1]} channels")
    return specs


def _scaled_by_group(case: Case) -> tuple[TensorSpec, ...]:
    data, *affine = _grouped(case)
    return (data, *(replace(spec, shape=(int(case["groups"]),)) for spec in affine))


def _windowed(case: Case) -> tuple[TensorSpec, ...]:
    if case["size"] < 1 or case["size"] % 2 == 0:
        raise ValueError(f"size is {case['size']}; it must be odd and 1 or more")
    return _affine(1, (), case)


def _by_channel(values: NDArray[Any], data: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, *(1 for _ in data.shape[2:]))


def _standard(data: NDArray[Any], axes: tuple[int, ...], parameters: Parameters) -> NDArray[Any]:
    mean, variance = data.mean(axes, keepdims=True), data.var(axes, keepdims=True)
    normal: NDArray[Any] = (data - mean) / np.sqrt(variance + parameters["epsilon"])
    return normal


def _batch_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma, beta, mean, variance = (arrays[0], *(_by_channel(a, arrays[0]) for a in arrays[1:]))
    return ((data - mean) / np.sqrt(variance + parameters["epsilon"]) * gamma + beta,)


def _batch_norm_training(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma, beta = arrays[:3]
    normal = _standard(data, (0, *range(2, data.ndim)), parameters)
    return (normal * _by_channel(gamma, data) + _by_channel(beta, data),)


def _layer_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma, beta = arrays
    return (_standard(data, (-1,), parameters) * gamma + beta,)


def _instance_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma, beta = arrays
    normal = _standard(data, tuple(range(2, data.ndim)), parameters)
    return (normal * _by_channel(gamma, data) + _by_channel(beta, data),)


def _group_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma, beta = arrays
    normal = _standard(data.reshape(len(data), int(parameters["groups"]), -1), (2,), parameters)
    gamma, beta = (values.repeat(data.shape[1] // len(values)) for values in (gamma, beta))
    return (normal.reshape(data.shape) * _by_channel(gamma, data) + _by_channel(beta, data),)


def _rms_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma = arrays
    return (data / np.sqrt((data**2).mean(-1, keepdims=True) + parameters["epsilon"]) * gamma,)


def _local_response(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Divides each value by a power of the mean square of nearby channels (Krizhevsky et al., 2012)."""
    data, size = arrays[0], int(parameters["size"])
    around = [(0, 0), (size // 2, size // 2)] + [(0, 0)] * (data.ndim - 2)
    squares = np.pad(data**2, around)
    total = sum(squares[:, first : first + data.shape[1]] for first in range(size))
    scale = parameters["alpha"] / size
    return (data / (parameters["bias"] + scale * total) ** parameters["beta"],)


def _per_element(count: int) -> Callable[[Case, Sequence[Shape]], int]:
    return lambda case, outputs: count * prod(outputs[0])


_IMAGES = by_preset(
    sized(4, 6, 5, 7),
    sized(32, 3, 256, 256),
    sized(32, 64, 112, 112),
    sized(32, 3, 10000, 10),
    sized(1, 2048, 7, 7),
)
_ROWS = by_preset(
    sized(3, 4, 16), sized(32, 3, 256, 256), sized(16, 1024, 1024), sized(32, 3, 10000, 10), sized(1, 65536)
)
_GROUPED: Presets = by_preset(
    [sized(2, 6, 5, 7, groups=3), sized(2, 4, 5)],
    sized(32, 32, 64, 64, groups=8),
    sized(32, 64, 112, 112, groups=32),
    sized(32, 4, 10000, 10),
    sized(1, 2048, 7, 7, groups=32),
)
_EPSILON = {"epsilon": 1e-5}
_AFFINE = ("gamma", "beta")

_normalization = partial(Operator, category=Category.NORMALIZATION, presets=_IMAGES, parameters=_EPSILON)

_NORMALIZATIONS = (
    _normalization(
        name="batch_norm",
        summary="normalization of channels by given statistics",
        tensors=partial(_affine, 1, (*_AFFINE, "mean", "variance")),
        reference=_batch_norm,
        flops=_per_element(2),
    ),
    _normalization(
        name="batch_norm_training",
        summary="normalization of channels by the statistics of the batch",
        tensors=partial(_affine, 1, (*_AFFINE, "mean", "variance")),
        reference=_batch_norm_training,
        flops=_per_element(5),
        presets={**_IMAGES, Preset.SMALL: (sized(4, 6, 5, 7), sized(4, 6, 5, 7, epsilon=0.1))},
        parameters={**_EPSILON, "momentum": 0.1},
    ),
    _normalization(
        name="layer_norm",
        summary="normalization of the last axis",
        tensors=partial(_affine, -1, _AFFINE),
        reference=_layer_norm,
        flops=_per_element(5),
        presets=_ROWS,
    ),
    _normalization(
        name="instance_norm",
        summary="normalization of each channel of each sample",
        tensors=partial(_affine, 1, _AFFINE),
        reference=_instance_norm,
        flops=_per_element(5),
        rtol=1e-4,  # MXNet adds the values in float32 one after the other: 1e-5 with 100,000 values
    ),
    _normalization(
        name="group_norm",
        summary="normalization of groups of channels of each sample",
        tensors=_grouped,
        reference=_group_norm,
        flops=_per_element(5),
        presets=_GROUPED,
        parameters={**_EPSILON, "groups": 2},
    ),
    _normalization(
        name="group_norm_per_group",
        summary="group normalization with one scale and shift for each group",
        tensors=_scaled_by_group,
        reference=_group_norm,
        flops=_per_element(5),
        # MXNet's sums of more squares overflow in float16
        presets={**_GROUPED, Preset.SKEWED: (sized(32, 4, 1000, 10),)},
        parameters={**_EPSILON, "groups": 2},
    ),
    _normalization(
        name="rms_norm",
        summary="the last axis over its root mean square",
        tensors=partial(_affine, -1, ("gamma",)),
        reference=_rms_norm,
        flops=_per_element(4),
        presets=_ROWS,
    ),
    _normalization(
        name="l2_normalization",
        summary="channels over the root of the sum of their squares",
        tensors=partial(_affine, 1, ()),
        reference=lambda arrays, _: (arrays[0] / np.sqrt((arrays[0] ** 2).sum(1, keepdims=True)),),
        flops=_per_element(3),
        parameters={},
    ),
    _normalization(
        name="lrn",
        summary="values over a power of the mean square of the channels around",
        tensors=_windowed,
        reference=_local_response,
        flops=lambda case, outputs: (2 * int(case["size"]) + 3) * prod(outputs[0]),
        parameters={"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 2.0},
    ),
)


def _recurrent_tensors(
    gates: int, states: tuple[str, ...], rectified: bool, case: Case
) -> tuple[TensorSpec, ...]:
    data, hidden = case.shapes["data"], case["hidden"]
    if len(data) != 3:
        raise ValueError(f"data has {len(data)} axes; it must have steps, samples and features")
    if hidden < 1:
        raise ValueError(f"hidden is {hidden}; it must be 1 or more")
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
    """Calls ``step`` with the shares of data and state, each (gates, samples, hidden), and the states."""
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


def _tanh(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.tanh(of_data[0] + of_state[0])]


def _relu(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.maximum(of_data[0] + of_state[0], 0)]


def _lstm(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    taken, kept, new, shown = of_data + of_state
    cell = sigmoid(kept) * states[1] + sigmoid(taken) * np.tanh(new)
    return [sigmoid(shown) * np.tanh(cell), cell]


def _gru(of_data: NDArray[Any], of_state: NDArray[Any], states: list[NDArray[Any]]) -> list[NDArray[Any]]:
    reset, kept = (sigmoid(of_data[gate] + of_state[gate]) for gate in (0, 1))
    new = np.tanh(of_data[2] + reset * of_state[2])
    return [(1 - kept) * new + kept * states[0]]


def _recurrent_flops(gates: int, case: Case, outputs: Sequence[Shape]) -> int:
    steps, samples, hidden = outputs[0]
    return 2 * steps * samples * gates * hidden * (case.shapes["data"][2] + hidden)


_SEQUENCES = by_preset(
    sized(4, 3, 6, hidden=5),
    sized(25, 32, 256, hidden=100),
    sized(50, 64, 512, hidden=256),
    sized(1000, 1, 64, hidden=64),
    sized(1, 1024, 256, hidden=100),
)


def _recurrent(name: str, summary: str, gates: int, step: _Step, states: tuple[str, ...]) -> Operator:
    return Operator(
        name=name,
        category=Category.RECURRENT,
        summary=summary,
        tensors=partial(_recurrent_tensors, gates, states, step is _relu),
        presets=_SEQUENCES,
        parameters={"hidden": 100},
        reference=partial(_unrolled, gates, step),
        # cuDNN approximates sigmoid and tanh: LSTM 1.1e-5 on an H200, and 3e-4 in TF32
        rtol=5e-5,
        flops=partial(_recurrent_flops, gates),
        backward_flops=2.0,
    )


OPERATORS = (
    *_NORMALIZATIONS,
    _recurrent("rnn_tanh", "Elman's network with the hyperbolic tangent", 1, _tanh, ("state",)),
    _recurrent("rnn_relu", "Elman's network with rectified units", 1, _relu, ("state",)),
    _recurrent("lstm", "long short-term memory", 4, _lstm, ("state", "cell")),
    _recurrent("gru", "gated recurrent units", 3, _gru, ("state",)),
)
