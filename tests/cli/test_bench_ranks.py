"""``agent bench training`` with several ranks: real processes, gloo, and MXNet's scheduler and servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

AGENT = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
RANKS = {
    "PyTorch": ("--framework_name=PyTorch", "--num_ranks=2"),
    "MXNet": ("--framework_name=MXNet", "--kv_store=dist_sync", "--kv_num_workers=2"),
}
SERVERS = {"PyTorch": (), "MXNet": ("--kv_num_servers=2",)}
GRADIENTS = {"PyTorch": "gloo", "MXNet": "dist_sync"}
PROCESSES = {"PyTorch": 2, "MXNet": 4}
END_S = 60.0


@pytest.mark.parametrize("framework", RANKS)
def test_two_ranks_train_as_one_process_and_are_one_evaluation_with_the_times_of_both(
    agent, framework, tmp_path
):
    random = np.random.default_rng(3)  # some noise has a ReLU within 1e-7 of its kink, which rounding decides
    data = {"images": random.random((640, 3, 32, 32), np.float32), "labels": random.integers(0, 10, 640)}
    np.savez(tmp_path / "data.npz", **data)
    common = ("bench", "training", "--model=cifar10_lenet", f"--data_dir={tmp_path / 'data.npz'}")
    for name, options in (
        ("one", (f"--framework_name={framework}", "--batch_size=64", "--publish=false")),
        ("half", (f"--framework_name={framework}", "--batch_size=32")),
        ("two", (*RANKS[framework], *SERVERS[framework], "--batch_size=32")),
    ):
        length = ("--num_batches=9", "--num_workers=0")
        answer = agent(*common, *options, *length, f"--save_weights={tmp_path / name}")
        assert answer.code == 0, answer.stderr
    wait_for(lambda: not any(lives(each) for each in psutil.Process().children() if is_spawned(each)))
    one, two = (weights(framework, tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0, atol=1e-5, err_msg=name)

    assert answer.stderr == ""
    assert f"batch 32 × 2 = 64, gradients by {GRADIENTS[framework]}" in answer.figure("trained")
    assert "576 samples" in answer.figure("throughput")
    row, _ = agent("info", "evaluation", "training", "-f", "csv").rows
    assert (row["framework_name"], row["ranks"], row["measured_steps"]) == (framework, "2", "9")
    alone, both = agent("info", "evaluation", "weak_scaling", "-f", "csv").rows
    assert (alone["devices"], alone["efficiency_percent"], both["devices"]) == ("1", "100.0", "2")
    assert float(both["communicate_ms"]) > 0
    steps = agent("info", "evaluation", "training_steps", "--id", row["id"], "-f", "csv").rows
    assert sorted({step["rank"] for step in steps}) == ["0", "1"]
    assert [step["samples"] for step in steps] == ["32"] * 18


def weights(framework: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of weights."""
    if framework == "PyTorch":
        import torch

        return {name: each.numpy() for name, each in torch.load(path, weights_only=True).items()}
    from inferometer.agent.frameworks.mxnet.runtime import mxnet

    return {name: each.asnumpy() for name, each in mxnet.nd.load(str(path)).items()}


class Run:
    """A training in a process of its own, which goes on until it is stopped.

    What becomes of the ranks of each framework is tested in tests/integration/test_ranks.py.
    """

    def __init__(self, framework: str, folder: Path) -> None:
        self.options = ["--model=cifar10_lenet", "--batch_size=4", "--num_batches=1000000", "--publish=false"]
        self.process = subprocess.Popen(
            [*AGENT, "bench", "training", *self.options, *RANKS[framework]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "AGENT_DATA_DIR": str(folder)},
            start_new_session=True,
        )
        self._count = PROCESSES[framework]
        self.children: list[psutil.Process] = []

    def wait_until_it_trains(self) -> None:
        """Waits until all processes have used more CPU time than their start takes."""

        def trains() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            found = psutil.Process(self.process.pid).children()
            self.children = [each for each in found if is_spawned(each)]
            return len(self.children) == self._count and all(busy(each) for each in self.children)

        wait_for(trains)

    def end(self) -> tuple[str, str]:
        """What it printed, once it has ended and left no process."""
        stdout, stderr = self.process.communicate(timeout=END_S)
        wait_for(lambda: not any(lives(each) for each in self.children))
        return stdout, stderr


def is_spawned(process: psutil.Process) -> bool:
    """Whether it is a rank, MXNet's scheduler or a server."""
    with suppress(psutil.NoSuchProcess):
        return "spawn_main" in " ".join(process.cmdline())
    return False


def busy(process: psutil.Process) -> bool:
    return len(process.net_connections()) > 0


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = END_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "the deadline has passed"
        time.sleep(0.05)


def test_a_rank_that_is_killed_ends_the_command_with_its_name(tmp_path):
    run = Run("PyTorch", tmp_path)
    run.wait_until_it_trains()
    run.children[-1].kill()
    _, stderr = run.end()
    assert run.process.returncode == 1
    [line] = [line for line in stderr.splitlines() if line.startswith("agent: ")]
    assert "rank 1 of 2 was ended by SIGKILL before it was complete" in line


@pytest.mark.usefixtures("needs_mxnet")
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(tmp_path):
    run = Run("MXNet", tmp_path)
    run.wait_until_it_trains()
    assert run.process.stdout is not None
    assert "training, batch 4 × 2" in run.process.stdout.readline()
    os.killpg(run.process.pid, signal.SIGINT)
    _, stderr = run.end()
    assert run.process.returncode == 130, stderr
    assert "Traceback" not in stderr
    # it may have come before the first step
    assert re.search(r"interrupted: \d+ steps were|stopped before a step was measured", stderr), stderr


def test_what_ranks_cannot_be_is_one_line(agent):
    for options, message in (
        (("--rank=0",), "rank needs num_ranks and rank_address"),
        (("--rank=2", "--num_ranks=2", "--rank_address=a:1"), "rank is 2; allowed: 0 to num_ranks - 1"),
        (("--num_ranks=2000",), "num_ranks is 2000; allowed: 1 to 1024"),
    ):
        answer = agent("bench", "training", "--model=cifar10_lenet", "--framework_name=PyTorch", *options)
        assert (answer.code, message in answer.error) == (2, True), answer.stderr
