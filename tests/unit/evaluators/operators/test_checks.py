"""What a row is checked against: its own inputs where that is quick, and smaller ones where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.operators.operator import Case, Operator, Preset, RunnerOptions, Shape, operators
from inferometer.evaluators.kinds.operators.checks import (
    Check,
    Computed,
    LaterRuns,
    WrongRunError,
    check,
    computed,
    gradient_difference,
    output_difference,
)
from inferometer.evaluators.kinds.operators.options import Mode
from inferometer.evaluators.kinds.operators.request import draw_inputs
from tests.integration.operator_frameworks import WRONG, Numbers

ADD = operators()["add"]


def computed_by(operator: Operator, case: Case) -> Computed:
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    call = Numbers(RunnerOptions(threads=1)).prepare(operator, case, inputs)
    return computed(call, Mode.FORWARD, case, inputs)


def checked(operator: Operator, case: Case) -> Check:
    found = computed_by(operator, case)
    return check(operator, Numbers(RunnerOptions(threads=1)), "", Mode.FORWARD, found, 0)


def test_quick_references_see_the_inputs_of_the_row() -> None:
    found = checked(ADD, ADD.cases(Preset.SMALL)[0])
    assert (found.correctness.against, found.wrong) == ("reference", "")
    assert found.correctness.max_relative is not None
    assert found.correctness.max_relative <= 1e-6


@pytest.mark.parametrize("name", [name for name in operators() if name.endswith(("_update", "_phase1"))])
def test_an_update_without_its_weight_decay_is_wrong(name: str) -> None:
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    without = [np.zeros_like(array) if key == "wds" else array for key, array in inputs.items()]
    assert operator.reference is not None
    expected = operator.reference([*inputs.values()], case.parameters)
    outputs = operator.reference(without, {**case.parameters, "wd": 0.0})

    assert output_difference(operator, case, inputs, expected, "float32").is_right
    assert not output_difference(operator, case, inputs, outputs, "float32").is_right


def slow(name: str) -> Operator:
    return replace(operators()[name], flops=lambda _case, _outputs: 2 * 10**10)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("add", {"lhs": (600, 600), "rhs": (600, 600)}),
        ("dot", {"lhs": (300, 200), "rhs": (200, 400)}),
        ("softmax", {"data": (16, 3, 8, 8)}),
        ("conv2d", {"data": (12, 3, 16, 16)}),
    ],
)
def test_slow_references_see_random_rows_of_the_inputs_of_the_row(
    name: str, shapes: dict[str, Shape]
) -> None:
    case = operators()[name].own_case(shapes)
    found = checked(slow(name), case)
    assert (found.correctness.against, found.wrong) == ("reference, on random rows", "")
    last_half = computed_by(slow(name), case)
    for array in last_half.outputs:
        array[len(array) // 2 :] += 1
    wrong = check(slow(name), Numbers(RunnerOptions(threads=1)), "", Mode.FORWARD, last_half, 5)
    assert wrong.wrong.startswith("the outputs differ from the reference, on random rows by ")


@pytest.mark.parametrize("name", ["transpose", "lstm", "batch_norm_training"])
def test_slow_references_of_rows_that_depend_on_one_another_see_smaller_inputs(name: str) -> None:
    found = checked(slow(name), operators()[name].cases(Preset.SMALL)[-1])
    assert (found.correctness.against, found.wrong) == ("reference, on smaller inputs", "")


def test_rows_of_matrices_that_are_not_those_of_the_small_case_are_not_taken_for_it() -> None:
    """``tril`` of a batch of matrices has rows that stand alone, and that of one matrix has not."""
    found = checked(slow("tril"), operators()["tril"].own_case({"data": (64, 64)}))
    assert (found.correctness.against, found.wrong) == ("reference, on smaller inputs", "")


def later_runs(operator: Operator, found: Computed) -> LaterRuns:
    return LaterRuns(operator, found, Mode.FORWARD, "float32", 0)


class Returning:
    """A call whose outputs are given."""

    def __init__(self, *outputs: NDArray[Any]) -> None:
        self._outputs = outputs

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return self._outputs


def test_a_later_run_is_compared_at_random_elements() -> None:
    case = ADD.own_case({"lhs": (400, 400), "rhs": (400, 400)})
    found = computed_by(ADD, case)
    later, right = later_runs(ADD, found), found.outputs[0].copy()
    later.compare(Returning(right))  # type: ignore[arg-type]
    rounded = right * np.float32(1 + 1e-6)
    later.compare(Returning(rounded))  # type: ignore[arg-type]
    for place in range(100):  # a share of 1 % is missed with a probability of 0.99^4096 = 1e-18
        wrong = right.copy()
        wrong.reshape(-1)[place::100] += 1
        with pytest.raises(WrongRunError, match="the outputs of a timed run differ from those of the run"):
            later.compare(Returning(wrong))  # type: ignore[arg-type]
    for outputs in ((), (right, right), (right[:1],)):
        with pytest.raises(WrongRunError, match="a timed run"):
            later.compare(Returning(*outputs))  # type: ignore[arg-type]


def test_runs_in_place_differ_and_those_of_random_ones_have_properties() -> None:
    found = computed_by(ADD, ADD.cases(Preset.SMALL)[0])
    other = Returning(found.outputs[0] + 1)
    later_runs(replace(ADD, in_place="lhs"), found).compare(other)  # type: ignore[arg-type]

    def refuse(*_: object) -> None:
        raise ValueError("all are equal")

    later_runs(replace(ADD, reference=None), found).compare(other)  # type: ignore[arg-type]
    with pytest.raises(WrongRunError, match="of a timed run are wrong: all are equal"):
        later_runs(replace(ADD, reference=None, check=refuse), found).compare(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "right"), [("make_loss", 1), ("stop_gradient", 0)])
def test_the_gradient_of_a_layer_that_ends_a_network_is_that_of_its_loss(name: str, right: int) -> None:
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    for value in (0, 1):
        gradients = {"data": np.full_like(inputs["data"], value)}
        found = gradient_difference(operator, case, inputs, gradients, "float32")
        assert found is not None
        assert found.is_right is (value == right)


def test_an_output_is_as_precise_as_its_own_type() -> None:
    """The new weight is rounded to float16, and its copy is not."""
    operator = operators()["mp_sgd_update"]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    assert {name: array.dtype.name for name, array in inputs.items()} == {
        "weight": "float16",
        "grad": "float16",
        "weight32": "float32",
    }
    assert operator.reference is not None
    new, copy = operator.reference([array.astype(np.float64) for array in inputs.values()], case.parameters)
    for outputs, is_right in (
        ([new.astype(np.float16), copy.astype(np.float32)], True),
        ([new.astype(np.float32), copy.astype(np.float16).astype(np.float32)], False),
        ([inputs["weight"], copy.astype(np.float32)], False),
        # the greater difference is within its tolerance
        ([(new * 1.004).astype(np.float16), (copy * 1.001).astype(np.float32)], False),
    ):
        assert output_difference(operator, case, inputs, outputs, "float32").is_right is is_right


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
