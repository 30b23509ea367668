"""How cells are started: their command lines and variables, without an engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.plans.cell_command import CellCommand, command_of
from inferometer.evaluators.plans.cells import Cell, cells_of
from inferometer.evaluators.plans.plan import Plan, plan_of
from inferometer.manifests.errors import ConfigurationError

AGENT = str(Path(sys.executable).with_name("agent"))
OPTIONS = ("predict", "dataset", "--model_name=DigitsCNN")


def planned(software: dict[str, Any] | None = None, /, **cell: Any) -> tuple[Cell, Plan]:
    """A plan of one cell, whose parameters ``cell.NAME`` are given; a dot in NAME is written __."""
    return planned_as({}, software, **cell)


def planned_as(
    more: dict[str, Any], software: dict[str, Any] | None = None, /, **cell: Any
) -> tuple[Cell, Plan]:
    parameters = {f"cell.{name.replace('__', '.')}": value for name, value in cell.items()}
    content = {
        "name": "one",
        "command": "predict dataset",
        "parameters": {"model_name": "DigitsCNN", **parameters},
        "software": software or {},
        **more,
    }
    plan = plan_of(content, "plan")
    return cells_of(plan)[0], plan


def started(software: dict[str, Any] | None = None, name: str = "", /, **cell: Any) -> CellCommand:
    return command_of(*planned(software, **cell), name=name, here=False)


def test_a_cell_runs_in_this_interpreter_by_default() -> None:
    command = started()
    assert command.argv == (sys.executable, AGENT, *OPTIONS)
    assert command.environment == {}
    assert command.stop == command.container_pid == ()


def test_how_it_runs_comes_before_the_program() -> None:
    command = started(cores="0,2-3", launcher="nice -n '5'", env__OMP_NUM_THREADS=3, env__DEEP=True)
    assert command.argv == (
        "taskset",
        "--cpu-list",
        "0,2-3",
        "nice",
        "-n",
        "5",
        sys.executable,
        AGENT,
        *OPTIONS,
    )
    assert command.environment == {"OMP_NUM_THREADS": "3", "DEEP": "true"}


def test_software_and_cell_both_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib/before")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "agent").touch()
    software = {
        "other": {
            "python": str(tmp_path),
            "library_path": "/opt/a:/opt/b",
            "python_path": ["/opt/py"],
            "environment": {"A": 1, "B": "of the software"},
            "launcher": ["numactl", "--cpunodebind=0"],
        }
    }
    command = started(software, software="other", launcher="nice", env__B="of the cell")
    python = str(tmp_path / "bin" / "python")
    assert command.argv == ("numactl", "--cpunodebind=0", "nice", python, f"{tmp_path}/bin/agent", *OPTIONS)
    assert command.environment == {
        "A": "1",
        "B": "of the cell",
        "LD_LIBRARY_PATH": "/opt/a:/opt/b:/lib/before",
        "PYTHONPATH": "/opt/py",
    }


def test_an_interpreter_without_the_script_calls_the_main_function(tmp_path: Path) -> None:
    software = {"bare": {"python": str(tmp_path / "python3")}}
    argv = started(software, software="bare").argv
    assert argv[:2] == (str(tmp_path / "python3"), "-c")
    assert "inferometer.client.cli.main" in argv[2]
    assert argv[3:] == OPTIONS


def test_an_interpreter_by_name_is_that_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python9"
    python.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert started({"nine": {"python": "python9"}}, software="nine").argv[0] == str(python)


def test_further_variables_replace_those_of_the_software(tmp_path: Path) -> None:
    cell, plan = planned({"same": {"environment": {"A": "1"}}}, software="same")
    command = command_of(cell, plan, variables={"A": "2"})
    assert command == CellCommand((sys.executable, AGENT, *OPTIONS), {"A": "2"})
    cell, plan = planned({"other": {"python": str(tmp_path / "python")}}, software="other")
    assert command_of(cell, plan).argv[0] == str(tmp_path / "python")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_of_an_engine_with_a_service(engine: str) -> None:
    software = {
        "image": {
            "container": {
                "engine": engine,
                "image": "registry/pytorch:1",
                "arguments": "--gpus all -v /data:/data",
                "library_path": ["/opt/cuda/lib64"],
            },
            "environment": {"A": 1},
            "launcher": "numactl -N 0",
        }
    }
    command = started(software, "cell-1", software="image", cores="2-3", env__B="x y", launcher="nice")
    assert command.argv == (
        *(engine, "run", "--rm", "--name", "cell-1", "--cpuset-cpus", "2-3"),
        *("--volume", "/opt/cuda/lib64:/opt/cuda/lib64:ro"),
        *("--env", "A=1", "--env", "B=x y", "--env", "LD_LIBRARY_PATH=/opt/cuda/lib64"),
        *("--gpus", "all", "-v", "/data:/data"),
        *("--entrypoint", "numactl", "registry/pytorch:1", "-N", "0", "nice", "agent", *OPTIONS),
    )
    assert command.environment == {}
    assert command.stop == (engine, "kill", "cell-1")
    assert command.container_pid == (engine, "inspect", "--format", "{{.State.Pid}}", "cell-1")


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        (("apptainer", "podman", "docker"), ("docker", "run", "--rm", "--entrypoint", "agent", "a")),
        (("apptainer", "podman"), ("podman", "run", "--rm", "--entrypoint", "agent", "a")),
        (("apptainer",), ("apptainer", "exec", "a", "agent")),
        ((), ("docker", "run", "--rm", "--entrypoint", "agent", "a")),
    ],
)
def test_the_shortest_container_has_the_engine_that_is_there(
    installed: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in installed:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (
        started({"image": {"container": {"image": "a"}}}, software="image"),
        started(container="a"),
    ):
        assert command.argv == (*words, *OPTIONS)
        assert command.stop == ()


def test_the_libraries_of_a_cell_come_before_those_of_its_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    software = {"a": {"library_path": "/a"}, "b": {"container": {"image": "i", "library_path": "/b"}}}
    assert started(library_path="/c:/d").environment == {"LD_LIBRARY_PATH": "/c:/d"}
    assert started(software, software="a", library_path=["/c"]).environment == {"LD_LIBRARY_PATH": "/c:/a"}
    contained = started(software, software="b", library_path="/c").argv
    assert "LD_LIBRARY_PATH=/c:/b" in contained
    assert "/c:/c:ro" in contained


STEP = ("srun", "--kill-on-bad-exit=1")
RANKS = {"command": "bench training", "parameters": {"model": "alexnet", "cell.tasks_per_node": 2}}
TRAINING = ("bench", "training", "--model=alexnet")


def tasks_of(parameters: dict[str, Any], **more: Any) -> CellCommand:
    content = {**RANKS, **more, "parameters": {**RANKS["parameters"], **parameters}}
    return command_of(*planned_as(content), name="cell-1", here=False)


def test_the_tasks_of_a_cell_are_ranks_that_srun_starts() -> None:
    on_slurm = tasks_of({"cell.nodes": 3, "cell.cores": 1, "cell.slurm": "--mem=1G"}, slurm={})
    pinned = ("taskset", "--cpu-list", "1", sys.executable, AGENT)
    assert on_slurm.argv == (*STEP, *pinned, *TRAINING)
    assert on_slurm.slurm == ("--mem=1G", "--nodes=3", "--ntasks-per-node=2")
    alone = tasks_of({"cell.tasks_per_node": 1, "cell.nodes": 1}, slurm={})
    assert (alone.argv, alone.slurm) == ((sys.executable, AGENT, *TRAINING), ())


def test_the_tasks_of_a_cell_on_this_machine_are_ranks_that_the_command_starts() -> None:
    assert tasks_of({}).argv == (sys.executable, AGENT, *TRAINING, "--num_ranks=2")


def test_each_task_has_its_container() -> None:
    for engine in ("docker", "podman"):
        software = {"a": {"container": {"engine": engine, "image": "i", "arguments": "--gpus all"}}}
        found = tasks_of({"cell.software": "a"}, slurm={}, software=software)
        words = (*STEP, engine, "run", "--rm", "--network=host")
        assert found.argv[: len(words)] == words
        assert {"--env=SLURM_PROCID", "--env=MASTER_ADDR"} < set(found.argv)
        assert found.argv[-8:] == ("--gpus", "all", "--entrypoint", "agent", "i", *TRAINING)
        assert found.stop == found.container_pid == ()  # a name could be only that of one of them
    found = tasks_of(
        {"cell.software": "a"}, slurm={}, software={"a": {"container": {"engine": "apptainer", "image": "i"}}}
    )
    assert found.argv == (*STEP, "apptainer", "exec", "i", "agent", *TRAINING)


def test_a_container_of_apptainer_is_a_child_and_pinned_like_one() -> None:
    container = {
        "engine": "apptainer",
        "image": "/images/a.sif",
        "arguments": ["--nv"],
        "library_path": "/opt/l",
    }
    command = started({"image": {"container": container}}, "cell-1", software="image", cores=1, env__A="1")
    assert command.argv == (
        *("taskset", "--cpu-list", "1", "apptainer", "exec", "--bind", "/opt/l:/opt/l:ro"),
        *("--env", "A=1", "--env", "LD_LIBRARY_PATH=/opt/l", "--nv", "/images/a.sif", "agent", *OPTIONS),
    )
    assert command.stop == command.container_pid == ()


def test_cores_of_a_list() -> None:
    assert started(cores=[0, "2-3"]).argv[2] == "0,2-3"


def test_a_core_that_this_machine_has_not() -> None:
    cell, plan = planned(cores="0-60000")
    assert command_of(cell, plan, here=False).argv[2] == "0-60000"
    missing = next(core for core in range(60_000) if core not in os.sched_getaffinity(0))
    with pytest.raises(ConfigurationError, match=rf"may not use core {missing}; it may use \d"):
        command_of(cell, plan)


@pytest.mark.parametrize("cores", ["a", "1-", "-1", "3-2", "0,,1", "0-99999999999", "0;1", True])
def test_what_is_no_list_of_cores(cores: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^cell\.cores: .* is not a (list|range) of cores"):
        started(cores=cores)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"software": "othr"}, 'unknown software "othr"; did you mean "other"?'),
        ({"launcher": "nice '"}, 'cell.launcher: "nice \'" cannot be split'),
        ({"env__A-B": 1}, 'cell.env.A-B: "A-B" is not a valid variable name'),
        ({"env__": 1}, 'cell.env.: "" is not a valid variable name'),
        ({"nodes": 0}, 'cell.nodes: "0" is not a whole number from 1 to 1024'),
        ({"nodes": "1.5"}, 'cell.nodes: "1.5" is not a whole number'),
        ({"tasks_per_node": 1025}, 'cell.tasks_per_node: "1025" is not a whole number from 1 to 1024'),
        ({"tasks_per_node": True}, 'cell.tasks_per_node: "true" is not a whole number'),
    ],
)
def test_wrong_parameters_of_a_cell(cell: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        started({"other": {}}, **cell)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("software", "message"),
    [
        ({"pyton": "x"}, "plan: software.a.pyton: Extra inputs"),
        ({"container": {"image": "-v"}}, "plan: software.a.container.image: String should match"),
        (
            {"container": {"image": "a", "engine": "lxc"}},
            "plan: software.a.container.engine: Input should be",
        ),
        ({"container": {"image": "a"}, "python": "x"}, "plan: software.a.python: Extra inputs"),
        ({"launcher": "nice '"}, "plan: software.a.launcher: Value error, No closing quotation"),
        ({"environment": {"A B": 1}}, "plan: software.a.environment.A B"),
        ("x", "plan: software.a: Input should be"),
    ],
)
def test_a_wrong_section_names_its_field(software: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        planned({"a": software})
    assert str(caught.value).startswith(message)
