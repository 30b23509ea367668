"""Ranks in real processes, over real gloo and MXNet's real kvstore: together, stopped, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.manifests.errors import DatasetError, TrainingError
from tests.integration import rank_work

needs_mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed")
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
GLOO = ("rank-0", "rank-1", "child-0", "child-1")
KVSTORE = ("rank-0", "rank-1", "scheduler", "server")
END_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the processes write their ids. None of them is left after the test."""
    yield tmp_path
    for path in tmp_path.iterdir():
        pid = int(path.read_text(encoding="utf-8"))
        if psutil.pid_exists(pid) and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "the deadline has passed"
        time.sleep(0.02)


def pids_of(folder: Path, names: tuple[str, ...]) -> dict[str, int]:
    wait_for(lambda: all((folder / name).exists() for name in names))
    return {name: int((folder / name).read_text(encoding="utf-8")) for name in names}


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def none_left(pids: dict[str, int]) -> None:
    wait_for(lambda: not any(lives(pid) for pid in pids.values()), END_S)


def kills(folder: Path, names: tuple[str, ...], victim: str, how: int) -> JobCallbacks:
    """Callbacks that kill one process once all of them are at work."""

    def look() -> bool:
        if all((folder / name).exists() for name in names) and not killed:
            killed.append(time.monotonic())
            os.kill(int((folder / victim).read_text(encoding="utf-8")), how)
        return False

    killed: list[float] = []
    return JobCallbacks(stop_requested=look)


@pytest.mark.parametrize(
    ("kind", "names", "victim", "message"),
    [
        # tests/cli/test_bench_ranks.py kills rank 1
        ("steps_until_stopped", GLOO, "rank-0", "^rank 0 of 2 was ended by SIGKILL before it was complete"),
        pytest.param("kvstore_steps", KVSTORE, "rank-1", "^rank 1 of 2 was ended by SIG", marks=needs_mxnet),
        pytest.param(
            "kvstore_steps", KVSTORE, "server", "^the kvstore's server was ended by SIG", marks=needs_mxnet
        ),
    ],
)
def test_a_process_that_is_killed_ends_all_and_is_named(
    kind: str, names: tuple[str, ...], victim: str, message: str, folder: Path
) -> None:
    callbacks = kills(folder, names, victim, signal.SIGKILL)
    with pytest.raises(TrainingError, match=message) as caught:
        list(rank_work.launch(kind, folder, callbacks))
    assert len(str(caught.value).splitlines()) == 1
    none_left(pids_of(folder, names))


def test_the_error_of_a_rank_counts_before_the_connections_that_it_lost(folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"^no such image: 7\.jpg$"):
        list(rank_work.launch("raises_in_one", folder, JobCallbacks()))


@pytest.mark.parametrize(
    ("kind", "names"),
    [("steps_until_stopped", GLOO), pytest.param("kvstore_steps", KVSTORE, marks=needs_mxnet)],
)
def test_no_process_outlives_a_launcher_that_is_killed(
    kind: str, names: tuple[str, ...], folder: Path
) -> None:
    with subprocess.Popen([sys.executable, "-m", rank_work.__name__, kind, str(folder)]) as launcher:
        pids = pids_of(folder, names)
        launcher.kill()
    none_left(pids)


def test_ranks_of_torchrun_meet_and_only_rank_0_tells(folder: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = subprocess.run(
        [*torchrun, "-m", rank_work.__name__, "joins", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.stdout == "evaluation (0, 3.0)\n", found.stderr


def test_ctrl_c_ends_all_ranks_after_the_same_step_and_rank_0_tells(folder: Path) -> None:
    command = [sys.executable, "-m", rank_work.__name__, "steps_until_stopped", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        pids = pids_of(folder, GLOO)
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
        output, _ = launcher.communicate(timeout=END_S)
    warning, told = output.splitlines()
    assert warning == "warning from rank 0 of 2"
    steps = json.loads(told.removeprefix("evaluation "))
    assert steps[0] == steps[1] > 0
    assert launcher.returncode == 0
    none_left(pids)
