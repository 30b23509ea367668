"""What a row is checked against: its own inputs where that is quick, and smaller ones where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferometer.agent.operators.inputs import draw_inputs
from inferometer.agent.operators.operator import Case, Operator, Preset
from inferometer.agent.operators.runner import RunnerOptions
from inferometer.agent.operators.table.registry import operators
from inferometer.evaluators.measurements.operators import Mode
from inferometer.evaluators.operators.checks import Check, check, computed
from tests.integration.operator_frameworks import WRONG, Numbers

ADD = operators()["add"]


def checked(operator: Operator, case: Case) -> Check:
    runner = Numbers(RunnerOptions(threads=1))
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    call = runner.prepare(operator, case, inputs)
    call.forward()
    return check(operator, runner, "", Mode.FORWARD, computed(call, Mode.FORWARD, case, inputs), 0)


def test_quick_references_see_the_inputs_of_the_row() -> None:
    found = checked(ADD, ADD.cases(Preset.SMALL)[0])
    assert (found.correctness.against, found.wrong) == ("reference", "")
    assert found.correctness.max_relative is not None
    assert found.correctness.max_relative <= 1e-6


def test_slow_references_see_smaller_inputs() -> None:
    slow = replace(ADD, flops=lambda _case, _outputs: 10**12)
    found = checked(slow, ADD.cases(Preset.NORMAL)[0])
    assert (found.correctness.against, found.wrong) == ("reference, on smaller inputs", "")


def test_a_wrong_result_has_its_reason() -> None:
    found = checked(ADD, ADD.own_case({"lhs": (WRONG, 2), "rhs": (WRONG, 2)}))
    assert found.wrong.startswith("the outputs differ from the reference by ")
    assert found.correctness.tolerance == ADD.rtol


@pytest.mark.parametrize("says", ["", "all are equal"])
def test_without_a_reference_the_properties_are_checked(says: str) -> None:
    def properties(*_: object) -> None:
        if says:
            raise ValueError(says)

    class Drawing(Numbers):
        def prepare(self, operator: Operator, *given: object, **more: object) -> object:  # type: ignore[override]
            return super().prepare(replace(operator, reference=ADD.reference), *given, **more)  # type: ignore[arg-type]

    drawn = replace(ADD, reference=None, check=properties)
    case = ADD.cases(Preset.SMALL)[0]
    inputs = draw_inputs(ADD, case, np.dtype(np.float32), 0)
    runner = Drawing(RunnerOptions(threads=1))
    call = runner.prepare(drawn, case, inputs)
    found = check(drawn, runner, "", Mode.FORWARD, computed(call, Mode.FORWARD, case, inputs), 0)  # type: ignore[arg-type]
    assert found.correctness.against == "properties"
    assert found.wrong == (f"the outputs are wrong: {says}" if says else "")
