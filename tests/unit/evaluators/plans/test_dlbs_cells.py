"""What a configuration of DLBS says of software and nodes, as parameters of cells."""

from __future__ import annotations

from tests.unit.evaluators.plans.test_dlbs_import import expanded, imported


def test_nodes_become_those_of_cells() -> None:
    extension = {"condition": {"exp.num_nodes": 2}, "parameters": {"exp.replica_batch": 8}}
    found = imported({"variables": {"exp.num_nodes": [1, 2]}, "extensions": [extension]})
    names = ("cell.nodes", "batch_size")
    assert [tuple(cell.parameters[name] for name in names) for cell in expanded(found)] == [(1, 16), (2, 8)]
    assert found.without_equal == ()


def test_libraries_of_the_host_are_those_of_cells_without_docker() -> None:
    folders = "/opt/OpenBLAS/lib:/usr/local/cuda/lib64"
    parameters = {"exp.framework": "mxnet", "mxnet.host_libpath": folders, "mxnet.docker_image": "mx:1"}
    for docker, chosen in ((True, ("mx:1", None)), (False, (None, folders)), (None, ("mx:1", None))):
        given = {} if docker is None else {"exp.docker": docker}  # without it, DLBS uses Docker
        found = imported({"parameters": {**parameters, **given}})
        (cell,) = expanded(found)
        assert tuple(cell.parameters[f"cell.{name}"] for name in ("container", "library_path")) == chosen
        assert found.without_equal == ()
