"""Processes that train one model together with PyTorch, over Gloo on this machine."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.training.trainer import Rank
from inferometer.manifests.errors import TrainingError
from tests.contract.trainer_fixtures import parameters_of, trainer_of, write_architectures
from tests.integration.pytorch_rank import train

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
LOST_WITHIN_S = 30
RUNS: dict[str, dict[str, Any]] = {
    "equal": {"name": "plain", "sizes": [32, 32]},
    "equal, in parts": {"name": "plain", "sizes": [32, 32], "parts": [0, 4, 9]},
    "unequal": {"name": "plain", "sizes": [20, 12]},
    "unequal, in parts": {"name": "plain", "sizes": [20, 12], "parts": [*range(10)]},
    "parameters without gradients": {"name": "auxiliary", "sizes": [4, 7], "parts": [3, 8]},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architectures(tmp_path_factory.mktemp("architectures"))


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


Processes = list["subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def start(directory: Path) -> Iterator[Callable[..., Processes]]:
    """Starts two ranks that do some runs, and kills those that are left at the end."""
    with ExitStack() as stack:

        def start_both(out: Path, runs: list[dict[str, Any]], timeout_s: float = 60) -> Processes:
            runs = [{"address": free_address(), **run} for run in runs]
            started = []
            for number in range(2):
                told = {
                    "rank": {"number": number, "count": 2, "local": number, "timeout_s": timeout_s},
                    "directory": str(directory),
                    "out": str(out / str(number)),
                    "runs": runs,
                }
                process = subprocess.Popen(
                    [sys.executable, "-W", "error", "-m", "tests.integration.pytorch_rank", json.dumps(told)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                started.append(process)
            return started

        yield start_both


@pytest.fixture(scope="module")
def together(start, tmp_path_factory) -> Path:
    """What two ranks wrote of all runs: ``RANK-RUN.npz``."""
    out = tmp_path_factory.mktemp("ranks")
    for process in start(out, list(RUNS.values())):
        said, complained = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, (said, complained)
    return out


@pytest.mark.parametrize("run", RUNS)
def test_two_ranks_train_as_one_process_with_all_samples(together, directory, run):
    name, sizes = RUNS[run]["name"], RUNS[run]["sizes"]
    ranks = [np.load(together / f"{number}-{list(RUNS).index(run)}.npz") for number in range(2)]
    alone = train(directory, Rank(), name=name, sizes=[sum(sizes)])

    for rank in ranks:
        for parameter in alone.keys() - {"losses", "communicated", "gathered"}:
            np.testing.assert_allclose(rank[parameter], alone[parameter], atol=1e-5)
        np.testing.assert_array_equal(
            rank["gathered"], [[0, sizes[0], 2**62], [1, sizes[1], 2**62 + 1]], strict=True
        )
        assert len(rank["communicated"]) == len(RUNS[run].get("parts", ()))
        assert (rank["communicated"] > 0).all()
    losses = np.average([rank["losses"] for rank in ranks], axis=0, weights=sizes)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-5)


def read_steps(process: subprocess.Popen[str], steps: int) -> None:
    """Waits until a process has trained some steps; a timeout of the ranks ends one that hangs."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == f"step {steps}":
            return
    raise AssertionError("the process ended")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_killed_ends_the_other_with_its_name(start, tmp_path, lost):
    ranks = start(tmp_path, [{"name": "plain", "sizes": [8, 8], "steps": 0, "parts": [2]}])
    for process in ranks:
        read_steps(process, 5)

    ranks[lost].kill()
    killed_at = time.monotonic()
    said, complained = ranks[1 - lost].communicate(timeout=LOST_WITHIN_S)

    assert time.monotonic() - killed_at < LOST_WITHIN_S
    assert ranks[1 - lost].returncode == 1, complained
    last = said.splitlines()[-1]
    assert last.startswith(
        f"RankLostError: model Trained 1.0: rank {1 - lost} of 2: lost contact with rank {lost}"
    )


def test_a_rank_that_hangs_is_lost_after_the_timeout(start, tmp_path):
    ranks = start(tmp_path, [{"name": "plain", "sizes": [8, 8], "steps": 0}], timeout_s=5)
    for process in ranks:
        read_steps(process, 5)

    ranks[1].send_signal(signal.SIGSTOP)
    said, complained = ranks[0].communicate(timeout=LOST_WITHIN_S)

    assert ranks[0].returncode == 1, complained
    assert said.splitlines()[-1].startswith(
        "RankLostError: model Trained 1.0: rank 0 of 2: lost contact with rank 1"
    )


@pytest.mark.parametrize("number", [0, 1])
def test_ranks_that_do_not_come_are_one_line(directory, number):
    address = free_address()
    rank = Rank(number, 2, 0, address, timeout_s=1)
    reason = f"rank {number} of 2: cannot reach the other ranks at {address} within 1 s"
    with (
        pytest.raises(TrainingError, match=reason) as caught,
        trainer_of("PyTorch", "linear", directory, rank=rank),
    ):
        pass
    assert "\n" not in str(caught.value)

    with trainer_of("PyTorch", "linear", directory) as trainer:  # this process is free to train alone
        assert parameters_of(trainer)
