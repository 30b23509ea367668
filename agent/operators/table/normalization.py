"""Normalizations, channels first, with biased variances.

``batch_norm`` is that of an inference: it uses the running statistics, which are inputs.
``batch_norm_training`` uses the mean and the biased variance of the batch, and updates the running
statistics, which do not change its output. Floating-point operations are counted by fvcore's convention: 2
for each element with given statistics, 5 with computed ones, a scale and a shift. Likewise it is 4 with a
scale but no mean, 3 with neither, and for a local response 2 for each channel of the window and 3 more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    Shape,
    Sizes,
    TensorSpec,
    Values,
)


def _affine(axis: int, names: Sequence[str], case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    if len(data) < 2:
        raise ValueError(f"data {data} has samples and channels at least")
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


def _windowed(case: Case) -> tuple[TensorSpec, ...]:
    if case["size"] < 1 or case["size"] % 2 == 0:
        raise ValueError(f"size is {case['size']}; it is odd and 1 or more")
    return _affine(1, (), case)


def _by_channel(values: NDArray[Any], data: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, *(1 for _ in data.shape[2:]))


def _standard(data: NDArray[Any], axes: tuple[int, ...], parameters: Parameters) -> NDArray[Any]:
    mean, variance = data.mean(axes, keepdims=True), data.var(axes, keepdims=True)
    epsilon: Any = parameters["epsilon"]
    normal: NDArray[Any] = (data - mean) / np.sqrt(variance + epsilon)
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
    normal = _standard(data.reshape(len(data), int(parameters["groups"]), -1), (2,), parameters)  # type: ignore[arg-type]
    return (normal.reshape(data.shape) * _by_channel(gamma, data) + _by_channel(beta, data),)


def _rms_norm(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, gamma = arrays
    epsilon: Any = parameters["epsilon"]
    return (data / np.sqrt((data**2).mean(-1, keepdims=True) + epsilon) * gamma,)


def _l2(arrays: Arrays, parameters: Parameters) -> Arrays:
    return (arrays[0] / np.sqrt((arrays[0] ** 2).sum(1, keepdims=True)),)


def _local_response(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Divides each value by a power of the mean square of nearby channels (Krizhevsky et al., 2012)."""
    data, size = arrays[0], int(parameters["size"])  # type: ignore[arg-type]
    around = [(0, 0), (size // 2, size // 2)] + [(0, 0)] * (data.ndim - 2)
    squares = np.pad(data**2, around)
    total = sum(squares[:, first : first + data.shape[1]] for first in range(size))
    scale: Any = parameters["alpha"]
    return (data / (parameters["bias"] + scale / size * total) ** parameters["beta"],)


def _per_element(count: int) -> Callable[[Case, Sequence[Shape]], int]:
    return lambda case, outputs: count * prod(outputs[0])


def _local_flops(case: Case, outputs: Sequence[Shape]) -> int:
    return (2 * int(case["size"]) + 3) * prod(outputs[0])


def _sizes(*shape: int, **changed: Any) -> Sizes:
    return ({"data": shape}, changed)


_IMAGES: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (_sizes(4, 6, 5, 7),),
    Preset.NORMAL: (_sizes(32, 3, 256, 256),),
    Preset.LARGE: (_sizes(32, 64, 112, 112),),
    Preset.SKEWED: (_sizes(32, 3, 10000, 10), _sizes(1, 2048, 7, 7)),
}
_ROWS: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (_sizes(3, 4, 16),),
    Preset.NORMAL: (_sizes(32, 3, 256, 256),),
    Preset.LARGE: (_sizes(16, 1024, 1024),),
    Preset.SKEWED: (_sizes(32, 3, 10000, 10), _sizes(1, 65536)),
}
_GROUPED: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (_sizes(2, 6, 5, 7, groups=3), _sizes(2, 4, 5)),
    Preset.NORMAL: (_sizes(32, 32, 64, 64, groups=8),),
    Preset.LARGE: (_sizes(32, 64, 112, 112, groups=32),),
    Preset.SKEWED: (_sizes(32, 4, 10000, 10), _sizes(1, 2048, 7, 7, groups=32)),
}
_EPSILON = {"epsilon": 1e-5}
_AFFINE = ("gamma", "beta")


def _operator(
    name: str,
    summary: str,
    tensors: Callable[[Case], tuple[TensorSpec, ...]],
    reference: Callable[[Arrays, Parameters], Arrays],
    flops: Callable[[Case, Sequence[Shape]], int],
    presets: Mapping[Preset, tuple[Sizes, ...]] = _IMAGES,
    parameters: Mapping[str, Any] = _EPSILON,
    rtol: float = 1e-5,
) -> Operator:
    return Operator(
        name=name,
        category=Category.NORMALIZATION,
        summary=summary,
        given=("data",),
        tensors=tensors,
        presets=presets,
        parameters=parameters,
        reference=reference,
        flops=flops,
        rtol=rtol,
    )


OPERATORS = (
    _operator(
        "batch_norm",
        "normalization of channels by given statistics",
        partial(_affine, 1, (*_AFFINE, "mean", "variance")),
        _batch_norm,
        _per_element(2),
    ),
    _operator(
        "batch_norm_training",
        "normalization of channels by the statistics of the batch",
        partial(_affine, 1, (*_AFFINE, "mean", "variance")),
        _batch_norm_training,
        _per_element(5),
        presets={**_IMAGES, Preset.SMALL: (_sizes(4, 6, 5, 7), _sizes(4, 6, 5, 7, epsilon=0.1))},
        parameters={**_EPSILON, "momentum": 0.1},
    ),
    _operator(
        "layer_norm",
        "normalization of the last axis",
        partial(_affine, -1, _AFFINE),
        _layer_norm,
        _per_element(5),
        _ROWS,
    ),
    _operator(
        "instance_norm",
        "normalization of each channel of each sample",
        partial(_affine, 1, _AFFINE),
        _instance_norm,
        _per_element(5),
        rtol=1e-4,  # MXNet adds the values in float32 one after the other: 1e-5 with 100,000 values
    ),
    _operator(
        "group_norm",
        "normalization of groups of channels of each sample",
        _grouped,
        _group_norm,
        _per_element(5),
        _GROUPED,
        {**_EPSILON, "groups": 2},
    ),
    _operator(
        "rms_norm",
        "the last axis over its root mean square",
        partial(_affine, -1, ("gamma",)),
        _rms_norm,
        _per_element(4),
        _ROWS,
    ),
    _operator(
        "l2_normalization",
        "channels over the root of the sum of their squares",
        partial(_affine, 1, ()),
        _l2,
        _per_element(3),
        parameters={},
    ),
    _operator(
        "lrn",
        "values over a power of the mean square of the channels around",
        _windowed,
        _local_response,
        _local_flops,
        parameters={"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 2.0},
    ),
)
