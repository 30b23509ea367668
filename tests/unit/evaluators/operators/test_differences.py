"""Whether the check of an operator finds what is wrong, and passes what is right."""

import numpy as np
import pytest

from inferometer.agent.operators.operator import Category, Operator, Preset, TensorSpec, cotangents
from inferometer.evaluators.kinds.operators.checks import gradient_difference, output_difference
from inferometer.evaluators.kinds.operators.request import draw_inputs

SHAPE = (32, 32)


def product(**more):
    """An operator that computes lhs² rhs, with what is changed in it."""
    given = {
        "name": "product",
        "category": Category.ARITHMETIC,
        "summary": "lhs² * rhs",
        "given": ("lhs", "rhs"),
        "tensors": lambda case: (TensorSpec("lhs", SHAPE), TensorSpec("rhs", SHAPE)),
        "presets": {Preset.NORMAL: (({"lhs": SHAPE, "rhs": SHAPE}, {}),)},
        "reference": lambda arrays, _: (arrays[0] ** 2 * arrays[1],),
    }
    return Operator(**{**given, **more})


class Checked:
    """An operator with its inputs, and what is right for them in float32."""

    def __init__(self, **more):
        self.operator = product(**more)
        self.case = self.operator.cases(Preset.NORMAL)[0]
        self.inputs = draw_inputs(self.operator, self.case, np.dtype(np.float32), 0)
        lhs, rhs = self.inputs.values()
        weights = cotangents(SHAPE)
        self.right = lhs * lhs * rhs
        self.gradients = {"lhs": 2 * lhs * rhs * weights, "rhs": lhs * lhs * weights}

    def outputs(self, *outputs, dtype="float32"):
        return output_difference(self.operator, self.case, self.inputs, outputs, dtype)

    def gradient(self, dtype="float32", **changed):
        return gradient_difference(
            self.operator, self.case, self.inputs, {**self.gradients, **changed}, dtype
        )


@pytest.fixture
def checked():
    return Checked()


def with_one(array, value):
    changed = array.copy()
    changed[3, 4] = value
    return changed


def test_a_right_output_passes(checked):
    found = checked.outputs(checked.right)

    assert found.is_right
    assert 0 < found.max_relative <= found.tolerance == 1e-5


def test_one_wrong_element_is_found(checked):
    found = checked.outputs(with_one(checked.right, checked.right[3, 4] + 0.01))

    assert not found.is_right
    assert found.max_absolute == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_no_number_is_found(checked, value):
    assert not checked.outputs(with_one(checked.right, value)).is_right


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_in_the_reference_is_right(value):
    checked = Checked(reference=lambda arrays, _: (with_one(arrays[0] ** 2 * arrays[1], value),))

    assert checked.outputs(with_one(checked.right, value)).is_right
    assert not checked.outputs(checked.right).is_right


def test_another_shape_is_refused(checked):
    with pytest.raises(ValueError, match=r"shape \(1024,\), but the reference has \(32, 32\)"):
        checked.outputs(checked.right.ravel())


def test_another_number_of_outputs_is_refused(checked):
    with pytest.raises(ValueError, match="there are 2 outputs, but the reference has 1"):
        checked.outputs(checked.right, checked.right)


def test_the_worst_of_several_outputs_counts():
    checked = Checked(reference=lambda arrays, _: (arrays[0], arrays[1]))
    lhs, rhs = checked.inputs.values()

    assert checked.outputs(lhs, rhs).is_right
    assert not checked.outputs(with_one(lhs, np.nan), rhs).is_right
    assert not checked.outputs(lhs, with_one(rhs, 7.0)).is_right


def test_less_precise_types_have_a_wider_tolerance(checked):
    rounded = checked.right.astype(np.float16)

    assert not checked.outputs(rounded).is_right
    assert checked.outputs(rounded, dtype="float16").is_right
    assert not checked.outputs(rounded, dtype="float64").is_right


def test_integers_are_compared_exactly():
    checked = Checked(reference=lambda arrays, _: (np.argsort(arrays[0], axis=1),))
    right = np.argsort(checked.inputs["lhs"], axis=1)

    assert checked.outputs(right, dtype="int64").max_absolute == 0
    assert not checked.outputs(with_one(right, right[3, 4] + 1), dtype="int64").is_right


def test_without_a_reference_the_operators_own_check_decides():
    def check(arrays, inputs, case):
        assert len(inputs) == 2
        if arrays[0].shape != case.shapes["lhs"]:
            raise ValueError("another shape")

    checked = Checked(reference=None, check=check)

    assert checked.outputs(checked.right).is_right
    with pytest.raises(ValueError, match="another shape"):
        checked.outputs(checked.right[0])
    assert checked.gradient() is None


def test_right_gradients_pass(checked):
    found = checked.gradient()

    assert found.is_right
    assert found.max_relative < found.tolerance


@pytest.mark.parametrize("name", ["lhs", "rhs"])
def test_one_wrong_element_of_a_gradient_is_found(checked, name):
    right = checked.gradients[name]

    assert not checked.gradient(**{name: with_one(right, right[3, 4] + 1)}).is_right


@pytest.mark.parametrize("factor", [0, -1, 2, np.nan])
def test_a_gradient_times_a_factor_is_found(checked, factor):
    assert not checked.gradient(lhs=checked.gradients["lhs"] * np.float32(factor)).is_right


def test_no_gradients_are_not_compared(checked):
    assert gradient_difference(checked.operator, checked.case, checked.inputs, {}, "float32") is None
