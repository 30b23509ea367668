"""The names of what is given beside a plan: whose they are, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.evaluators.plans.cells import cells_of
from inferometer.evaluators.plans.dlbs_names import GivenNames
from inferometer.evaluators.plans.plan import plan_of
from inferometer.manifests.errors import ConfigurationError

PLAN: dict[str, Any] = {
    "name": "plan",
    "command": "bench training",
    "parameters": {"batch_size": 16, "exp.phase": "training", "data_dir": "${own.root}/${batch_size}"},
    "variables": {"framework_name": ["mxnet", "pytorch"]},
    "extensions": [
        {
            "condition": {"own.tested": "a"},
            "parameters": {"cell.container": "${${framework_name}.image}"},
            "cases": [{"own.case": 1}],
        }
    ],
}


def given(extensions: list[Any] | None = None, names: tuple[str, ...] = ()) -> GivenNames:
    return GivenNames(plan_of(PLAN, "plan"), names, extensions or [])


@pytest.mark.parametrize(
    "name",
    [
        *("batch_size", "gpus", "exp.phase", "own.root", "own.tested", "own.case", "pytorch.image"),
        *(
            "cell.container",
            "cell.env.LC_ALL",
            "cell.library_path",
            "cell.nodes",
            "cell.tasks_per_node",
            "exp.status",
        ),
    ],
)
def test_options_and_what_the_plan_names_stay_as_they_are(name: str) -> None:
    assert given().renamed({name: 1}) == {name: 1}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("exp.replica_batch", "batch_size"),
        ("exp.framework", "framework_name"),
        ("exp.docker_image", "cell.container"),
        ("runtime.env.LC_ALL", "cell.env.LC_ALL"),
        ("runtime.launcher", "cell.launcher"),
        ("exp.num_nodes", "cell.nodes"),
    ],
)
def test_names_of_dlbs_become_ours(name: str, ours: str) -> None:
    assert given().renamed({name: ["pytorch"]}) == {ours: ["pytorch"]}


def test_the_model_of_dlbs_has_the_name_that_the_plan_uses() -> None:
    plan = plan_of({**PLAN, "variables": {"model": ["a", "b"]}}, "plan")
    found = GivenNames(plan, (), []).renamed({"exp.model": "c", "exp.data_dir": "/${exp.model}"})
    assert found == {"model": "c", "data_dir": "/${model}"}


def test_references_to_names_of_dlbs_become_ours() -> None:
    written = {"exp.data_dir": "/data/${exp.model}/${exp.phase}/${__condition.exp.model_0}"}
    assert given().renamed(written) == {
        "data_dir": "/data/${model_name}/${exp.phase}/${__condition.exp.model_0}"
    }


def test_an_option_of_one_framework_is_one_of_its_cells_alone() -> None:
    names = given(
        [{"condition": {"batch_size": 16}, "parameters": {"mxnet.workspace": 1}}], ("mxnet.kv_store",)
    )
    assert names.renamed({"mxnet.kv_store": "local"}) == {"mxnet.kv_store": "local"}
    content = {**PLAN, "parameters": {**PLAN["parameters"], "mxnet.kv_store": "local"}, "extensions": []}
    content["extensions"] = names.extensions()
    cells = cells_of(plan_of(names.completed(content), "plan"), {"own.root": "/"})
    shown = ("framework_name", "kv_store", "workspace")
    assert [tuple(each.options.get(name) for name in shown) for each in cells] == [
        ("mxnet", "local", 1),
        ("pytorch", None, None),
    ]


def test_an_extension_of_dlbs_becomes_ours() -> None:
    extension = {"condition": {"exp.replica_batch": 16}, "cases": [{"exp.dtype": "float16"}, {"own.b": 1}]}
    another = {"condition": {"own.b": 1}, "parameters": {"exp.num_batches": 2}}
    assert given([extension, another]).extensions() == [
        {"condition": {"batch_size": 16}, "cases": [{"dtype": "float16"}, {"own.b": 1}]},
        {"condition": {"own.b": 1}, "parameters": {"num_batches": 2}},
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("exp.framwork", "mxnet", 'nothing refers to it; did you mean "exp.framework"'),
        ("own.rot", 1, "own.rot: the plan has no such parameter, and nothing refers to it; "),
        ("cell.sofware", "a", 'nothing refers to it; did you mean "cell.software"'),
        ("exp.framework", "tensorrt", "exp.framework=tensorrt: not among the supported frameworks of DLBS"),
        ("exp.dtype", ["float32", "int8"], "exp.dtype=int8: dtype takes float, float32, float16"),
        ("exp.effective_batch", 64, "exp.effective_batch: has no equivalent here: DLBS computes it"),
        ("exp.trial", [1, 2], "exp.trial: has no equivalent here: repeat in the plan sets how often"),
        ("tensorrt.cache", "/tmp", "tensorrt.cache: has no equivalent here: framework tensorrt is not"),
        ("mxnet.env", "A=1", "mxnet.env: has no equivalent here: set cell.env.NAME in an extension"),
        ("mxnet.rendezvous", "a:1", "mxnet.rendezvous: has no equivalent here: the ranks of a cell with"),
    ],
)
def test_what_has_no_use_is_refused_in_one_line(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        given().renamed({name: value})
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigurationError) as refusal:
        given([{"parameters": {name: value}}]).extensions()
    assert message in str(refusal.value)


def test_a_condition_on_what_nothing_sets_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"own\.testd: the plan has no such parameter"):
        given([{"condition": {"own.testd": "a"}, "parameters": {"batch_size": 1}}]).extensions()


def test_a_parameter_for_a_given_condition_is_used() -> None:
    names = given([{"condition": {"own.new": "a"}, "parameters": {"batch_size": 1}}], ("own.new",))
    assert names.renamed({"own.new": "a"}) == {"own.new": "a"}
    assert names.extensions()[0]["condition"] == {"own.new": "a"}


def test_what_is_no_extension_is_left_to_the_check_of_plans() -> None:
    assert given([1, {"cases": 2, "condition": []}]).extensions() == [1, {"cases": 2, "condition": []}]
