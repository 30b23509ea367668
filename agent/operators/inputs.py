"""The values of an operator's inputs: drawn from a seed, the same for every framework."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import Case, Operator, Shape, TensorSpec, Values


def draw_inputs(
    operator: Operator, case: Case, dtype: np.dtype[Any], seed: int
) -> Mapping[str, NDArray[Any]]:
    """Returns the inputs by name; ``dtype`` is that of all but indices, which are int64, and masks, bool.

    They depend only on the seed, the operator's name and the shapes. Integer types get the drawn
    values times 10, rounded.
    """
    return {
        spec.name: _draw(spec, dtype, np.random.default_rng([seed, _number(f"{operator.name} {spec}")]))
        for spec in operator.tensors(case)
    }


def _number(text: str) -> int:
    return zlib.crc32(text.encode())


def cotangents(shape: Shape) -> NDArray[np.float32]:
    """Returns the gradients that a backward pass starts from: normal values that depend only on the shape.

    A tensor without axes has the value of one with a single element, as MXNet 1 has none without axes.
    """
    shape_or_one = shape or (1,)
    return np.random.default_rng([*shape_or_one]).standard_normal(shape_or_one, np.float32).reshape(shape)


def _draw(spec: TensorSpec, dtype: np.dtype[Any], random: np.random.Generator) -> NDArray[Any]:
    if spec.values is Values.INDICES:
        return random.integers(0, spec.limit, spec.shape, np.int64)
    if spec.values is Values.DISTINCT_INDICES:
        return random.permutation(spec.limit)[: prod(spec.shape)].reshape(spec.shape).astype(np.int64)
    if spec.values is Values.MASK:
        return random.integers(0, 2, spec.shape).astype(np.bool_)
    if dtype.kind in "iu" and spec.values is Values.NORMAL and prod(spec.shape) > 1 << 24:
        return random.integers(-10, 11, spec.shape, dtype)  # floats would have 4 to 8 times the size
    if spec.values is Values.BOXES:
        return _boxes(spec, random).astype(dtype)
    values = _floats(spec, random)
    if spec.scale != 1.0:
        values *= spec.scale
    if dtype.kind in "iu" and spec.values not in (Values.BOOLEAN, Values.SIGNS, Values.ZEROS):
        values = np.rint(values * 10)
    return np.ascontiguousarray(values, dtype)


def _floats(spec: TensorSpec, random: np.random.Generator) -> Any:
    shape, kind = spec.shape, spec.values
    if kind is Values.NORMAL:
        return random.standard_normal(shape, np.float32)
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return random.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    if kind is Values.DISTRIBUTION:
        weights = random.random(shape, np.float32) + np.float32(0.5)
        return weights / weights.sum(axis=-1, keepdims=True)
    if kind is Values.NONZERO:
        drawn = random.standard_normal(shape, np.float32)
        return drawn + np.copysign(np.float32(0.5), drawn)
    if kind is Values.SIGNS:
        return random.integers(0, 2, shape).astype(np.float32) * 2 - 1
    if kind is Values.BOOLEAN:
        return random.integers(0, 2, shape).astype(np.float32)
    if kind is Values.DISTINCT:
        return (random.permutation(prod(shape)).astype(np.float32) / prod(shape) - 0.5).reshape(shape)
    if kind is Values.ZEROS:
        return np.zeros(shape, np.float32)
    square = random.standard_normal(shape, np.float32)
    if kind is Values.LOWER_TRIANGULAR:
        size = shape[-1]
        return np.tril(square, -1) / size + np.eye(size, dtype=np.float32) * (
            1 + random.random((*shape[:-1], 1), np.float32)
        )
    return square @ np.swapaxes(square, -1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)


def _boxes(spec: TensorSpec, random: np.random.Generator) -> NDArray[Any]:
    corners = np.sort(random.random((spec.shape[0], 2, 2), np.float32), axis=1) * np.float32(spec.scale)
    images = random.integers(0, spec.limit, (spec.shape[0], 1))
    return np.concatenate([images, corners.reshape(-1, 4)], axis=1)


_RANGES = {
    Values.POSITIVE: (0.5, 1.5),
    Values.UNIT: (-0.9, 0.9),
    Values.ABOVE_ONE: (1.1, 2.0),
    Values.PROBABILITY: (0.05, 0.95),
}
