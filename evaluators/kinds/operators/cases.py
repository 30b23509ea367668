"""The request for a benchmark: operators of the table, the sizes of their inputs, and modes.

The coverage of the table states how each framework runs the table's operators, and which others it has. The
input values are drawn from a seed and are the same for every framework.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.operators.operator import (
    NOTHING,
    Case,
    Operator,
    OperatorRunner,
    ParameterValue,
    Preset,
    RunnerOptions,
    Shape,
    TensorSpec,
    Values,
    chosen_operators,
    operators,
)
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.manifests.errors import ConfigurationError, FrameworkUnavailableError, suggestion


@dataclass(frozen=True, slots=True)
class OwnCase:
    """A user's sizes and parameters for one operator of the table.

    Attributes:
        operator: Its name.
        shapes: The shapes of some or all of its given inputs.
        parameters: The parameters that differ from the defaults.
    """

    operator: str
    shapes: Mapping[str, Shape] = field(default_factory=lambda: NOTHING)
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    """A benchmark of operators.

    Attributes:
        operators: Names in the table.
        categories: Groups of the table.
        everything: Whether to run the whole table.
        presets: The sizes of the named operators: presets, or sizes such as ``1024x1024``, which apply to all
            given inputs of an operator.
        own: Further cases, with a user's own sizes.
        frameworks: The frameworks, in the order of the evaluations; empty for all that are installed.
        modes: The modes to time.
        forms: The forms to run, if a framework has them; empty for the first one of each framework.
        device: The device.
        threads: The CPU threads of an operator; None for ``default_threads``.
        options: How each row is measured.

    Raises:
        ConfigurationError: A name is unknown, nothing is requested, or sizes do not fit an operator.
    """

    operators: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    everything: bool = False
    presets: tuple[str, ...] = (Preset.NORMAL.value,)
    own: tuple[OwnCase, ...] = ()
    frameworks: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.FORWARD,)
    forms: tuple[str, ...] = ()
    device: Device = CPU
    threads: int | None = None
    options: OperatorOptions = OperatorOptions()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not self.cases():
            named = self.operators or self.categories or self.everything
            raise ConfigurationError(
                f"none of the operators has cases of shapes {', '.join(self.presets)}; leave out shapes"
                if named
                else "no operator is named; name some, such as add conv2d, or a category, or all of them"
            )

    def cases(self) -> tuple[tuple[str, Case], ...]:
        """Returns all requested cases with the names of their operators, in the table's order."""
        names = operators() if self.everything else self.operators
        named = chosen_operators(names, self.categories)
        found = [
            (each.name, case) for each in named for size in self.presets for case in _cases(each.name, size)
        ]
        for own in self.own:
            (operator,) = chosen_operators([own.operator])
            found.append((own.operator, operator.own_case(own.shapes, own.parameters)))
        return tuple(found)


def _cases(name: str, size: str) -> tuple[Case, ...]:
    """Returns the cases of an operator for a preset, or for a size such as ``1024x1024``."""
    operator = operators()[name]
    if size in tuple(Preset):
        return operator.cases(Preset(size))
    parts = size.replace("×", "x").split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(
            f'unknown shapes "{size}"; {suggestion(size, [each.value for each in Preset])}, '
            "or sizes such as 1024x1024"
        )
    shape = tuple(int(part) for part in parts)
    return (operator.own_case(dict.fromkeys(operator.given, shape)),)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The operators of the table that one framework runs.

    Attributes:
        framework: Its name.
        version: The installed version; None if it is not installed.
        forms: The ways in which it runs an operator, by operator name; empty if it lacks the operator.
        reasons: Why it lacks an operator, by the operator's name.
        uncovered: The operators of the framework's own registry that the table does not use, sorted.
    """

    framework: str
    version: str | None
    forms: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    uncovered: tuple[str, ...]


def frameworks_with_operators(registry: Registry, names: Sequence[str] = ()) -> Iterator[FrameworkEntry]:
    """Yields the frameworks with the given names, or all that run single operators.

    Raises:
        UnknownFrameworkError: There is no framework with such a name.
        ConfigurationError: One of them does not run single operators.
    """
    for entry in [registry.find(name) for name in names] or registry.entries:
        if entry.operators:
            yield entry
        elif names:
            raise ConfigurationError(f"framework {entry.name} cannot run single operators")


def coverage_of(entry: FrameworkEntry, operators: Sequence[Operator]) -> Coverage:
    """Returns a framework's coverage of some operators. It imports the framework.

    If the framework is not installed or cannot be imported, that is the reason why it lacks all of them.
    """
    try:
        runner_class = entry.load_operators()
    except FrameworkUnavailableError as error:
        reasons = dict.fromkeys((each.name for each in operators), str(error))
        return Coverage(entry.name, entry.installed_version, {}, reasons, ())
    if not (isinstance(runner_class, type) and issubclass(runner_class, OperatorRunner)):
        raise ConfigurationError(f"framework {entry.name}: {entry.operators} is not an OperatorRunner")
    with closing(runner_class(RunnerOptions())) as runner:
        forms = {each.name: runner.forms(each.name) for each in operators}
        reasons = {name: runner.missing(name) for name, found in forms.items() if not found}
        return Coverage(entry.name, entry.installed_version, forms, reasons, runner.uncovered())


_RANGES = {
    Values.POSITIVE: (0.5, 1.5),
    Values.UNIT: (-0.9, 0.9),
    Values.ABOVE_ONE: (1.1, 2.0),
    Values.PROBABILITY: (0.05, 0.95),
}


def draw_inputs(
    operator: Operator, case: Case, dtype: np.dtype[Any], seed: int
) -> Mapping[str, NDArray[Any]]:
    """Returns the inputs by name, in ``dtype`` except for indices (int64) and masks (bool).

    They depend only on the seed, the operator's name and the shapes. For integer types, the drawn values are
    multiplied by 10 and rounded. An input that specifies its own type has that type.
    """
    found = {}
    for spec in operator.tensors(case):
        number = zlib.crc32(f"{operator.name} {spec}".encode())
        own = np.dtype(spec.dtype) if spec.dtype else dtype
        found[spec.name] = _draw(spec, own, np.random.default_rng([seed, number]))
    return found


def _draw(spec: TensorSpec, dtype: np.dtype[Any], random: np.random.Generator) -> NDArray[Any]:
    if spec.values is Values.INDICES:
        return random.integers(0, spec.limit, spec.shape, np.int64)
    if spec.values is Values.LENGTHS:
        return random.integers(1, spec.limit + 1, spec.shape, np.int64)
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
