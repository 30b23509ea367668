"""Processes that train one model together with MXNet, over a scheduler and servers on this machine."""

from __future__ import annotations

import json
import os
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

from inferometer.agent.frameworks.mxnet.kvstore import kvstore_environment
from inferometer.agent.training.trainer import Rank
from inferometer.manifests.errors import TrainingError
from tests.contract.trainer_fixtures import parameters_of, trainer_of, write_architectures
from tests.integration.pytorch_rank import train

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
RUNS: dict[str, dict[str, Any]] = {
    "equal": {"name": "plain", "sizes": [32, 32], "communication": "dist_sync"},
    "unequal, in parts": {
        "name": "plain",
        "sizes": [20, 12],
        "parts": [*range(10)],
        "communication": "dist_device_sync",
    },
    "two servers": {"name": "normalised", "sizes": [8, 8], "communication": "dist_sync", "servers": 2},
    "at their own pace": {"name": "plain", "sizes": [16, 16], "steps": 30, "communication": "dist_async"},
}
Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architectures(tmp_path_factory.mktemp("architectures"))


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def start(directory: Path) -> Iterator[Callable[..., list[Process]]]:
    """Starts a scheduler, servers and two ranks that do a run, in this order; kills those that are left."""
    with ExitStack() as stack:

        def launch(*arguments: str, **variables: str) -> Process:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        def start_all(
            out: Path,
            run: dict[str, Any],
            timeout_s: float = 60,
            ranks: tuple[int, ...] = (0, 1),
            workers: int = 2,
            **variables: str,
        ) -> list[Process]:
            address, run = free_address(), {"framework": "MXNet", **run}
            servers = run.pop("servers", 1)
            started = [
                launch(
                    "inferometer.agent.frameworks.mxnet.kvstore",
                    **kvstore_environment(role, address, workers, servers),
                    **variables,
                )
                for role in ("scheduler", *["server"] * servers)
            ]
            for number in ranks:
                told = {
                    "rank": {
                        "number": number,
                        "count": workers,
                        "local": number,
                        "timeout_s": timeout_s,
                        "servers": servers,
                    },
                    "directory": str(directory),
                    "out": str(out / str(number)),
                    "runs": [{"address": address, **run}],
                }
                started.append(launch("tests.integration.pytorch_rank", json.dumps(told), **variables))
            return started

        yield start_all


def results(processes: list[Process], out: Path) -> list[Any]:
    """Waits until all have ended well, and returns what the ranks found."""
    for process in processes:
        said, complained = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, (process.args, said, complained)
    return [np.load(out / f"{number}-0.npz") for number in range(2)]


def test_two_ranks_train_as_one_process_with_all_samples(start, directory, tmp_path):
    """Two ranks with as many samples each do so in tests/cli/test_bench_ranks.py."""
    run = "unequal, in parts"
    name, sizes = RUNS[run]["name"], RUNS[run]["sizes"]
    ranks = results(start(tmp_path, RUNS[run]), tmp_path)
    alone = train(directory, Rank(), name=name, sizes=[sum(sizes)], framework="MXNet", communication="")

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


def test_two_servers_keep_the_ranks_alike(start, tmp_path):
    first, second = results(start(tmp_path, RUNS["two servers"]), tmp_path)

    for parameter in set(first) - {"losses", "communicated", "gathered"}:
        np.testing.assert_array_equal(first[parameter], second[parameter])


def test_asynchronous_ranks_train_with_servers_that_update(start, tmp_path):
    first, second = results(start(tmp_path, RUNS["at their own pace"]), tmp_path)

    for rank in (first, second):
        assert np.isfinite(rank["losses"]).all()
        np.testing.assert_array_equal(rank["gathered"], [[0, 16, 2**62], [1, 16, 2**62 + 1]])


def test_servers_that_update_for_one_rank_do_what_it_would_do_itself(start, directory, tmp_path):
    run = {"name": "plain", "sizes": [16], "steps": 10, "communication": "dist_async"}
    processes = start(tmp_path, run, ranks=(0,), workers=1)
    for process in processes:
        said, complained = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, (process.args, said, complained)
    found = np.load(tmp_path / "0-0.npz")
    alone = train(directory, Rank(), name="plain", sizes=[16], framework="MXNet", communication="")

    for parameter in alone.keys() - {"communicated", "gathered"}:
        np.testing.assert_allclose(found[parameter], alone[parameter], atol=1e-5)


def read_steps(process: Process, steps: int) -> None:
    """Waits until a process has trained some steps; a timeout of the ranks ends one that hangs."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == f"step {steps}":
            return
    raise AssertionError("the process ended")


def test_a_rank_that_is_killed_ends_the_scheduler_and_then_the_other_rank(start, tmp_path):
    """A pause of all, as of a suspended job, ends none of them, even if it is longer than all timeouts."""
    run = {"name": "plain", "sizes": [8, 8], "steps": 0, "communication": "dist_sync"}
    started = start(tmp_path, run, timeout_s=20, PS_HEARTBEAT_TIMEOUT="6")
    scheduler, _, *ranks = started
    for process in ranks:
        read_steps(process, 5)
    for sent, processes, seconds in ((signal.SIGSTOP, started, 21), (signal.SIGCONT, started[::-1], 7)):
        for process in processes:  # the ranks wait for the server in both cases
            process.send_signal(sent)
            time.sleep(0.2)
        time.sleep(seconds)
    assert [process.poll() for process in started] == [None] * 4

    ranks[1].kill()
    _, complained = scheduler.communicate(timeout=DEADLINE_S)
    said, _ = ranks[0].communicate(timeout=DEADLINE_S)

    assert scheduler.returncode == 1
    assert complained == "the kvstore lost contact with 1 rank\n"
    assert ranks[0].returncode == 1
    reason = "RankLostError: model Trained 1.0: rank 0 of 2: lost contact with the kvstore's scheduler"
    assert said.splitlines()[-1].startswith(reason)


def test_ranks_that_do_not_come_are_one_line_and_the_process_ends(start, tmp_path):
    _, _, alone = start(tmp_path, RUNS["equal"], timeout_s=3, ranks=(0,))

    said, complained = alone.communicate(timeout=DEADLINE_S)

    reason = "rank 0 of 2: the other ranks and the servers did not answer within 3 s"
    assert said == f"RankLostError: model Trained 1.0: {reason}\n", complained
    assert alone.returncode == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_scheduler_that_is_not_there_is_one_line(directory, number):
    address = free_address()
    rank = Rank(number, 2, 0, address, timeout_s=1)
    reason = f"rank {number} of 2: found no scheduler of the kvstore at {address} within 1 s"
    with (
        pytest.raises(TrainingError, match=reason) as caught,
        trainer_of("MXNet", "linear", directory, rank=rank),
    ):
        pass
    assert "\n" not in str(caught.value)

    with trainer_of("MXNet", "linear", directory) as trainer:  # this process is free to train alone
        assert parameters_of(trainer)
