"""The checks of a row: its outputs against the table's reference, and later runs against the checked run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Case,
    Operator,
    OperatorCall,
    OperatorRunner,
    Preset,
    cotangents,
    element_type,
)
from inferometer.evaluators.kinds.operators.measurement import Correctness
from inferometer.evaluators.kinds.operators.options import Mode
from inferometer.evaluators.kinds.operators.request import draw_inputs

REFERENCE, FINITE_DIFFERENCES, PROPERTIES = "reference", "finite differences", "properties"
SMALLER, ON_ROWS = ", on smaller inputs", ", on random rows"
_LATER_ELEMENTS = 4096
_MOST_CHECK_S = 0.5
_FLOPS_PER_S = 4e9
_ELEMENTS_PER_S = 2e7
"""The minimum rates of NumPy in float64 on one core, for a matrix product and an element-wise function."""
_NO_ROWS = (ValueError, LookupError, TypeError, ArithmeticError)
"""The exceptions that references raise for rows or parameters that they do not accept."""
_STEP = 1e-4
_GRADIENT_TOLERANCE = 20.0
"""The factor on a gradient's tolerance, because finite differences add an error of their own."""
_PRECISION = {"float64": 1e-2, "float32": 1.0, "float16": 2.0**13, "bfloat16": 2.0**16}
"""The tolerances of element types relative to those of float32.

The float64 tolerance allows for parameters, such as a slope, that MXNet keeps in float32.
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
        """Whether the difference is within the tolerance; False if the difference is NaN."""
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
        ValueError: The number of outputs or a shape differs from the reference, or a check fails.
    """
    if operator.reference is None:
        if operator.check is not None:
            operator.check(outputs, list(inputs.values()), case)
        return Difference(0.0, 0.0, 0.0)
    expected = operator.reference(_wide(inputs), case.parameters)
    if len(outputs) != len(expected):
        raise ValueError(f"there are {len(outputs)} outputs, but the reference has {len(expected)}")
    own = {spec.dtype for spec in operator.tensors(case)}  # the types that the operator's inputs always have
    found = [
        _difference(a, b, operator, _tolerance(operator, a.dtype.name if a.dtype.name in own else dtype))
        for a, b in zip(outputs, expected, strict=True)
    ]
    # a difference that is not within its own tolerance comes first
    return max(found, key=lambda each: (not each.is_right, each.max_relative))


def run_difference(
    operator: Operator, found: NDArray[Any], earlier: NDArray[Any], dtype: str, *, gradient: bool = False
) -> Difference:
    """Compares elements of one run with those of an earlier run; each run may be off by the tolerance.

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

    The derivative along the direction is the sum of the gradients times the direction. The error of central
    differences falls with the square of the step (Nocedal and Wright, "Numerical Optimization", section 8.1).

    Returns:
        The difference; None if the operator has no reference.
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
        if operator.loss is not None:
            return operator.loss(list(moved.values()), case.parameters)
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
        raise ValueError(f"an output has the shape {found.shape}, but the reference has {expected.shape}")
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


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking a row.

    Attributes:
        correctness: The comparison.
        wrong: Why the row is wrong, in one line; empty if it is not.
    """

    correctness: Correctness
    wrong: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The inputs and results of one run of an operator.

    Attributes:
        case: Its sizes.
        gradients: Its gradients; empty for ``Mode.FORWARD``.
    """

    case: Case
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[NDArray[Any], ...]
    gradients: Mapping[str, NDArray[Any]]


def run_once(call: OperatorCall, mode: Mode) -> None:
    """Runs an operator once in a mode."""
    if mode is Mode.FORWARD:
        call.forward()
    else:
        call.forward_for_gradient()
        call.backward()


def computed(call: OperatorCall, mode: Mode, case: Case, inputs: Mapping[str, NDArray[Any]]) -> Computed:
    """Returns the results of the last run."""
    return Computed(case, inputs, call.outputs(), {} if mode is Mode.FORWARD else call.gradients())


def check(
    operator: Operator, runner: OperatorRunner, form: str, mode: Mode, found: Computed, seed: int
) -> Check:
    """Compares the results of a row with the reference, if that takes at most half a second.

    Otherwise, random rows of the outputs are compared with the reference of those rows. If the rows depend on
    one another, and for gradients, the operator runs on the table's small case, with the row's parameters if
    they fit it.

    Raises:
        NotSupportedHereError, InferometerError: The framework failed on the small case.
    """
    smaller = ""
    whole_s = _reference_s(operator, found, mode)
    if operator.reference is not None and whole_s > _MOST_CHECK_S:
        rows = _on_rows(operator, found, whole_s, seed)
        if rows is not None:
            checked = _compared(operator, Mode.FORWARD, rows, runner.options.dtype, ON_ROWS)
            if mode is Mode.FORWARD or checked.wrong:
                return checked
        small = _small_case(operator, found.case)
        inputs = draw_inputs(operator, small, element_type(runner.options.dtype), seed)
        call = runner.prepare(operator, small, inputs, gradient=mode is not Mode.FORWARD, form=form)
        run_once(call, mode)
        found, smaller = computed(call, mode, small, inputs), SMALLER
    return _compared(operator, mode, found, runner.options.dtype, smaller)


class WrongRunError(Exception):
    """A timed run computed something other than the checked run; the message is the reason."""


class LaterRuns:
    """The comparison of timed runs with the checked run, at random elements.

    It uses 4,096 elements of each output and gradient, or all if there are fewer. A run in which a share s of
    the elements differs passes with a probability of (1 - s)^4096. Operators that run in place have different
    outputs each time: only their number and shapes are compared; for random ones, properties are checked.

    Args:
        operator: The operator.
        found: The results of the checked run; only the chosen elements are kept.
        mode: The timed mode.
        dtype: The element type.
        seed: The seed for choosing the elements.
    """

    def __init__(self, operator: Operator, found: Computed, mode: Mode, dtype: str, seed: int) -> None:
        self._operator, self._case, self._mode, self._dtype = operator, found.case, mode, dtype
        # the parameters of distributions, which only checks of random operators require
        self._inputs = [] if operator.reference else list(found.inputs.values())
        random = np.random.default_rng(seed)
        self._outputs = [_Elements.of(array, random) for array in found.outputs]
        self._gradients = {name: _Elements.of(array, random) for name, array in found.gradients.items()}

    def compare(self, call: OperatorCall) -> None:
        """Compares the results of a call's last run; raises WrongRunError if they differ."""
        outputs, operator = call.outputs(), self._operator
        if len(outputs) != len(self._outputs):
            raise WrongRunError(f"a timed run has {len(outputs)} outputs, but the first {len(self._outputs)}")
        if operator.reference is None and operator.check is not None:
            try:
                operator.check(outputs, self._inputs, self._case)
            except (ValueError, ArithmeticError) as error:
                raise WrongRunError(f"the outputs of a timed run are wrong: {error}") from error
        for array, kept in zip(outputs, self._outputs, strict=True):
            self._compare(array, kept, "the outputs")
        if self._mode is not Mode.FORWARD:
            found = call.gradients()
            for name, kept in self._gradients.items():
                self._compare(found[name], kept, "the gradients")

    def _compare(self, array: NDArray[Any], kept: _Elements, what: str) -> None:
        if array.shape != kept.shape:
            raise WrongRunError(f"{what} of a timed run have the shape {array.shape}, not {kept.shape}")
        if self._operator.reference is None or self._operator.in_place:
            return
        taken, gradient = array.reshape(-1)[kept.places], what == "the gradients"
        difference = run_difference(self._operator, taken, kept.values, self._dtype, gradient=gradient)
        if not difference.is_right:
            raise WrongRunError(
                f"{what} of a timed run differ from those of the run that was checked by "
                f"{difference.max_relative:.2g} of the largest magnitude; allowed: {difference.tolerance:.2g}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Elements:
    """Some elements of an array and their positions in it."""

    shape: tuple[int, ...]
    places: NDArray[np.intp]
    values: NDArray[Any]

    @classmethod
    def of(cls, array: NDArray[Any], random: np.random.Generator) -> _Elements:
        """Returns randomly chosen elements of an array, or all if it is small."""
        if array.size <= _LATER_ELEMENTS:
            places = np.arange(array.size, dtype=np.intp)
        else:
            places = np.sort(random.integers(0, array.size, _LATER_ELEMENTS, dtype=np.intp))
        return cls(array.shape, places, array.reshape(-1)[places])


def _compared(operator: Operator, mode: Mode, found: Computed, dtype: str, smaller: str) -> Check:
    against = REFERENCE if operator.reference else PROPERTIES if operator.check else ""
    try:
        outputs = output_difference(operator, found.case, found.inputs, found.outputs, dtype)
        gradients = None
        if mode is not Mode.FORWARD:
            gradients = gradient_difference(operator, found.case, found.inputs, found.gradients, dtype)
    except (ValueError, ArithmeticError) as error:
        return Check(Correctness(against + smaller), f"the outputs are wrong: {error}")
    if operator.reference is None:
        return Check(Correctness(against))
    if gradients is None or not outputs.is_right:
        return _judged(outputs, REFERENCE + smaller, "the outputs")
    return _judged(gradients, FINITE_DIFFERENCES + smaller, "the gradients")


def _judged(difference: Difference, against: str, what: str) -> Check:
    correctness = Correctness(against, difference.max_absolute, difference.max_relative, difference.tolerance)
    if difference.is_right:
        return Check(correctness)
    return Check(
        correctness,
        f"{what} differ from the {against} by {difference.max_relative:.2g} of the largest magnitude; "
        f"allowed: {difference.tolerance:.2g}",
    )


def _reference_s(operator: Operator, found: Computed, mode: Mode) -> float:
    """Returns an upper estimate of the time that the reference takes, in seconds."""
    arrays: Sequence[NDArray[Any]] = (*found.inputs.values(), *found.outputs)
    flops = operator.flops(found.case, [each.shape for each in found.outputs])
    once_s = flops / _FLOPS_PER_S + sum(each.size for each in arrays) / _ELEMENTS_PER_S
    return once_s * (1 if mode is Mode.FORWARD else 3)  # finite differences compute it twice more


def _on_rows(operator: Operator, found: Computed, whole_s: float, seed: int) -> Computed | None:
    """Returns random rows of the outputs with their inputs, as many as the reference can compute in time.

    Returns None if no inputs have a row for each row of the outputs, or if the reference fails or returns
    other shapes for the chosen rows alone.
    """
    rows = len(found.outputs[0]) if found.outputs and found.outputs[0].ndim else 0
    names = _row_inputs(operator, found.case)
    if not names or any(len(found.inputs[name]) != rows for name in names) or whole_s > rows:
        return None
    count = max(1, int(rows * _MOST_CHECK_S / whole_s))
    chosen = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
    inputs = {name: array[chosen] if name in names else array for name, array in found.inputs.items()}
    outputs = tuple(array[chosen] for array in found.outputs)
    try:
        shapes = [np.shape(each) for each in _reference(operator, inputs, found.case)]
    except _NO_ROWS:
        return None
    return Computed(found.case, inputs, outputs, {}) if shapes == [each.shape for each in outputs] else None


def _row_inputs(operator: Operator, case: Case) -> Sequence[str]:
    """Returns the inputs whose rows determine the output rows one by one, tested on the small case.

    They are all inputs with as many rows, as in an addition, or only the first, as in a matrix product.
    """
    small = _small_case(operator, case)
    if dict(small.parameters) != dict(case.parameters) or _axes(operator, small) != _axes(operator, case):
        return ()
    inputs = draw_inputs(operator, small, np.dtype(np.float64), 0)
    try:
        whole = _reference(operator, inputs, small)
        rows = len(whole[0])
        alike = [name for name, array in inputs.items() if array.ndim and len(array) == rows]
        for names in (alike, alike[:1]):
            if rows > 1 and names and _rows_stand_alone(operator, small, inputs, names, whole):
                return names
    except _NO_ROWS:
        pass
    return ()


def _axes(operator: Operator, case: Case) -> Sequence[Sequence[bool]]:
    """Returns, for each axis of each input, whether its size is 1, so it may be broadcast."""
    return [[size == 1 for size in spec.shape] for spec in operator.tensors(case)]


def _rows_stand_alone(
    operator: Operator,
    case: Case,
    inputs: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    whole: Sequence[NDArray[Any]],
) -> bool:
    """Returns whether the last and first rows of some inputs yield the same rows of all outputs."""
    rows = [-1, 0]
    chosen = {name: array[rows] if name in names else array for name, array in inputs.items()}
    try:
        alone = _reference(operator, chosen, case)
        return all(
            np.shape(a) == np.shape(b[rows]) and np.allclose(a, b[rows], equal_nan=True)
            for a, b in zip(alone, whole, strict=True)
        )
    except _NO_ROWS:
        return False


def _reference(operator: Operator, inputs: Mapping[str, NDArray[Any]], case: Case) -> Sequence[NDArray[Any]]:
    assert operator.reference is not None  # noqa: S101 - as the caller has it
    with np.errstate(all="ignore"):
        return operator.reference(_wide(inputs), case.parameters)


def _small_case(operator: Operator, case: Case) -> Case:
    """Returns the small case with the parameters of another case, or with its own if they do not fit."""
    small = operator.cases(Preset.SMALL)[0]
    wanted = Case(small.shapes, {**small.parameters, **case.parameters}, small.preset)
    try:
        specs = operator.tensors(wanted)
        fits = all(size > 0 for spec in specs for size in spec.shape)
        if fits and operator.reference is not None:
            random = np.random.default_rng(0)
            with np.errstate(all="ignore"):  # the values may be those of no other case
                operator.reference([random.random(spec.shape) for spec in specs], wanted.parameters)
    except _NO_ROWS:
        return small
    return wanted if fits else small
