"""What cells run in, with real interpreters, and engines that the tests write."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

import inferometer
from inferometer.evaluators.plans.cell_command import (
    CellCommand,
    check_software,
    command_of,
    container_process,
)
from inferometer.evaluators.plans.cells import cells_of
from inferometer.evaluators.plans.plan import plan_of

ROOT = str(Path(inferometer.__file__).parent.parent)
PACKAGES = [sysconfig.get_paths()["purelib"], *site.getsitepackages()]
ENGINE = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["ENGINE_LOG"], "a") as log:
    print(*words[:2], file=log)
if words[:2] == ["image", "inspect"]:
    if "missing" in words[2]:
        sys.exit("Error response from daemon: No such image: " + words[2])
    if "stopped" in words[2]:
        sys.exit("Cannot connect to the Docker daemon. Is the docker daemon running?")
elif words[0] == "inspect":
    print({pid})
elif words[0] == "run":
    if words[words.index("--entrypoint") + 2] == "hangs":
        import time
        time.sleep(60)
    program, _, *arguments = words[words.index("--entrypoint") + 1 :]
    assert program == "python"
    sys.exit(subprocess.call([{python!r}, *arguments]))
"""


@pytest.fixture
def environments(tmp_path: Path) -> dict[str, Any]:
    """Virtual environments: one with all that this one has, one with the program alone, one with nothing."""
    software: dict[str, Any] = {}
    for name in ("full", "bare", "empty"):
        venv.create(tmp_path / name, symlinks=True)
        software[name] = {"python": str(tmp_path / name)}
    library = next((tmp_path / "full").glob("lib/python*/site-packages"))
    (library / "full.pth").write_text("\n".join([ROOT, *PACKAGES, *own_paths()]))
    # the program without any distribution of a framework, whose metadata is not in a folder of links
    links = tmp_path / "links"
    links.mkdir()
    for folder in dict.fromkeys([*PACKAGES, *own_paths()]):
        for entry in Path(folder).iterdir():
            known = ("torch", "mxnet", "onnxruntime", "__pycache__")
            if (
                not entry.name.startswith(known)
                and entry.suffix != ".pth"
                and not (links / entry.name).exists()
            ):
                (links / entry.name).symlink_to(entry)
    library = next((tmp_path / "bare").glob("lib/python*/site-packages"))
    (library / "bare.pth").write_text(f"{ROOT}\n{links}")
    return software


def own_paths() -> list[str]:
    """The folders of packages that this interpreter has from files that end in .pth."""
    return [path for path in sys.path if path.endswith("site-packages")]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker on PATH that runs programs of this machine; returns its log."""
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "docker").write_text(ENGINE.format(python=sys.executable, pid=os.getpid()))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("ENGINE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def problems(
    software: dict[str, Any], frameworks: list[str], /, limit_s: float = 60.0, **cell: Any
) -> list[str]:
    """Those of a plan whose cells run each framework in each software."""
    chosen = {"cell.software": list(software)} if software else {}
    content = {
        "name": "several",
        "command": "predict dataset",
        "parameters": {f"cell.{name}": value for name, value in cell.items()},
        "variables": {**chosen, "framework_name": frameworks, "batch_size": [1, 2]},
        "software": software,
    }
    plan = plan_of(content, "plan")
    return list(check_software(plan, cells_of(plan), limit_s=limit_s))


def run(software: dict[str, Any], command: str, **parameters: Any) -> subprocess.CompletedProcess[str]:
    content = {"name": "one", "command": command, "software": software, "parameters": parameters}
    plan = plan_of(content, "plan")
    started: CellCommand = command_of(cells_of(plan)[0], plan)
    return subprocess.run(
        started.argv,
        env={**os.environ, **started.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_interpreters_are_asked_for_the_program_and_the_frameworks(environments: dict[str, Any]) -> None:
    wrong = {"gone": {"python": "/nowhere/python"}, "library": {"library_path": "/nowhere/lib"}}
    found = problems({**environments, **wrong}, ["ONNXRuntime"])
    full, bare, empty = (each["python"] for each in environments.values())
    assert found == [
        f"software bare: {bare}/bin/python: framework ONNXRuntime is not installed; install it with: "
        "pip install 'inferometer[onnxruntime]'",
        f"software empty: {empty}/bin/python has no inferometer that works: No module named 'inferometer'; "
        "install it there with pip",
        "software gone: there is no interpreter /nowhere/python",
        "software library: there is no folder /nowhere/lib",
    ]
    assert full


def test_a_framework_that_no_program_knows() -> None:
    assert problems({}, ["Pytroch"]) == ['unknown framework "Pytroch"; did you mean "PyTorch"?']


def test_an_interpreter_that_fails_and_one_that_hangs(tmp_path: Path) -> None:
    software = {}
    for name, last in (("crash", "echo lost libfoo.so >&2; exit 3"), ("hang", "exec sleep 60")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{last}\n")
        (tmp_path / name).chmod(0o755)
        software[name] = {"python": str(tmp_path / name)}
    assert problems({"crash": software["crash"]}, ["PyTorch"]) == [
        f"software crash: {tmp_path}/crash ended with exit code 3: lost libfoo.so"
    ]
    assert problems({"hang": software["hang"]}, ["PyTorch"], limit_s=0.3) == [
        f"software hang: {tmp_path}/hang: no answer within 0.3 s"
    ]


def test_programs_before_the_interpreter_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    assert problems({}, ["ONNXRuntime"], launcher="nice -n 1", cores=core) == []
    assert problems({}, ["ONNXRuntime"], launcher="numctl -N 0") == [
        "numctl is not installed, or not on PATH"
    ]
    found = problems({}, ["ONNXRuntime"], cores="60000")
    assert len(found) == 1
    assert found[0].startswith("cell.cores: this process may not use core 60000")
    monkeypatch.setenv("PATH", "")
    assert problems({}, ["ONNXRuntime"], cores=core) == ["taskset is not installed, or not on PATH"]


def test_a_plan_may_lack_the_software_of_a_cell() -> None:
    found = problems({}, ["ONNXRuntime"], software="old")
    assert found == ['unknown software "old"; none is known']


def test_images_are_looked_up_and_asked(engine: Path) -> None:
    images = {
        name: {"container": {"image": name}, "environment": {"A": "1"}}
        for name in ("there", "missing:1", "stopped", "hangs")
    }
    named = {name.partition(":")[0]: content for name, content in images.items()}
    assert problems({"there": named["there"]}, ["ONNXRuntime", "Pytroch"]) == [
        'software there: image there: unknown framework "Pytroch"; did you mean "PyTorch"?'
    ]
    assert engine.read_text().splitlines() == ["image inspect", "run --rm"]
    del named["there"]
    assert problems(named, ["ONNXRuntime"], limit_s=0.3) == [
        "software missing: docker has no image missing:1; get it with: docker pull missing:1",
        "software stopped: docker image inspect stopped failed: "
        "Cannot connect to the Docker daemon. Is the docker daemon running?",
        "software hangs: image hangs: no answer within 0.3 s",
    ]
    assert engine.read_text().splitlines()[-1].startswith("kill inferometer-check-")


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    container = {"engine": "podman", "image": "a"}
    assert problems({"a": {"container": container}}, ["PyTorch"]) == [
        "software a: podman is not installed, or not on PATH"
    ]
    (tmp_path / "apptainer").touch(mode=0o755)
    container = {"engine": "apptainer", "image": "/nowhere/a.sif"}
    assert problems({"a": {"container": container}}, ["PyTorch"]) == [
        "software a: there is no image /nowhere/a.sif; apptainer takes a file, a folder or an address"
    ]


def test_a_command_starts_the_program_of_its_interpreter(environments: dict[str, Any]) -> None:
    ended = run(environments, "info frameworks", **{"cell.software": "bare", "format": "json"})
    assert ended.returncode == 0, ended.stderr
    assert {each["name"]: each["installed_version"] for each in json.loads(ended.stdout)}[
        "ONNXRuntime"
    ] is None


def test_a_pinned_command_has_its_cores_and_variables(tmp_path: Path) -> None:
    """An interpreter that tells what it was started with, in place of this program."""
    python = tmp_path / "python"
    python.write_text(
        f'#!{sys.executable}\nimport os, sys\nprint(os.sched_getaffinity(0), os.environ["A"])\n'
    )
    python.chmod(0o755)
    core = max(os.sched_getaffinity(0))
    ended = run(
        {"told": {"python": str(python)}},
        "predict dataset",
        **{"cell.software": "told", "cell.cores": core, "cell.env.A": "x", "cell.launcher": "nice -n 1"},
    )
    assert ended.stdout == f"{{{core}}} x\n"


def test_the_working_folder_brings_no_modules(
    environments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inferometer").mkdir()
    (tmp_path / "inferometer" / "__init__.py").write_text("raise RuntimeError('of the working folder')")
    monkeypatch.chdir(tmp_path)
    ended = run(environments, "info frameworks", **{"cell.software": "full"})
    assert ended.returncode == 0, ended.stderr
    assert problems({"full": environments["full"]}, ["ONNXRuntime"]) == []


def test_the_process_of_a_container(engine: Path) -> None:
    plan = plan_of(
        {
            "name": "a",
            "command": "op",
            "software": {"a": {"container": {"image": "a"}}},
            "parameters": {"cell.software": "a"},
        },
        "plan",
    )
    cell = cells_of(plan)[0]
    assert container_process(command_of(cell, plan, name="cell-1").container_pid) == os.getpid()
    assert container_process(command_of(cell, plan).container_pid) is None
