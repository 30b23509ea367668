"""The cases of an operator: those of its presets, and those of a user's own sizes."""

import pytest

from inferometer.agent.operators.operator import Preset, operators
from inferometer.manifests.errors import ConfigurationError


def test_a_preset_changes_some_parameters_and_leaves_the_others():
    case = operators()["arange"].cases(Preset.LARGE)[0]

    assert (case["start"], case["stop"], case["repeat"]) == (1.0, 1_000_001.0, 1)
    assert case.preset == "large"


def test_most_operators_have_no_huge_sizes():
    assert operators()["sqrt"].cases(Preset.HUGE) == ()
    assert operators()["add"].cases(Preset.HUGE)


def test_own_sizes_leave_the_rest_as_in_the_first_normal_case():
    case = operators()["clip"].own_case({}, {"low": -1.0})

    assert dict(case.shapes) == {"data": (1024, 1024)}
    assert dict(case.parameters) == {"low": -1.0, "high": 6.0}
    assert case.preset == "own"


def test_an_operator_without_inputs_has_its_size_as_a_parameter():
    assert operators()["zeros"].own_case({}, {"shape": (3, 5)})["shape"] == (3, 5)


def test_own_shapes_may_broadcast_where_the_operator_does():
    case = operators()["broadcast_add"].own_case({"lhs": (8, 1, 3), "rhs": (2, 3)})

    assert [spec.shape for spec in operators()["broadcast_add"].tensors(case)] == [(8, 1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("name", "shapes", "parameters", "message"),
    [
        ("add", {"left": (2, 2)}, {}, 'add: unknown input "left"'),
        ("add", {"lsh": (2, 2)}, {}, 'did you mean "lhs"'),
        ("clip", {}, {"lo": 0.0}, 'clip: unknown parameter "lo"; did you mean "low"'),
        ("add", {"lhs": (2, 2)}, {}, r"do not fit: lhs has the shape \(2, 2\), but rhs has \(1024, 1024\)"),
        ("power", {"lhs": (3, 2)}, {}, "power: the sizes do not fit"),
        ("exp", {"data": (0, 4)}, {}, r"data has the shape \(0, 4\); sizes must be 1 or more"),
        ("zeros", {}, {"shape": (0,)}, r"shape is \(0,\); sizes must be integers of 1 or more"),
        ("arange", {}, {"step": -1.0}, "the range is empty"),
        ("arange", {}, {"step": 0.0}, "arange: the sizes do not fit: .*division by zero"),
    ],
)
def test_own_sizes_that_do_not_fit_are_refused(name, shapes, parameters, message):
    with pytest.raises(ConfigurationError, match=message):
        operators()[name].own_case(shapes, parameters)
