"""The check of a row: what it computes against the table's reference, on its own or on smaller inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.checking import Difference, gradient_difference, output_difference
from inferometer.agent.operators.inputs import draw_inputs
from inferometer.agent.operators.operator import Case, Operator, Preset
from inferometer.agent.operators.runner import OperatorCall, OperatorRunner, element_type
from inferometer.evaluators.measurements.operators import Correctness, Mode

REFERENCE, FINITE_DIFFERENCES, PROPERTIES = "reference", "finite differences", "properties"
SMALLER = ", on smaller inputs"
_MOST_CHECK_S = 0.5
_FLOPS_PER_S = 4e9
_ELEMENTS_PER_S = 2e7
"""What NumPy does at least in float64 on one core: a matrix product, and an element-wise function."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of a row.

    Attributes:
        correctness: What was compared.
        wrong: Why it is wrong, in one line; empty if it is not.
    """

    correctness: Correctness
    wrong: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What an operator computed once.

    Attributes:
        case: Its sizes.
        inputs: Its inputs.
        outputs: Its outputs.
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
    """Returns what the last run computed."""
    return Computed(case, inputs, call.outputs(), {} if mode is Mode.FORWARD else call.gradients())


def check(
    operator: Operator, runner: OperatorRunner, form: str, mode: Mode, found: Computed, seed: int
) -> Check:
    """Compares what a row computed with the reference, if that takes at most half a second.

    Otherwise the operator runs on the table's small case, with the row's parameters where those fit it.

    Raises:
        NotSupportedHereError, InferometerError: The framework failed on the small case.
    """
    smaller = ""
    if operator.reference is not None and _reference_s(operator, found, mode) > _MOST_CHECK_S:
        small = _small_case(operator, found.case)
        inputs = draw_inputs(operator, small, element_type(runner.options.dtype), seed)
        call = runner.prepare(operator, small, inputs, gradient=mode is not Mode.FORWARD, form=form)
        run_once(call, mode)
        found, smaller = computed(call, mode, small, inputs), SMALLER
    return _compared(operator, mode, found, runner.options.dtype, smaller)


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
    """How long the reference takes at most, about."""
    arrays: Sequence[NDArray[Any]] = (*found.inputs.values(), *found.outputs)
    flops = operator.flops(found.case, [each.shape for each in found.outputs])
    once_s = flops / _FLOPS_PER_S + sum(each.size for each in arrays) / _ELEMENTS_PER_S
    return once_s * (1 if mode is Mode.FORWARD else 3)  # finite differences compute it twice more


def _small_case(operator: Operator, case: Case) -> Case:
    """The small case with the parameters of another, or its own where those do not fit."""
    small = operator.cases(Preset.SMALL)[0]
    wanted = Case(small.shapes, {**small.parameters, **case.parameters}, small.preset)
    try:
        specs = operator.tensors(wanted)
        fits = all(size > 0 for spec in specs for size in spec.shape)
        if fits and operator.reference is not None:
            random = np.random.default_rng(0)
            operator.reference([random.random(spec.shape) for spec in specs], wanted.parameters)
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return small
    return wanted if fits else small
