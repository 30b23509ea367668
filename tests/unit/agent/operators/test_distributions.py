"""Whether numbers that are not drawn from a distribution are found, and those that are pass."""

from itertools import permutations

import numpy as np
import pytest

from inferometer.agent.operators.operator import Preset, operators
from inferometer.agent.operators.table import creation
from inferometer.agent.operators.table.creation import is_drawn_from
from inferometer.evaluators.kinds.operators.request import draw_inputs

SHAPE = (100, 200)
RANDOM = np.random.default_rng(5)
DRAWN = {
    "uniform": (creation.uniform(-1, 3), RANDOM.uniform(-1, 3, SHAPE)),
    "normal": (creation.normal(2, 3), RANDOM.normal(2, 3, SHAPE)),
    "gamma": (creation.gamma(2, 0.5), RANDOM.gamma(2, 0.5, SHAPE)),
    "exponential": (creation.exponential(4), RANDOM.exponential(1 / 4, SHAPE)),
    "poisson": (creation.poisson(4), RANDOM.poisson(4, SHAPE)),
    "negative_binomial": (creation.negative_binomial(4, 0.3), RANDOM.negative_binomial(4, 0.3, SHAPE)),
    "discrete_uniform": (creation.discrete_uniform(3, 9), RANDOM.integers(3, 9, SHAPE)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_from_a_distribution_passes(name):
    moments, found = DRAWN[name]

    is_drawn_from(moments, [found], SHAPE)


@pytest.mark.parametrize(("name", "other"), list(permutations(DRAWN, 2)))
def test_what_is_drawn_from_another_does_not(name, other):
    with pytest.raises(ValueError, match=r"the values are in|a value is not|the mean is|the variance is"):
        is_drawn_from(DRAWN[name][0], [DRAWN[other][1]], SHAPE)


@pytest.mark.parametrize("name", DRAWN)
def test_the_kurtosis_is_that_of_a_large_sample(name):
    moments, found = DRAWN[name]
    away = found - found.mean()

    assert np.mean(away**4) / np.mean(away**2) ** 2 == pytest.approx(moments.kurtosis, rel=0.25)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda found: found[0], r"the outputs have the shapes \[\(200,\)\]"),
        (lambda found: np.where(found > 0.9, np.nan, found), "a value is not finite"),
        (lambda found: found + 0.5, "the values are in 0.5.*, not in 0…1"),
        (lambda found: found**2, "the mean is 0.33"),
        (lambda found: 0.5 + (found - 0.5) / 2, "the variance is 0.02"),
    ],
)
def test_the_reason_names_what_is_wrong(changed, message):
    found = np.random.default_rng(1).uniform(0, 1, SHAPE)

    with pytest.raises(ValueError, match=message):
        is_drawn_from(creation.uniform(0, 1), [changed(found)], SHAPE)


@pytest.mark.parametrize("name", [name for name in operators() if name.startswith("sample_")])
def test_each_row_of_samples_has_the_parameters_of_its_distribution(name):
    operator = operators()[name]
    case = operator.cases(Preset.NORMAL)[0]
    inputs = list(draw_inputs(operator, case, np.dtype(np.float64), 0).values())
    given = [each[:, None] for each in inputs]
    if name == "sample_exponential":
        given = [1 / given[0]]
    elif name == "sample_generalized_negative_binomial":
        given = [1 / given[1], 1 / (1 + given[0] * given[1])]
    kind = name.removeprefix("sample_").removeprefix("generalized_")
    found = getattr(RANDOM, kind)(*given, size=(1024, case["draws"]))

    operator.check([found], inputs, case)
    for wrong in (found[::-1], found * 1.1, found[:, :-1], found - 1):
        with pytest.raises(ValueError, match=r"the shape|a value|the mean|the variance"):
            operator.check([wrong], inputs, case)


def test_fractions_are_no_counts():
    with pytest.raises(ValueError, match="a value is not an integer"):
        is_drawn_from(creation.poisson(4), [RANDOM.gamma(4, 1, SHAPE)], SHAPE)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_rows_are_shuffled_whole(dtype):
    operator = operators()["shuffle"]
    case = operator.cases(Preset.SMALL)[0]
    [data] = draw_inputs(operator, case, np.dtype(dtype), 0).values()

    operator.check([RANDOM.permutation(data)], [data], case)
    for wrong in (data.T, data[:-1], np.zeros_like(data)):
        with pytest.raises(ValueError, match="the rows of the output are not those of the input"):
            operator.check([wrong], [data], case)
