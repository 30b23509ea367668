"""What a configuration of DLBS says of software and nodes, as parameters of cells."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.evaluators.plans.test_dlbs_import import expanded, imported


def test_nodes_become_those_of_cells() -> None:
    extension = {"condition": {"exp.num_nodes": 2}, "parameters": {"exp.replica_batch": 8}}
    found = imported({"variables": {"exp.num_nodes": [1, 2]}, "extensions": [extension]})
    names = ("cell.nodes", "batch_size")
    assert [tuple(cell.parameters[name] for name in names) for cell in expanded(found)] == [(1, 16), (2, 8)]
    assert found.without_equal == ()


def test_a_node_has_a_task_for_each_gpu_of_pytorch() -> None:
    variables = {"exp.framework": ["mxnet", "pytorch"], "exp.gpus": ["0", "0,1,2"], "exp.num_nodes": [2]}
    cells = expanded(imported({"variables": variables}))
    assert [cell.parameters.get("cell.tasks_per_node") for cell in cells] == [None, None, None, 3]
    del variables["exp.num_nodes"]
    assert not any(
        "cell.tasks_per_node" in cell.parameters for cell in expanded(imported({"variables": variables}))
    )
    referred = {"exp.num_nodes": 2, "own.gpus": "0,1", "exp.gpus": "${own.gpus}", "exp.framework": "pytorch"}
    (cell,) = expanded(imported({"parameters": referred}))
    assert "cell.tasks_per_node" not in cell.parameters


def test_libraries_of_the_host_are_those_of_cells_without_docker() -> None:
    folders = "/opt/OpenBLAS/lib:/usr/local/cuda/lib64"
    parameters = {"exp.framework": "mxnet", "mxnet.host_libpath": folders, "mxnet.docker_image": "mx:1"}
    for docker, chosen in ((True, ("mx:1", None)), (False, (None, folders)), (None, ("mx:1", None))):
        given = {} if docker is None else {"exp.docker": docker}  # without it, DLBS uses Docker
        found = imported({"parameters": {**parameters, **given}})
        (cell,) = expanded(found)
        assert tuple(cell.parameters[f"cell.{name}"] for name in ("container", "library_path")) == chosen
        assert found.without_equal == ()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"mxnet.workspace": 1024}, "cpu"),
        ({"mxnet.workspace": 64}, "gpu"),
        ({"mxnet.cudnn_autotune": False}, "gpu"),
        ({"exp.data_store": "ssd"}, "gpu"),
        ({}, "cpu"),
    ],
)
def test_a_condition_on_a_default_of_dlbs_and_a_device_for_some_cells(
    condition: dict[str, Any], expected: str
) -> None:
    extension = {"condition": condition, "parameters": {"exp.device_type": "cpu"}}
    given = {"parameters": {"exp.framework": "mxnet", "exp.gpus": "0"}, "extensions": [extension]}
    assert [each.options["device"] for each in expanded(imported(given))] == [expected]


@pytest.mark.parametrize(
    ("parameters", "extensions", "reason"),
    [
        ({"exp.gpus": "0", "exp.num_gpus": 2}, [], "exp.num_gpus: exp.gpus determines it"),
        (
            {"exp.phase": "inference", "exp.framework": "mxnet", "mxnet.kv_store": "local"},
            [],
            "mxnet.kv_store: only bench training adds gradients up",
        ),
        (
            {"own.a": "$('x')$"},
            [{"condition": {"own.a": "x"}, "parameters": {"exp.replica_batch": 1}}],
            "extensions.0: its condition uses own.a, which is computed",
        ),
    ],
)
def test_what_is_left_out_changes_no_cell(
    parameters: dict[str, Any], extensions: list[Any], reason: str
) -> None:
    found = imported({"parameters": {"exp.model": "vgg16", **parameters}, "extensions": extensions})
    assert reason in found.without_equal
    (cell,) = expanded(found)
    assert not {"num_gpus", "kv_store"} & cell.options.keys()
    assert cell.options.get("batch_size", 16) == 16
