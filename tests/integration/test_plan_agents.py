"""A plan on two served agents: both work, one is killed, and what becomes of its runs."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from inferometer.client.cli.main import run
from inferometer.client.plan import running
from inferometer.client.remote.native.connection import probe_agent
from inferometer.evaluators.plans.running.driver import RunEvent
from inferometer.evaluators.plans.running.folder import Ended, RunHistory, read_history
from tests.cli.conftest import served

DEADLINE_S = 60
PLAN = """\
name: spread
command: predict dataset
parameters: {model_name: DigitsCNN, framework_name: ONNXRuntime, num_file_parts: 2}
variables:
  batch_size: [1, 2, 4, 8, 16, 32]
"""


@pytest.fixture
def agents(environment: None) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Two agents on hosts of their own, as processes by address."""
    with ExitStack() as stack:
        yield dict(stack.enter_context(served(f"--host={host}")) for host in ("127.0.0.1", "127.0.0.2"))


def history_of(folder: Path) -> Mapping[str, RunHistory]:
    return read_history(folder / "data" / "plans" / "spread")


def address_of(history: RunHistory) -> str:
    place, address, _ = history.last_job.split("/")
    assert place == "agents"
    return address


def works(address: str) -> bool:
    """Whether an agent has opened a model."""
    return bool(probe_agent(address).open_sessions)


def test_cells_are_spread_and_an_agent_is_killed(
    agents: dict[str, subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{PLAN}agents: {json.dumps([*agents])}\n")
    staying, leaving = agents
    begun: list[str] = []
    say = running._say_progress

    def kill_at_its_second_run(progress: RunEvent) -> None:
        say(progress)
        if progress.result is None and not progress.lost:
            begun.append(address_of(history_of(tmp_path)[progress.run.key]))
            if begun.count(leaving) == 2:
                # the process of the run has begun, and does not find the agent any more
                agents[leaving].kill()
                agents[leaving].wait()

    monkeypatch.setattr(running, "_say_progress", kill_at_its_second_run)
    assert run(["plan", "run", str(plan)]) == 0, capsys.readouterr().err
    capsys.readouterr()

    found = history_of(tmp_path)
    results = [each.result for each in found.values() if each.result]
    assert [each.ended for each in results] == [Ended.COMPLETE] * 6
    assert sum(address_of(each) == leaving for each in found.values()) == 1
    for host in (staying, leaving):
        there = [each.result for each in found.values() if address_of(each) == host and each.result]
        intervals = sorted((each.start_ns, each.end_ns) for each in there)
        assert all(one[1] <= two[0] for one, two in pairwise(intervals)), "two ran at once on a host"
    [losses] = [each.losses for each in found.values() if each.losses]
    assert f"agent {leaving}: cannot be reached: connection refused" in losses[0]
    assert run(["plan", "status", str(plan), "--all"]) == 0
    told = capsys.readouterr().out
    assert told.count(f"(agent {staying})") == 5
    assert told.count(f"(agent {leaving})") == 1
    assert told.count(f"before: agent: agent {leaving}: cannot be reached") == 1

    monkeypatch.setattr(running, "_say_progress", kill_when_it_works(agents[staying], staying))
    more = ["-V", "batch_size=[1, 2]", "-P", "num_file_parts=-1", "-P", "min_duration=60"]
    assert run(["plan", "resume", str(plan), *more]) == 1
    told = capsys.readouterr().err
    assert f"left out    agent {leaving}: cannot be reached" in told
    failed = sorted(
        each.result.reason for each in history_of(tmp_path).values() if each.result and each.result.reason
    )
    # the one in work fails by itself, as it may be what ended its agent; the other is never run
    lost, unreached = failed
    assert re.match(rf"agent: agent {staying}: (the connection was lost|cannot be reached any more)", lost)
    assert unreached.startswith(
        f"no agent is left that can run it: agent: agent {staying}: cannot be reached: "
    )


def kill_when_it_works(process: subprocess.Popen[str], address: str):  # type: ignore[no-untyped-def]
    def kill(progress: RunEvent) -> None:
        end_s = time.monotonic() + DEADLINE_S
        if process.poll() is None:
            while not works(address):
                assert time.monotonic() < end_s
            process.kill()
            process.wait()

    return kill


def test_a_cell_of_two_nodes_has_agents_of_two_hosts_that_both_answer(
    agents: dict[str, subprocess.Popen[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    more = "parameters: {cell.nodes: 2, "
    plan.write_text(f"{PLAN.replace('parameters: {', more)}agents: {json.dumps([*agents])}\n")
    # the dataset has fewer inputs than a batch of 4096, which one agent has alone
    words = ["-V", "batch_size=[1, 4096]", "-P", "num_file_parts=-1"]
    assert run(["plan", "run", str(plan), *words]) == 1, capsys.readouterr().err

    together = ",".join(agents)
    found = sorted(history_of(tmp_path).values(), key=lambda each: str(each.result and each.result.reason))
    assert [address_of(each) for each in found] == [together] * 2
    assert [each.result.ended for each in found if each.result] == [Ended.COMPLETE, Ended.FAILED]
    reason = found[1].result.reason if found[1].result else ""
    assert re.fullmatch(
        r"2 agents should have shared its inputs, but only 127\.0\.0\.\d:\d+ answered", reason
    )
