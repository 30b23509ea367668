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
    parameters = {f"cell.{name.replace('__', '.')}": value for name, value in cell.items()}
    content = {
        "name": "one",
        "command": "predict dataset",
        "parameters": {"model_name": "DigitsCNN", **parameters},
        "software": software or {},
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


def test_the_shortest_container() -> None:
    command = started({"image": {"container": {"image": "a"}}}, software="image")
    assert command.argv == ("docker", "run", "--rm", "--entrypoint", "agent", "a", *OPTIONS)
    assert command.stop == ()


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
