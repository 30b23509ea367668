"""The verdict on the conditions, from the command line: shown, required, and true beside busy loops."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from inferometer.agent.hardware.conditions import own_cpu_s
from inferometer.agent.hardware.environment import usable_cores
from inferometer.client.cli.output import NOT_STABLE
from inferometer.evaluators.conditions import conditions
from inferometer.evaluators.conditions.conditions import Conditions, Stability
from tests.cli.conftest import Agent

AGENT = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
SHORT = ("predict", "dataset", "--framework_name=ONNXRuntime", "--threads=1", "--num_file_parts=1")
LOAD = ("--framework_name=ONNXRuntime", "--synthetic", "--warmup=1")
WORKLOAD = ("predict", "workload", *LOAD, "--initial_qps=40", "--duration=0.2")
DISTURBED = Conditions(Stability.DISTURBED, ("other processes took 48 % of the CPU",))
INPUTS = 8000
_SAMPLE_S = 0.1


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Conditions:
    """A verdict that does not depend on this machine."""
    monkeypatch.setattr(conditions, "judged", lambda *_: request.param)
    found: Conditions = request.param
    return found


@pytest.mark.parametrize("verdict", [DISTURBED], indirect=True)
@pytest.mark.parametrize("command", [SHORT, WORKLOAD], ids=["dataset", "workload"])
def test_conditions_that_are_not_stable_are_shown_and_published(
    agent: Agent, verdict: Conditions, command: tuple[str, ...]
) -> None:
    answer = agent(*command, "--require_stable")

    assert answer.code == NOT_STABLE == 9
    assert answer.figure("conditions") == str(verdict)
    last = answer.stderr.splitlines()[-1]
    assert last == f"--require_stable: the conditions were not stable: {verdict}"
    shown = agent("info", "evaluation", "show", answer.figure("evaluation"))
    assert shown.figure("conditions") == str(verdict)


@pytest.mark.parametrize("verdict", [Conditions(Stability.STABLE)], indirect=True)
def test_stable_conditions_exit_with_zero(agent: Agent, verdict: Conditions) -> None:
    answer = agent(*SHORT, "--require_stable")

    assert (answer.code, answer.figure("conditions")) == (0, "stable")
    assert "not stable" not in answer.stderr


@pytest.mark.parametrize("verdict", [DISTURBED], indirect=True)
def test_what_is_not_required_changes_no_exit_code(agent: Agent, verdict: Conditions) -> None:
    answer = agent(*SHORT)

    assert answer.code == 0
    assert "require_stable" not in answer.stderr


def test_a_run_of_milliseconds_is_not_known_to_be_stable(agent: Agent) -> None:
    answer = agent(*SHORT, "--require_stable")

    assert answer.code == NOT_STABLE
    assert not answer.figure("conditions").startswith("stable")


def test_an_agent_is_judged_by_the_conditions_of_its_host(agent: Agent, served_agent: str) -> None:
    answer = agent(*SHORT, f"--agent={served_agent}")

    shown = agent("info", "evaluation", "show", answer.figure("evaluation"), "-f", "json")
    [host] = json.loads(shown.stdout)["conditions"]["hosts"]
    assert host["processors"] == usable_cores()
    assert host["looks"] == 0


@contextmanager
def busy_loops(count: int) -> Iterator[list[psutil.Process]]:
    """Processes that each take what a processor gives them."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            for _ in range(count)
        ]
        for process in processes:
            stack.callback(process.kill)
        yield [psutil.Process(process.pid) for process in processes]


class OthersTime:
    """The CPU time of all processes but one over time, summed from what psutil tells of each.

    What a process took is passed on to its parent when it ends, so that the sum does not shrink.
    """

    def __init__(self, measured: int) -> None:
        self._measured = measured
        self._seen: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def share(self, begin_s: float, end_s: float) -> float:
        """The share of the usable processors that they took between two times."""
        self._ended.set()
        self._thread.join()
        times_s, sums_s = zip(*self._seen, strict=True)
        assert times_s[0] < begin_s < end_s < times_s[-1]
        one, two = np.interp([begin_s, end_s], times_s, sums_s)
        return float((two - one) / (end_s - begin_s) / usable_cores())

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            taken = sum(
                sum(each.info["cpu_times"][:4])
                for each in psutil.process_iter(["pid", "cpu_times"])
                if each.pid != self._measured and each.info["cpu_times"]
            )
            self._seen.append((time.time(), taken))


@pytest.mark.real_time
def test_beside_busy_loops_it_says_what_others_took(
    agent: Agent, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    images = np.random.default_rng(0).integers(0, 255, (INPUTS, 8, 8), np.uint8)
    np.savez(tmp_path / "many.npz", images=images)
    command = [*AGENT, *SHORT[:-1], f"--dataset_path={tmp_path / 'many.npz'}", "--batch_size=2"]
    command.append("--min_duration=3")
    with busy_loops(max(2, usable_cores())) as loops:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        others = OthersTime(process.pid)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        threading.Event().wait(2 * _SAMPLE_S)
        shown, host = _observed(agent, stdout)
        begin_s = datetime.fromisoformat(shown["created_at"]).timestamp()
        truth = others.share(begin_s, begin_s + host["duration_s"])
        assert all(loop.is_running() for loop in loops)

    conditions = re.search(r"^conditions +(.*)$", stdout, re.MULTILINE)
    assert conditions
    named = re.match(r"disturbed: other processes took (\d+) % of the CPU, in (\d+) %", conditions[1])
    assert named, conditions[1]
    for name in ("others_share", "duration_s", "watching_cpu_s", "own_cpu_s"):
        record_property(name, host[name])
    record_property("truth", truth)
    assert host["duration_s"] > 1.2
    assert host["others_share"] == pytest.approx(truth, rel=0.2)
    assert int(named[1]) == pytest.approx(100 * truth, rel=0.2)
    assert int(named[2]) > 50
    assert host["watching_cpu_s"] < 0.005 * host["own_cpu_s"]


def _observed(agent: Agent, stdout: str) -> tuple[Any, Any]:
    """What is kept of the evaluation that was printed, and of its one host."""
    published = re.search(r"^evaluation +(.*)$", stdout, re.MULTILINE)
    assert published
    shown = json.loads(agent("info", "evaluation", "show", published[1], "-f", "json").stdout)
    [host] = shown["conditions"]["hosts"]
    return shown, host


def test_own_time_counts_children_that_ended() -> None:
    before_s = own_cpu_s()
    subprocess.run([sys.executable, "-c", "sum(n * n for n in range(2_000_000))"], check=True)

    assert own_cpu_s() - before_s > 0.03
