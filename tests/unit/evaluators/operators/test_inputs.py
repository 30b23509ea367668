"""The inputs of operators: the same for the same seed, and each kind of values in its range."""

import numpy as np
import pytest

from inferometer.agent.operators.operator import Case, Category, Operator, TensorSpec, Values, cotangents
from inferometer.evaluators.kinds.operators.request import draw_inputs

FLOAT32 = np.dtype(np.float32)


def drawn(*specs, name="made_up", dtype=FLOAT32, seed=0):
    operator = Operator(
        name=name,
        category=Category.UNARY,
        summary="",
        given=(),
        tensors=lambda case: specs,
        presets={},
        reference=None,
    )
    return draw_inputs(operator, Case({}, {}, "own"), np.dtype(dtype), seed)


def one(values, shape=(64, 64), *, dtype=FLOAT32, seed=0, **more):
    return drawn(TensorSpec("data", shape, values, **more), dtype=dtype, seed=seed)["data"]


def _is_within(low, high):
    return lambda found: low <= found.min() and found.max() <= high and found.std() > (high - low) / 5


def _is_positive_definite(found):
    return np.allclose(found, found.T) and np.linalg.eigvalsh(found).min() > 0


def _is_lower_triangular(found):
    diagonal = np.diag(found)
    return np.array_equal(found, np.tril(found)) and diagonal.min() >= 1 and diagonal.max() <= 2


def _is_distribution(found):
    least, greatest = found.min(axis=-1), found.max(axis=-1)
    return least.min() > 0 and np.allclose(found.sum(axis=-1), 1) and (greatest <= 3.001 * least).all()


HOLDS = {
    Values.NORMAL: lambda found: abs(found.mean()) < 0.1 and 0.9 < found.std() < 1.1,
    Values.POSITIVE: _is_within(0.5, 1.5),
    Values.UNIT: _is_within(-0.9, 0.9),
    Values.ABOVE_ONE: _is_within(1.1, 2.0),
    Values.PROBABILITY: _is_within(0.05, 0.95),
    Values.DISTRIBUTION: _is_distribution,
    Values.NONZERO: lambda found: abs(found).min() >= 0.5 and (found < 0).any() and (found > 0).any(),
    Values.SIGNS: lambda found: set(np.unique(found)) == {-1, 1},
    Values.DISTINCT: lambda found: len(np.unique(found)) == found.size and np.ptp(found) < 1,
    Values.BOOLEAN: lambda found: set(np.unique(found)) == {0, 1},
    Values.INDICES: lambda found: set(np.unique(found)) == set(range(7)),
    Values.LENGTHS: lambda found: set(np.unique(found)) == set(range(1, 8)),
    Values.DISTINCT_INDICES: lambda found: sorted(found.flat) == list(range(found.size)),
    Values.MASK: lambda found: found.any() and not found.all(),
    Values.BOXES: lambda found: (found[:, 3:] >= found[:, 1:3]).all() and found[:, 0].max() <= 6,
    Values.POSITIVE_DEFINITE: _is_positive_definite,
    Values.LOWER_TRIANGULAR: _is_lower_triangular,
    Values.ZEROS: lambda found: not found.any(),
}


SHAPES = {Values.BOXES: (64, 5)}
LIMITS = {Values.DISTINCT_INDICES: 64 * 64}
TYPES = {
    Values.INDICES: np.int64,
    Values.LENGTHS: np.int64,
    Values.DISTINCT_INDICES: np.int64,
    Values.MASK: np.bool_,
}


def limited(values, seed=0):
    return one(values, SHAPES.get(values, (64, 64)), limit=LIMITS.get(values, 7), seed=seed)


def test_every_kind_of_values_is_looked_at():
    assert set(HOLDS) == set(Values)


@pytest.mark.parametrize("values", Values)
def test_each_kind_of_values_is_what_it_says(values):
    found = limited(values)

    assert found.shape == SHAPES.get(values, (64, 64))
    assert found.flags.c_contiguous
    assert found.dtype == TYPES.get(values, np.float32)
    assert HOLDS[values](found)


@pytest.mark.parametrize("values", Values)
def test_equal_seeds_give_equal_arrays(values):
    assert np.array_equal(limited(values, 3), limited(values, 3))


@pytest.mark.parametrize("values", [each for each in Values if each is not Values.ZEROS])
def test_other_seeds_give_other_arrays(values):
    assert not np.array_equal(limited(values, 3), limited(values, 4))


def test_inputs_of_one_operator_and_of_two_differ():
    specs = (TensorSpec("lhs", (8, 8)), TensorSpec("rhs", (8, 8)))

    found, other = drawn(*specs), drawn(*specs, name="another")

    assert not np.array_equal(found["lhs"], found["rhs"])
    assert not np.array_equal(found["lhs"], other["lhs"])


def test_a_type_of_more_digits_has_the_same_values():
    assert np.array_equal(one(Values.NORMAL), one(Values.NORMAL, dtype=np.float64).astype(np.float32))


def test_a_scale_multiplies_the_values():
    found = one(Values.POSITIVE, scale=10.0)

    assert found.min() >= 5
    assert found.max() <= 15


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_are_ten_times_the_values(dtype):
    found = one(Values.ABOVE_ONE, dtype=dtype)

    assert found.dtype == dtype
    assert set(np.unique(found)) == set(range(11, 21))
    assert set(np.unique(one(Values.SIGNS, dtype=dtype))) == {-1, 1}


def test_many_integers_are_drawn_as_such():
    found = one(Values.NORMAL, ((1 << 24) + 1,), dtype=np.int8)

    assert found.dtype == np.int8
    assert (found.min(), found.max()) == (-10, 10)


def test_an_operator_may_have_no_inputs():
    assert drawn() == {}


def test_cotangents_depend_on_the_shape_alone():
    assert np.array_equal(cotangents((4, 5)), cotangents((4, 5)))
    assert cotangents((4, 5)).shape == (4, 5)
    assert not np.array_equal(cotangents((4, 5)), cotangents((5, 4)).T)
