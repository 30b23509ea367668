"""The driver of a plan with real processes: killed at random moments, runs that fail, hang and are lost."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from inferometer.evaluators.plans.cell_command import CellCommand
from inferometer.evaluators.plans.cells import cells_of, runs_of
from inferometer.evaluators.plans.plan import Rerun, plan_of
from inferometer.evaluators.plans.running.driver import Driver, RunEvent
from inferometer.evaluators.plans.running.folder import (
    Ended,
    Journal,
    PlanFolder,
    Result,
    RunFolder,
    RunHistory,
    RunSpec,
    end_orphan,
    note_command,
    read_history,
    read_result,
)
from inferometer.evaluators.plans.running.places import JobNews, LocalPlace
from inferometer.manifests.errors import ConfigurationError
from tests.integration.plan_driver import driver_of

CELLS = 12
KILLS = 8
ROOT = Path(__file__).parents[2]


def driven(
    folder: Path, code: str, *, rerun: Rerun = Rerun.NEVER, stop_after: int | None = None, **given: object
) -> Mapping[str, RunHistory]:
    """Drives cells that run some Python with the cell's options as ``given``."""
    content = {"name": "cells", "command": "code", "variables": {"n": [1, 2, 3]}, "repeat": 1, **given}
    plan = plan_of(content, "cells")
    runs = tuple(runs_of(plan, cells_of(plan)))
    seen: list[RunEvent] = []
    return Driver(
        plan,
        runs,
        PlanFolder(folder),
        LocalPlace(),
        lambda run: CellCommand((sys.executable, "-c", f"given = {dict(run.cell.options)!r}\n{code}")),
        str(folder),
        on_progress=seen.append,
        stop_requested=lambda: (
            stop_after is not None and sum(each.result is not None for each in seen) >= stop_after
        ),
    ).drive(rerun)


def ends(found: Mapping[str, RunHistory]) -> list[Ended]:
    return sorted(each.result.ended for each in found.values() if each.result)


def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    complete: set[str] = set()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.plan_driver", str(tmp_path), str(CELLS)], cwd=ROOT
        )
        try:
            process.wait(moments.uniform(0.2, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        complete |= {path.parent.name for path in tmp_path.glob("runs/*/result.json")}

    found = driver_of(tmp_path, CELLS).drive()

    assert ends(found) == [Ended.COMPLETE] * CELLS, f"seed {seed}"
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    intervals = sorted((int(begin), int(end)) for _, begin, end in notes)
    assert all(one[1] <= two[0] for one, two in pairwise(intervals)), f"seed {seed}: two ran at once"
    for key in found:
        result = read_result(tmp_path / "runs" / key / "result.json")
        assert result is not None
        assert result.ended is Ended.COMPLETE
        again = [line for line in notes if line[0] == key]
        # the command may have ended before its result was written, and runs again then
        assert len(again) >= 1, f"seed {seed}"
    assert complete <= set(found)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    ended = [line for line in lines if '"ended"' in line and '"event": "ended"' in line]
    assert len(ended) == CELLS, f"seed {seed}: a complete run ran again"


def test_what_fails_or_takes_too_long_has_its_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "if given['n'] == 2: sys.exit('the model is not there')\n"
        "if given['n'] == 3: signal.pause()"
    )
    found = driven(tmp_path, code, timeout_s=2.0, variables={"n": [1, 2, 3, 4]})
    assert ends(found) == sorted([Ended.COMPLETE, Ended.COMPLETE, Ended.FAILED, Ended.TIMEOUT])
    results = {each.result.ended: each.result for each in found.values() if each.result}
    failed = results[Ended.FAILED]
    assert (failed.reason, failed.exit_code) == ("the model is not there", 1)
    assert results[Ended.TIMEOUT].reason == "it took longer than 2 s"


def test_after_memory_runs_out_larger_batches_are_left_out(tmp_path: Path) -> None:
    code = "import sys\nif given['batch_size'] >= 4: sys.exit('agent: out of memory for a batch of 4')"
    sizes = {"variables": {"batch_size": [1, 2, 4, 8, 16], "model": ["a", "b"]}, "seed": 3}
    found = driven(tmp_path, code, **sizes)
    plan = plan_of({"name": "cells", "command": "code", **sizes}, "cells")
    for cell in cells_of(plan):
        result = found[f"{cell.id}-1"].result
        assert result is not None
        size = cell.options["batch_size"]
        expected = {1: {Ended.COMPLETE}, 2: {Ended.COMPLETE}}.get(
            int(str(size)), {Ended.OUT_OF_MEMORY, Ended.LEFT_OUT}
        )
        assert result.ended in expected
        if result.ended is Ended.LEFT_OUT:
            assert result.reason.endswith("ran out of memory")
    assert Ended.OUT_OF_MEMORY in ends(found)


def test_what_runs_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    code = f"import sys\nopen({str(notes)!r}, 'a').write('x')\nif given['n'] == 2: sys.exit(1)"
    driven(tmp_path, code)
    for rerun, expected in ((Rerun.NEVER, 0), (Rerun.ON_FAILURE, 1), (Rerun.ALWAYS, 3)):
        notes.write_text("")
        driven(tmp_path, code, rerun=rerun)
        assert len(notes.read_text()) == expected


def test_a_stopped_plan_goes_on(tmp_path: Path) -> None:
    first = driven(tmp_path, "", stop_after=1)
    assert ends(first) == [Ended.COMPLETE]
    assert ends(driven(tmp_path, "")) == [Ended.COMPLETE] * 3


def test_a_run_that_was_interrupted_runs_again(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 1)
    Journal(tmp_path).ended(Result(driver.runs[0].key, Ended.INTERRUPTED, "it was told to stop"))
    assert ends(driver.drive()) == [Ended.COMPLETE]


def test_a_process_that_is_lost_starts_again_and_then_fails(tmp_path: Path) -> None:
    code = "import os, signal\nif given['n'] == 2: os.kill(os.getppid(), signal.SIGKILL)"
    found = driven(tmp_path, code)
    assert ends(found) == sorted([Ended.COMPLETE, Ended.COMPLETE, Ended.FAILED])
    [lost] = [each for each in found.values() if each.losses]
    assert lost.losses == ["its process ended with code -9"] * 3
    assert lost.result is not None
    assert lost.result.reason == "lost 3 times: its process ended with code -9"


def test_the_command_of_a_process_that_is_lost_ends_with_it(tmp_path: Path) -> None:
    survived = tmp_path / "survived"
    code = (
        "import os, pathlib, signal\n"
        "if given['n'] == 2:\n"
        "  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "  signal.alarm(10)\n"
        "  os.kill(os.getppid(), signal.SIGKILL)\n"
        "  signal.sigwait([signal.SIGALRM])\n"
        f"  pathlib.Path({str(survived)!r}).touch()"
    )
    found = driven(tmp_path, code)
    assert ends(found) == sorted([Ended.COMPLETE, Ended.COMPLETE, Ended.FAILED])
    assert [len(each.losses) for each in found.values() if each.losses] == [3]
    assert not survived.exists()


@pytest.mark.parametrize(
    ("owner", "command", "ends"),
    [("another", "same", True), ("same", "same", False), ("another", "another", False)],
)
def test_only_the_command_of_a_dead_process_is_ended(
    tmp_path: Path, owner: str, command: str, ends: bool
) -> None:
    folder = RunFolder(tmp_path)
    folder.write(RunSpec("k", (), 1.0, str(tmp_path)))
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        note_command(folder, process.pid)
        noted = tmp_path / "processes.json"
        content = json.loads(noted.read_text())
        for each, said in zip(content, (owner, command), strict=True):
            each[1] = each[1] if said == "same" else "another"
        noted.write_text(json.dumps(content))

        end_orphan(folder)

        if ends:
            assert process.wait(10) == -signal.SIGKILL
        else:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    found = driven(tmp_path, "")
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"run": "x", "even')
    assert read_history(tmp_path).keys() == found.keys()
    assert ends(driven(tmp_path, "")) == [Ended.COMPLETE] * 3


def test_a_result_that_the_journal_lacks_is_taken(tmp_path: Path) -> None:
    driver_of(tmp_path, 2).drive()
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-2]))

    assert ends(driver_of(tmp_path, 2).drive()) == [Ended.COMPLETE] * 2
    assert len((tmp_path / "notes").read_text().splitlines()) == 2


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    inner: list[str] = []

    def second(_: RunEvent) -> None:
        try:
            driver_of(tmp_path, 1).drive()
        except ConfigurationError as error:
            inner.append(str(error))

    driver = driver_of(tmp_path, 1)
    driver.on_progress = second
    driver.drive()
    assert inner == [f"{tmp_path}: another driver runs this plan; agent plan watch shows it"] * 2


def test_a_file_system_without_locks_is_no_other_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigurationError, match=r"driver\.lock: cannot be locked: No locks available"):
        driver_of(tmp_path, 1).drive()


def test_who_looks_whether_a_driver_runs_is_no_driver(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 1)
    looking = driver.folder.lock.open("ab+")
    fcntl.flock(looking, fcntl.LOCK_SH)
    driver.sleep = lambda _: looking.close()

    assert not driver.folder.is_driven
    assert ends(driver.drive()) == [Ended.COMPLETE]


class ElsewherePlace:
    """A place whose jobs go on without their driver."""

    name = "elsewhere"
    survives = True
    capacity = 2
    poll_s = 0.01

    def start(self, folder: Path) -> str:
        return folder.name

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        return {}


def test_jobs_that_go_on_do_not_keep_a_stopped_driver(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 3)
    driver.place = ElsewherePlace()
    seen: list[RunEvent] = []
    driver.on_progress = seen.append
    driver.stop_requested = lambda: bool(seen)
    found = driver.drive()
    assert sum(bool(each.job) for each in found.values()) == 2

    with pytest.raises(ConfigurationError, match=r"jobs elsewhere have not ended \(2, such as elsewhere/"):
        driver_of(tmp_path, 3).drive()


def test_the_end_of_a_driver_is_no_fault_of_a_run(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 1)
    journal = Journal(tmp_path)
    for number in range(4):
        journal.submitted(driver.runs[0].key, f"local/{number}:1")
        journal.lost(driver.runs[0].key, "the driver ended", counts=False)
    journal.submitted(driver.runs[0].key, "local/9:1")
    [history] = driver.drive().values()
    assert history.result is not None
    assert history.result.ended is Ended.COMPLETE
    assert history.losses == ["the driver ended"] * 5


def test_what_ran_on_an_agent_when_the_driver_ended_runs_again(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 1)
    Journal(tmp_path).submitted(driver.runs[0].key, "agents/gpu-1:50051/9:1")
    driven_at: list[bool] = []
    driver.on_progress = lambda _: driven_at.append(driver.folder.is_driven)
    [history] = driver.drive().values()
    assert history.result is not None
    assert history.result.ended is Ended.COMPLETE
    assert history.losses == ["the driver ended"]
    assert set(driven_at) == {True}
    assert not driver.folder.is_driven


def test_what_a_lost_attempt_has_published_is_gone(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal\n"
        "data = pathlib.Path(os.environ['AGENT_DATA_DIR'])\n"
        "assert not list(data.iterdir())\n"
        "(data / 'inferometer.db').touch()\n"
        f"first = pathlib.Path({str(tmp_path)!r}) / str(given['n'])\n"
        "if not first.exists(): first.touch(); os.kill(os.getppid(), signal.SIGKILL)"
    )
    found = driven(tmp_path, code)
    assert ends(found) == [Ended.COMPLETE] * 3
    assert [len(each.losses) for each in found.values()] == [1] * 3


def test_the_process_of_a_run_ends_by_itself_with_code_0(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    folder = RunFolder(tmp_path / "run")
    argv = (sys.executable, "-c", "")
    folder.write(RunSpec("run", argv, 60.0, str(tmp_path / "locks"), machines=("machine",)))
    command = [sys.executable, "-m", "inferometer.evaluators.plans.running.run_process", str(folder.path)]

    # its standard input stays open for as long as it runs, as that of a driver
    with subprocess.Popen([*command, "--linked"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        code = process.wait(60)

    assert (code, errors) == (0, b"")
    result = read_result(folder.result)
    assert result is not None
    assert result.ended is Ended.COMPLETE


SRUN = """\
#!/bin/sh
echo "$MASTER_ADDR $SRUN_CPUS_PER_TASK" > "$AGENT_DATA_DIR/told"
echo agent: no such image: 7.jpg
echo agent: lost rank 1
echo "srun: error: c2: task 1: $TASK"
exit 3
"""


@pytest.mark.parametrize(
    ("variables", "told", "machines"),
    [
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "c[1-2]"}, f"{socket.gethostname()} ", "c1 c2"),
        ({"MASTER_ADDR": "ib0", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "c[1-2]"}, "ib0 ", "c1 c2"),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "c1"}, " 3", "c1"),
    ],
)
def test_tasks_of_srun_know_where_to_meet_hold_all_nodes_and_fail_with_the_first_error(
    variables: dict[str, str], told: str, machines: str, tmp_path: Path
) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "locks").mkdir()
    folder = RunFolder(tmp_path / "run")
    folder.write(RunSpec("run", ("srun", "agent"), 60.0, str(tmp_path / "locks"), monitor_s=0.1))
    command = [sys.executable, "-m", "inferometer.evaluators.plans.running.run_process", str(folder.path)]
    outside = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    for task, how in (("Exited with exit code 3", Ended.FAILED), ("Out Of Memory", Ended.OUT_OF_MEMORY)):
        folder.result.unlink(missing_ok=True)
        subprocess.run(command, env={**outside, **variables, **path, "TASK": task}, check=True)
        result = read_result(folder.result)
        assert result is not None
        assert result.ended is how
        line = "agent: no such image: 7.jpg" if how is Ended.FAILED else f"srun: error: c2: task 1: {task}"
        assert result.reason == line
    assert result.monitor is None  # it would have seen srun alone
    assert (folder.data / "told").read_text() == f"{told}\n"
    assert " ".join(sorted(each.stem for each in (tmp_path / "locks").iterdir())) == machines
