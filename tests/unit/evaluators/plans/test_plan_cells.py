"""The cells of plans: how many, which, with which ids and in which order. The counts are made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.plans.cells import Cell, cells_of, runs_of
from inferometer.evaluators.plans.plan import Plan, plan_of
from inferometer.manifests.errors import ConfigurationError

FRAMEWORKS, BATCHES, TYPES = ["PyTorch", "MXNet"], [1, 8, 64], ["float32", "float16"]
GRID: dict[str, list[Any]] = {"framework_name": FRAMEWORKS, "batch_size": BATCHES, "dtype": TYPES}


def plan(**content: Any) -> Plan:
    return plan_of({"name": "p", "command": "predict dataset", **content}, "p.yaml")


def expanded(**content: Any) -> Sequence[Cell]:
    return cells_of(plan(**content))


def chosen(cells: Sequence[Cell], *names: str) -> Sequence[tuple[Any, ...]]:
    return [tuple(cell.parameters.get(name) for name in names) for cell in cells]


def ids(**content: Any) -> set[str]:
    return {cell.id for cell in expanded(**content)}


def refused(message: str, **content: Any) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        expanded(**content)
    assert str(refusal.value) == message


def test_a_grid_of_2_x_3_x_2_is_12_cells_in_the_order_of_its_variables() -> None:
    cells = expanded(variables=GRID)
    assert chosen(cells, *GRID) == list(itertools.product(FRAMEWORKS, BATCHES, TYPES))
    assert len({cell.id for cell in cells}) == 12


def test_ids_do_not_change_with_the_order_of_keys_nor_of_variables() -> None:
    parameters = {"model_name": "ResNet50", "num_batches": 4}
    expected = ids(variables=GRID, parameters=parameters)
    assert len(expected) == 12
    for order in itertools.permutations(GRID):
        turned = {name: GRID[name] for name in order}
        assert ids(variables=turned, parameters=dict(reversed(parameters.items()))) == expected
        assert ids(variables=GRID, parameters=parameters, var_order=list(order)) == expected
    assert (
        ids(variables={name: values[::-1] for name, values in GRID.items()}, parameters=parameters)
        == expected
    )


def test_an_id_stays_what_it_was() -> None:
    # journals name cells by id: when it changes, plans that are half done start anew
    (cell,) = expanded(parameters={"model_name": "ResNet50", "batch_size": 8, "cell.software": "here"})
    assert cell.id == "09577c7fdc87"


NAMES = st.sampled_from(["a", "b", "c", "d.own", "cell.software"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.just("text ☃"))


@given(st.dictionaries(NAMES, st.one_of(SCALARS, st.lists(SCALARS, max_size=2))), st.randoms())
def test_no_order_of_parameters_changes_an_id(parameters: dict[str, Any], random: Any) -> None:
    names = list(parameters)
    random.shuffle(names)
    assert ids(parameters={name: parameters[name] for name in names}) == ids(parameters=parameters)


def test_an_id_is_of_the_command_its_options_and_how_it_runs_but_not_of_the_plan() -> None:
    (one,) = expanded(parameters={"x": 1, "cell.software": "a", "own.note": "n"})
    assert [cell.id for cell in expanded(parameters={"x": 1, "cell.software": "a", "own.note": "other"})] == [
        one.id
    ]
    (renamed,) = cells_of(plan(parameters={"x": 1, "cell.software": "a"}).model_copy(update={"name": "q"}))
    assert renamed.id == one.id
    others = [
        expanded(parameters={"x": 2, "cell.software": "a"}),
        expanded(parameters={"x": 1, "cell.software": "b"}),
        expanded(parameters={"x": 1, "cell.software": "a"}, command="bench training"),
        expanded(parameters={"x": 1, "cell.software": "a"}, arguments=["more"]),
    ]
    assert len({one.id, *(cell.id for cells in others for cell in cells)}) == 5


def test_cells_with_equal_command_lines_are_one() -> None:
    # 16, "16" and a reference to 16 are written alike; null is left out, as if it were not there
    (cell,) = expanded(
        variables={"batch_size": [16, "16", "${n.x}"]}, parameters={"n.x": 16, "threads": None}
    )
    assert cell.argv == ("predict", "dataset", "--batch_size=16")
    assert ids(parameters={"batch_size": 16}) == {cell.id}


def test_a_list_repeats_its_option_and_true_is_written_small() -> None:
    (cell,) = expanded(parameters={"format": ["csv", "json"], "publish": True, "x": 0.5}, arguments=["gemm"])
    assert cell.argv == (
        *("predict", "dataset", "gemm"),
        *("--format=csv", "--format=json", "--publish=true", "--x=0.5"),
    )
    assert cell.name == "format=csv json publish=true x=0.5"


def test_the_example_of_the_reference_is_4_cells() -> None:
    # two frameworks, of which one has a batch of its own
    extension = {"condition": {"framework_name": "PyTorch"}, "parameters": {"batch_size": 2}}
    cells = expanded(
        parameters={"batch_size": 1},
        variables={"framework_name": FRAMEWORKS, "dtype": TYPES},
        extensions=[extension],
    )
    assert chosen(cells, "framework_name", "batch_size") == [("PyTorch", 2)] * 2 + [("MXNet", 1)] * 2


def test_two_values_with_two_cases_each_are_4_cells() -> None:
    cells = expanded(variables={"a": [1, 2]}, extensions=[{"cases": [{"b": 1}, {"b": 2, "c": 3}]}])
    assert chosen(cells, "a", "b", "c") == [(1, 1, None), (1, 2, 3), (2, 1, None), (2, 2, 3)]


def test_cases_replace_only_the_cells_that_fit() -> None:
    # 2 models x 2 batches; alexnet's 2 cells become 3 each, vgg16's 2 stay: 8
    cells = expanded(
        variables={"model_name": ["alexnet", "vgg16"], "batch_size": [1, 2]},
        extensions=[
            {
                "condition": {"model_name": "alexnet"},
                "parameters": {"seed": 1},
                "cases": [{"threads": 1}, {"threads": 2}, {"threads": 4, "seed": 2}],
            }
        ],
    )
    of_alexnet = [(1, 1), (2, 1), (4, 2)] * 2  # a case comes after the parameters of its extension
    assert chosen(cells, "threads", "seed") == of_alexnet + [(None, None)] * 2


def test_an_extension_sees_what_those_before_it_changed() -> None:
    # the first makes 2 of 1, the second fits one of them and makes 2 of it: 3
    cells = expanded(
        parameters={"a": 0},
        extensions=[
            {"condition": {"a": 0}, "cases": [{"a": 1}, {"a": 2}]},
            {"condition": {"a": 2}, "cases": [{"b": 1}, {"b": 2}]},
        ],
    )
    assert chosen(cells, "a", "b") == [(1, None), (2, 1), (2, 2)]


def test_groups_of_a_condition_name_what_it_matched() -> None:
    # DLBS's fork: one text is taken apart, and even replaces itself
    (cell,) = expanded(
        parameters={"framework_name": "bvlc_caffe"},
        extensions=[
            {
                "condition": {"framework_name": "([^_]+)_(.+)"},
                "parameters": {
                    "own.whole": "${__condition.framework_name_0}",
                    "fork": "${__condition.framework_name_1}",
                    "both": ["${__condition.framework_name_2}", "of ${__condition.framework_name_1}"],
                    "framework_name": "${__condition.framework_name_2}",
                },
            }
        ],
    )
    assert chosen([cell], "own.whole", "fork", "framework_name") == [("bvlc_caffe", "bvlc", "caffe")]
    assert cell.parameters["both"] == ["caffe", "of bvlc"]


def test_two_extensions_keep_their_groups_apart() -> None:
    (cell,) = expanded(
        parameters={"m": "resnet50"},
        extensions=[
            {"condition": {"m": "res(.*)"}, "parameters": {"a": "${__condition.m_1}"}},
            {"condition": {"m": "(.*)50"}, "parameters": {"b": "${__condition.m_1}"}},
        ],
    )
    assert chosen([cell], "a", "b") == [("net50", "resnet")]


def test_a_nested_reference_reads_the_parameter_of_each_framework() -> None:
    # 2 frameworks, each with its image
    cells = expanded(
        parameters={
            "PyTorch.image": "torch:2",
            "MXNet.image": "mx:1",
            "cell.container": "${${framework_name}.image}",
        },
        variables={"framework_name": FRAMEWORKS},
    )
    assert chosen(cells, "cell.container") == [("torch:2",), ("mx:1",)]


def test_var_order_says_what_varies_slowest() -> None:
    # what it names and the plan lacks is passed over, as in DLBS
    cells = expanded(variables={"a": [1, 2], "b": [3, 4]}, var_order=["c", "b"])
    assert chosen(cells, "a", "b") == [(1, 3), (2, 3), (1, 4), (2, 4)]


def test_exclude_include_and_constraints() -> None:
    # 2 x 3 of a grid, less 2 (each batch of 64), less 1 (8 * 33 ranks), and 1 of the 2 beside the grid: 4
    cells = expanded(
        parameters={"num_ranks": 4},
        variables={"framework_name": FRAMEWORKS, "batch_size": BATCHES},
        exclude=[{"batch_size": 64}, {"batch_size": 1, "absent": 1}],
        include=[{"framework_name": "ONNXRuntime", "batch_size": 2}, {"batch_size": 65}],
        constraints=["${batch_size} * ${num_ranks} <= 256", "${framework_name} != Caffe"],
        extensions=[
            {"condition": {"framework_name": "MXNet", "batch_size": 8}, "parameters": {"num_ranks": 33}}
        ],
    )
    assert chosen(cells, "framework_name", "batch_size") == [
        ("PyTorch", 1),
        ("PyTorch", 8),
        ("MXNet", 1),
        ("ONNXRuntime", 2),
    ]


def test_a_plan_without_variables_is_one_cell() -> None:
    assert len(expanded(parameters={"a": 1})) == 1


def test_a_variable_replaces_a_parameter_and_one_value_needs_no_list() -> None:
    assert chosen(expanded(parameters={"a": 1, "b": "${a}"}, variables={"a": 2}), "a", "b") == [(2, 2)]


@pytest.mark.parametrize(
    ("kind", "value", "cast"),
    [
        ("int", "12", 12),
        ("int", 12.0, 12),
        ("float", "1e3", 1000.0),
        ("bool", "On", True),
        ("bool", 0, False),
        ("str", 16, "16"),
        ("str", True, "true"),
        ("int", None, None),
        ("int", ["1", 2], [1, 2]),
    ],
)
def test_a_value_has_the_type_of_its_parameter(kind: str, value: Any, cast: Any) -> None:
    (cell,) = expanded(parameters={"a": {"val": value, "type": kind, "desc": ["what", "it is"]}})
    assert cell.parameters["a"] == cast
    assert type(cell.parameters["a"]) is type(cast)


def test_a_type_is_that_after_references() -> None:
    parameters = {"a": {"val": "${b}${b}", "type": "int", "val_domain": [88]}, "b": 8}
    assert chosen(expanded(parameters=parameters), "a") == [(88,)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", "x"), ("int", 1.5), ("int", True), ("float", "1,5"), ("bool", "perhaps"), ("bool", 2)],
)
def test_a_wrong_type_is_refused(kind: str, value: Any) -> None:
    text = "true" if value is True else value
    refused(f'parameter a: "{text}" is not of type {kind}', parameters={"a": {"val": value, "type": kind}})


def test_an_integer_beyond_a_float_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not of type float"):
        expanded(parameters={"a": {"val": 10**400, "type": "float"}})


def test_types_of_extensions_and_of_cells_beside_the_grid_count() -> None:
    wrong = {"a": {"val": "x", "type": "int"}}
    for content in (
        {"extensions": [{"parameters": wrong}]},
        {"extensions": [{"cases": [wrong]}]},
        {"include": [wrong]},
    ):
        refused('parameter a: "x" is not of type int', **content)


def test_a_value_outside_its_domain_is_refused_where_it_comes_from_a_variable_too() -> None:
    domain: Mapping[str, Any] = {"dtype": {"val": "float32", "val_domain": ["float32", "float16"]}}
    assert len(expanded(parameters=domain, variables={"dtype": TYPES})) == 2
    refused(
        'parameter dtype: "int8" is not in its domain: float32, float16',
        parameters=domain,
        variables={"dtype": [*TYPES, "int8"]},
    )


def test_an_unknown_group_is_named_as_it_is_written() -> None:
    refused(
        'parameter b: unknown reference "__condition.m_2"; did you mean '
        '"__condition.m_1" or "__condition.m_0"?',
        parameters={"m": "resnet50"},
        extensions=[{"condition": {"m": "res(.*)"}, "parameters": {"b": "${__condition.m_2}"}}],
    )


def test_a_condition_on_a_value_with_references_is_refused() -> None:
    refused(
        'the condition on a cannot be decided: its value "${b}" has references; conditions accept only '
        "parameters without references and expressions",
        parameters={"a": "${b}", "b": 1},
        extensions=[{"condition": {"a": 1}}],
    )


def test_a_grid_that_nobody_means_is_refused_at_once() -> None:
    refused(
        "plan p: its variables and cases make up to 10,000,000,000 cells, more than 1,000,000; split it into "
        "several plans",
        variables={f"v{number}": list(range(10)) for number in range(9)},
        extensions=[{"cases": [{"c": number} for number in range(10)]}],
    )


def test_repetitions_are_interleaved_in_an_order_that_the_seed_gives() -> None:
    content = {"variables": {"a": list(range(8))}, "repeat": 3, "seed": 5}
    runs = list(runs_of(plan(**content), expanded(**content)))
    assert [run.repetition for run in runs] == [1] * 8 + [2] * 8 + [3] * 8
    orders = [[run.cell.id for run in runs[start : start + 8]] for start in (0, 8, 16)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert [run.key for run in runs_of(plan(**content), expanded(**content))] == [run.key for run in runs]
    other = {**content, "seed": 6}
    assert [run.key for run in runs_of(plan(**other), expanded(**other))] != [run.key for run in runs]
    assert len({run.key for run in runs}) == 24
