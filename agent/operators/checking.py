"""The check of an operator: its outputs and its gradients against the table's reference.

Also draws the values of its inputs from a seed, the same for every framework.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


_STEP = 1e-4
_GRADIENT_TOLERANCE = 20.0
"""How many times as much a gradient may differ: finite differences have an error of their own."""
_PRECISION = {"float64": 1e-2, "float32": 1.0, "float16": 2.0**13, "bfloat16": 2.0**16}
"""How the tolerances of other element types compare with those of float32.

That of float64 allows for parameters, such as a slope, that MXNet keeps in float32.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The deviation of values from the reference.

    Attributes:
        max_absolute: The greatest difference.
        max_relative: The greatest difference divided by its scale, the largest magnitude.
        tolerance: The largest accepted ``max_relative``.
    """

    max_absolute: float
    max_relative: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        """Whether the difference is within the tolerance; False if it is not a number."""
        return self.max_relative <= self.tolerance


def output_difference(
    operator: Operator,
    case: Case,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[NDArray[Any]],
    dtype: str,
) -> Difference:
    """Compares outputs with the reference, which computes in float64.

    Raises:
        ValueError: The number or a shape of the outputs differs from the reference, or a check fails.
    """
    if operator.reference is None:
        if operator.check is not None:
            operator.check(outputs, case)
        return Difference(0.0, 0.0, 0.0)
    expected = operator.reference(_wide(inputs), case.parameters)
    if len(outputs) != len(expected):
        raise ValueError(f"there are {len(outputs)} outputs, and the reference has {len(expected)}")
    tolerance = _tolerance(operator, dtype)
    found = [_difference(a, b, operator, tolerance) for a, b in zip(outputs, expected, strict=True)]
    return max(found, key=lambda each: (each.max_relative != each.max_relative, each.max_relative))


def run_difference(
    operator: Operator, found: NDArray[Any], earlier: NDArray[Any], dtype: str, *, gradient: bool = False
) -> Difference:
    """Compares elements of one run with those of an earlier one, each of which may err by the tolerance.

    Raises:
        ValueError: Their shapes differ.
    """
    widened = _GRADIENT_TOLERANCE if gradient else 1.0
    return _difference(found, earlier, operator, 2 * widened * _tolerance(operator, dtype))


def gradient_difference(
    operator: Operator,
    case: Case,
    inputs: Mapping[str, NDArray[Any]],
    gradients: Mapping[str, NDArray[Any]],
    dtype: str,
) -> Difference | None:
    """Compares gradients with central differences of the reference along a random direction.

    The derivative along the direction is the sum of the gradients times it. The error of central differences
    falls with the square of the step (Nocedal and Wright, "Numerical Optimization", section 8.1).

    Returns:
        The difference; None without a reference.
    """
    if operator.reference is None or not gradients:
        return None
    random = np.random.default_rng(1)
    wide = dict(zip(inputs, _wide(inputs), strict=True))
    directions = {name: random.standard_normal(wide[name].shape) for name in gradients}

    def weighted(step: float) -> float:
        moved = {
            name: wide[name] + step * directions[name] if name in directions else wide[name] for name in wide
        }
        outputs = operator.reference(list(moved.values()), case.parameters)  # type: ignore[misc]
        floats = [each for each in outputs if np.asarray(each).dtype.kind == "f"]
        return float(sum(np.sum(each * cotangents(np.shape(each))) for each in floats))

    expected = (weighted(_STEP) - weighted(-_STEP)) / (2 * _STEP)
    products = [gradients[name].astype(np.float64) * directions[name] for name in gradients]
    found = float(sum(np.sum(each) for each in products))
    scale = max(abs(expected), float(np.sqrt(sum(np.sum(each**2) for each in products))), 1e-12)
    difference = abs(found - expected)
    return Difference(
        difference, difference / scale, _GRADIENT_TOLERANCE * max(_tolerance(operator, dtype), 1e-5)
    )


def _wide(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [array.astype(np.float64) if array.dtype.kind == "f" else array for array in inputs.values()]


def _tolerance(operator: Operator, dtype: str) -> float:
    return operator.rtol * _PRECISION.get(dtype, 0.0)


def _difference(
    found: NDArray[Any], expected: NDArray[Any], operator: Operator, tolerance: float
) -> Difference:
    expected = np.asarray(expected)
    if expected.shape == () and found.shape == (1,):  # MXNet 1 has no tensors without axes
        expected = expected.reshape(1)
    if found.shape != expected.shape:
        raise ValueError(f"an output has the shape {found.shape}, and the reference {expected.shape}")
    if not expected.size:
        return Difference(0.0, 0.0, tolerance)
    same = (
        (found == expected) | (np.isnan(found) & np.isnan(expected))
        if found.dtype.kind == "f"
        else found == expected
    )
    if same.all():  # as of integers, whose tensors may be too large for copies in float64
        return Difference(0.0, 0.0, tolerance)
    with np.errstate(invalid="ignore"):  # an infinity less itself, where both are the same
        difference = np.where(same, 0.0, np.abs(found.astype(np.float64) - expected.astype(np.float64)))
    absolute = float(difference.max())
    magnitudes = np.abs(expected[np.isfinite(expected)]) if expected.dtype.kind == "f" else np.abs(expected)
    scale = max(
        float(magnitudes.max()) if magnitudes.size else 0.0, operator.atol / max(operator.rtol, 1e-30)
    )
    return Difference(absolute, absolute / scale if absolute else 0.0, tolerance)
